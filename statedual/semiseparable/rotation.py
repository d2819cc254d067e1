"""Any SSM of state size N in O(TN) operations (Theorem ``thm:ssm-efficiency``): its dynamics as a lattice of rotations.

A state may be written in any coordinates, ``h_t = X_t g_t``. Let ``K_t = [b_t, A_t X_{t-1}]``, an (N, N+1) matrix, so
that ``h_t = K_t [x_t; g_{t-1}]``. Having one column too many, it has a unit null vector v_t; whatever part of
``[x_t; g_{t-1}]`` lies along v_t never reaches the state. Rotate adjacent coordinates, N times, until that part is the
last coordinate, and drop it: the others are g_t, and ``X_t`` is ``K_t`` seen through the same rotations. Nothing is
inverted or diagonalised, so this holds for every real A_t. One step is N rotations in place of a product by A_t.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.checks import require_floating, require_ndim, require_one_device, require_sizes
from statedual.semiseparable.matrix import SemiseparableMatrix
from statedual.semiseparable.multiply import as_columns
from statedual.semiseparable.transition import as_dense


@dataclass(frozen=True, eq=False)
class RotationSSM:
    """An SSM whose state moves by N plane rotations a step: 2TN parameters, of which every value is a valid one.

    ``angle``: (T, N), ``c``: (T, N). The input travels through the state as a carry, ``carry = x_t`` at k = 0:

        g_t[k]  =  cos(angle_tk) g_{t-1}[k] + sin(angle_tk) carry
        carry'  =  cos(angle_tk) carry - sin(angle_tk) g_{t-1}[k]            y_t = sum_k c_t[k] g_t[k]
    """

    angle: Float[Tensor, "time state"]
    c: Float[Tensor, "time state"]

    def __post_init__(self) -> None:
        require_floating(angle=self.angle, c=self.c)
        require_one_device(angle=self.angle, c=self.c)
        require_ndim("angle", self.angle, "time state")
        require_sizes("c", self.c, dict(zip(("time", "state"), self.angle.shape, strict=True)), "angle")

    @property
    def num_parameters(self) -> int:
        """2TN (Proposition ``prop:ss-mvm``)."""
        return self.angle.numel() + self.c.numel()

    def matmul(self, x: Float[Tensor, "time *columns"]) -> Float[Tensor, "time *columns"]:
        """``M x`` for x of shape (T, ...), with 8TN multiplications and additions a column.

        Rotation (t, k) waits for the carry of (t, k-1) and the state of (t-1, k) only, so all with the same t + k go
        at once: T + N - 1 waves. The output is summed up on the way, beside the carry.
        """
        require_one_device(angle=self.angle, x=x)
        columns = as_columns(x, len(self.c))
        dtype = torch.promote_types(torch.promote_types(self.angle.dtype, self.c.dtype), x.dtype)
        precision = torch.promote_types(dtype, torch.float32)
        y = _waves(self.angle.to(precision), self.c.to(precision), columns.to(precision))
        return y.reshape(x.shape).to(dtype)


def _waves(
    angle: Float[Tensor, "time state"], c: Float[Tensor, "time state"], x: Float[Tensor, "time columns"]
) -> Float[Tensor, "time columns"]:
    time, order = angle.shape
    if time == 0 or order == 0:
        return torch.zeros_like(x)
    cos, sin = angle.cos(), angle.sin()
    zero = torch.zeros_like(x[:1])
    state = carry = partial = x[:0]
    outputs = []
    for wave in range(time + order - 1):
        if wave < time:
            carry, partial = torch.cat([x[wave : wave + 1], carry]), torch.cat([zero, partial])
        else:
            state = state[1:]
        if wave < order:
            state = torch.cat([state, zero])
        k = torch.arange(max(0, wave - time + 1), min(order, wave + 1), device=x.device)
        t = wave - k
        cos_now, sin_now = cos[t, k, None], sin[t, k, None]
        state, carry = cos_now * state + sin_now * carry, cos_now * carry - sin_now * state
        partial = partial + c[t, k, None] * state
        if wave >= order - 1:
            outputs.append(partial[-1])
            carry, partial = carry[:-1], partial[:-1]
    return torch.stack(outputs)


@torch.no_grad()
def preprocess(m: SemiseparableMatrix) -> RotationSSM:
    """The same matrix with its dynamics as rotations, for any scalar, diagonal or dense factors.

    O(TN^3) once, and no gradient: one orthogonal (QR) decomposition a step finds the null vector, from which all its
    angles follow. Half precision is returned in float32, since rounded angles would move the whole state.
    """
    precision = torch.promote_types(m.dtype, torch.float32)
    a, b, c = as_dense(m.a.to(precision), m.order), m.b.to(precision), m.c.to(precision)
    coordinates = b.new_zeros(m.order, m.order)
    angles, reads = torch.empty_like(b), torch.empty_like(c)
    for t in range(len(b)):
        moved = a[t] @ coordinates if t else coordinates.clone()
        angles[t] = _angles_onto(torch.linalg.qr(torch.cat([b[t, :, None], moved], dim=1).mT, mode="complete").Q[:, -1])
        carry = b[t]
        for k, (cos, sin) in enumerate(zip(angles[t].cos(), angles[t].sin(), strict=True)):
            column = moved[:, k]
            coordinates[:, k], carry = cos * column + sin * carry, cos * carry - sin * column
        reads[t] = c[t] @ coordinates
    return RotationSSM(angles, reads)


def _angles_onto(v: Float[Tensor, " joined"]) -> Float[Tensor, " state"]:
    """The angles whose rotations, one after another, leave ``v . [x; g]`` in the last carry.

    The k-th carry holds the normalised part of v up to coordinate k: each angle splits its length between the next
    coordinate and what came before. A vanishing part leaves the angle at 0.
    """
    before = torch.cat([v[:1], v.square().cumsum(0)[1:-1].sqrt()])
    return torch.atan2(-v[1:], before)
