"""The masks of structured masked attention that are computed by a scan, and the dense one that none needs.

    Causal            L_ts = 1                                  cumulative sum                 O(T)
    Decay             L_ts = gamma^(t-s)                        scan                           O(T)
    OneSemiseparable  L_ts = a_t ... a_{s+1}                    scan                           O(T)
    Semiseparable     L_ts = c_t^T A_t ... A_{s+1} b_s          expansion, scan, contraction   O(T K)
    Dense             any matrix                                product                        O(T S)

All but the last are zero above the diagonal. Costs are per feature. The first four are each a special case of the next.

Scans run in float64 whatever the precision of their input: a slow decay is a product of thousands of factors, and their
rounding in float32, the same for equal factors, would add up to far more than the rounding of one.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.checks import require_floating, require_one_device
from statedual.masked_attention.mask import Mask, require_axes
from statedual.semiseparable.scan import scan
from statedual.semiseparable.segment_sums import segment_sums


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """The causal mask of linear attention: L_ts = 1 for t >= s (sec. 4.2). Its product is the cumulative sum."""

    @property
    def batch(self) -> torch.Size:
        """No leading axes: one matrix for all."""
        return torch.Size()

    @property
    def lengths(self) -> None:
        """Any length."""
        return None

    def _dense(self, time: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:
        return torch.ones(time, time, dtype=dtype, device=device).tril()

    def hadamard(self, g: Float[Tensor, "*batch time source"]) -> Float[Tensor, "*batch time source"]:
        """G ∘ L without writing L down."""
        require_axes("g", g, "time source")
        self.require_lengths(*g.shape[-2:])
        return g.tril()

    def _matmul(self, z: Tensor) -> Tensor:
        return z.cumsum(-2)


@dataclass(frozen=True, eq=False)
class Decay(Mask):
    """The decay mask of RetNet: L_ts = gamma^(t-s) for t >= s, gamma (*batch,) in [0, 1] (sec. 4.3).

    gamma = 1 is the causal mask, gamma = 0 the identity. The paper's indicator reads j >= i; it means i >= j.
    """

    gamma: Float[Tensor, "*batch"]

    def __post_init__(self) -> None:
        require_floating(gamma=self.gamma)

    @property
    def batch(self) -> torch.Size:
        """One decay for each of these."""
        return self.gamma.shape

    @property
    def lengths(self) -> None:
        """Any length."""
        return None

    def _dense(self, time: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:
        gamma = self.gamma.to(dtype=dtype, device=device)
        position = torch.arange(time, device=gamma.device)
        distance = (position[:, None] - position).clamp(min=0)
        return (gamma[..., None, None] ** distance).tril()

    def _matmul(self, z: Tensor) -> Tensor:
        return _decayed_sum(self.gamma.double()[..., None].expand(*self.batch, z.shape[-2]), z)


@dataclass(frozen=True, eq=False)
class OneSemiseparable(Mask):
    """The 1-semiseparable mask of SSD: L_ts = exp(log_a_t + ... + log_a_{s+1}) for t >= s (`eq:1ss`, sec. 5.2).

    log_a (*batch, time) <= 0; -inf forgets all that came before. log_a_0 never matters.
    """

    log_a: Float[Tensor, "*batch time"]

    def __post_init__(self) -> None:
        require_axes("log_a", self.log_a, "time")

    @property
    def batch(self) -> torch.Size:
        """One sequence of decays for each of these."""
        return self.log_a.shape[:-1]

    @property
    def lengths(self) -> tuple[int, int]:
        """One row and one column for each decay."""
        return self.log_a.shape[-1], self.log_a.shape[-1]

    def _dense(self, time: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:  # noqa: ARG002
        return segment_sums(self.log_a.to(dtype=dtype, device=device)).exp()

    def _matmul(self, z: Tensor) -> Tensor:
        return _decayed_sum(self.log_a.double().exp(), z)


@dataclass(frozen=True, eq=False)
class Semiseparable(Mask):
    """A semiseparable mask of order K: L_ts = c_t^T A_t ... A_{s+1} b_s for t >= s (`eq:sss`, `thm:ss-sma`).

    b and c are (*batch, time, order); a holds plain factors and is (*batch, time) for A_t = a_t I,
    (*batch, time, order) for A_t = diag(a_t), or (*batch, time, order, order). A_0 never matters. By `thm:ss-sma` these
    are all the masks that allow autoregression with a bounded memory.
    """

    a: Float[Tensor, "*batch_and_structure"]
    b: Float[Tensor, "*batch time order"]
    c: Float[Tensor, "*batch time order"]

    def __post_init__(self) -> None:
        require_floating(a=self.a, b=self.b, c=self.c)
        require_one_device(a=self.a, b=self.b, c=self.c)
        if self.b.ndim < 2 or self.b.shape != self.c.shape:
            raise ValueError(
                f"b has shape {tuple(self.b.shape)} and c {tuple(self.c.shape)}, expected both (*batch, time, order)"
            )
        order = self.b.shape[-1]
        wanted = [(*self.b.shape[:-1], *structure) for structure in ((), (order,), (order, order))]
        if self.a.shape not in wanted:
            raise ValueError(
                f"a has shape {tuple(self.a.shape)}, expected one of {wanted} (scalar, diagonal, dense A_t) as in b"
            )

    @property
    def batch(self) -> torch.Size:
        """One sequence of (A, b, c) for each of these."""
        return self.b.shape[:-2]

    @property
    def lengths(self) -> tuple[int, int]:
        """One row and one column for each (A_t, b_t, c_t)."""
        return self.b.shape[-2], self.b.shape[-2]

    def _dense(self, time: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:
        return self._matmul(torch.eye(time, dtype=dtype, device=device or self.b.device))

    def _matmul(self, z: Tensor) -> Tensor:
        a, b, c = self.a, self.b.to(z.dtype), self.c.to(z.dtype)
        expanded = b[..., None] * z[..., None, :]
        if a.ndim > b.ndim:
            hidden = _dense_recurrence(a.to(z.dtype), expanded)
        else:
            hidden = scan(a.double().reshape(*a.shape, *(1,) * (b.ndim + 1 - a.ndim)), expanded, dim=-3)
        return torch.einsum("...tk,...tkf->...tf", c, hidden)


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A mask without structure, (*batch, time, source): banded, dilated, block diagonal, or for cross-attention."""

    matrix: Float[Tensor, "*batch time source"]

    def __post_init__(self) -> None:
        require_axes("matrix", self.matrix, "time source")

    @property
    def batch(self) -> torch.Size:
        """One matrix for each of these."""
        return self.matrix.shape[:-2]

    @property
    def lengths(self) -> tuple[int, int]:
        """The matrix's own sizes."""
        return self.matrix.shape[-2], self.matrix.shape[-1]

    def _dense(self, time: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:  # noqa: ARG002
        return self.matrix.to(dtype=dtype, device=device)

    def _matmul(self, z: Tensor) -> Tensor:
        return self.matrix.to(z.dtype) @ z


def _decayed_sum(a: Float[Tensor, "*#batch time"], z: Float[Tensor, "*#batch time features"]) -> Tensor:
    """1SS(a) z: h_t = a_t h_{t-1} + z_t (`eq:1ss-recurrence`), with a's batch axes given to z where it lacks them."""
    batch = torch.broadcast_shapes(a.shape[:-1], z.shape[:-2])
    return scan(a[..., None], z.expand(*batch, *z.shape[-2:]), dim=-2)


def _dense_recurrence(
    a: Float[Tensor, "*#batch time order order"], x: Float[Tensor, "*#batch time order features"]
) -> Tensor:
    """h_t = A_t h_{t-1} + x_t for dense A_t: (*batch, time, order, features)."""
    if x.shape[-3] == 0:
        return x
    states = [x[..., 0, :, :]]
    for t in range(1, x.shape[-3]):
        states.append(a[..., t, :, :] @ states[-1] + x[..., t, :, :])
    return torch.stack(states, dim=-3)
