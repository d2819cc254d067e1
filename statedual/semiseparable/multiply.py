"""The algorithms that multiply by ``M = SSS(a, b, c)``: each is an order of contraction of the same product ``M x``.

All take ``x`` as (T, P), ``P`` columns that share the matrix, and need one dtype among their arguments.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from statedual.checks import require_floating
from statedual.semiseparable.one_semiseparable import one_semiseparable
from statedual.semiseparable.transition import (
    Transition,
    act,
    as_diagonal,
    left_factor,
    products_from_first,
    right_factor,
)


def as_columns(x: Float[Tensor, "time *columns"], time: int) -> Float[Tensor, "time flat"]:
    """``x`` of shape (T, ...) as T rows; ValueError unless T is ``time``."""
    require_floating(x=x)
    if x.ndim == 0 or x.shape[0] != time:
        raise ValueError(f"x has shape {tuple(x.shape)}, expected time {time} as its first axis, as in the matrix")
    return x.reshape(time, math.prod(x.shape[1:]))


def dense(a: Transition, b: Float[Tensor, "time state"], c: Float[Tensor, "time state"]) -> Float[Tensor, "time time"]:
    """The matrix itself, ``M_ji = c_j^T A_j ... A_{i+1} b_i`` for j >= i and 0 above (``eq:sss``, ``eq:ssm-matrix``).

    Built one diagonal after another: ``w_i = A_{i+d} ... A_{i+1} b_i`` for all i gives the d-th, with no quotient.
    """
    time = len(b)
    if time == 0:
        return b.new_zeros(0, 0)
    w, diagonals = b, [(c * b).sum(-1)]
    for lag in range(1, time):
        w = act(a[lag:], w[:-1].unsqueeze(-1)).squeeze(-1)
        diagonals.append(pad((c[lag:] * w).sum(-1), (0, lag)))
    position = torch.arange(time, device=b.device)
    lags = position[:, None] - position
    return torch.stack(diagonals)[lags.clamp(min=0), position].tril()


def recurrent(
    a: Transition,
    b: Float[Tensor, "time state"],
    c: Float[Tensor, "time state"],
    x: Float[Tensor, "time columns"],
) -> Float[Tensor, "time columns"]:
    """The linear mode (Theorem ``thm:ssm-sss``): ``h_t = A_t h_{t-1} + b_t x_t``, ``y_t = c_t^T h_t`` (``eq:s6``).

    O(TN) operations a column for scalar and diagonal factors, O(TN^2) for dense ones.
    """
    h = x.new_zeros(b.shape[1], x.shape[1])
    outputs = []
    for t in range(len(x)):
        carried = act(a[t], h) if t else h
        h = carried + b[t, :, None] * x[t]
        outputs.append(c[t] @ h)
    return torch.stack(outputs) if outputs else x


def quadratic(
    a: Transition,
    b: Float[Tensor, "time state"],
    c: Float[Tensor, "time state"],
    x: Float[Tensor, "time columns"],
) -> Float[Tensor, "time columns"]:
    """The quadratic (naive) mode: materialise the (T, T) matrix, then multiply."""
    return dense(a, b, c) @ x


def chunked(
    a: Transition,
    b: Float[Tensor, "time state"],
    c: Float[Tensor, "time state"],
    x: Float[Tensor, "time columns"],
    chunk_size: int = 64,
) -> Float[Tensor, "time columns"]:
    """Both modes at once: blocks on the diagonal are quadratic, blocks below it go through a state between chunks.

    A block below the diagonal is its three factors of ``eq:sss-rank-factor``: the right one summarises a chunk into a
    state, the centre carries the state from chunk to chunk, the left one reads it. Any length: zeros fill the last
    chunk.
    """
    time = len(x)
    if time == 0:
        return x
    chunk_size = min(chunk_size, time)
    count = -(-time // chunk_size)

    def split(v: Tensor) -> Tensor:
        filled = pad(v, (0, 0) * (v.ndim - 1) + (0, count * chunk_size - time))
        return filled.reshape(count, chunk_size, *v.shape[1:])

    a, b, c, x = split(a), split(b), split(c), split(x)
    within = torch.vmap(dense)(a, b, c) @ x
    written = torch.vmap(right_factor)(a, b) @ x
    across = torch.vmap(products_from_first)(a)[:, -1]
    entering = [torch.zeros_like(written[0])]
    for k in range(1, count):
        entering.append(act(a[k, 0], act(across[k - 1], entering[-1]) + written[k - 1]))
    read = torch.vmap(left_factor)(a, c) @ torch.stack(entering)
    return (within + read).flatten(0, 1)[:time]


def contraction(
    a: Transition, b: Float[Tensor, "time state"], c: Float[Tensor, "time state"], x: Float[Tensor, "time columns"]
) -> Float[Tensor, "time columns"]:
    """A scalar or diagonal SSM in the three contractions of ``eq:ssm-diagonal``, tensors materialised as written.

        Z = contract(SP, SN -> SPN)(X, B)         expand the input
        H = contract(TSN, SPN -> TPN)(L, Z)       unroll N scalar recurrences, L[:, :, n] = 1SS(a[:, n])
        Y = contract(TN, TPN -> TP)(C, H)         contract the state

    For reading and checking: L alone takes (T, T, N) memory.
    """
    if a.ndim == 3:
        raise ValueError(
            f"algorithm is 'contraction' and a has shape {tuple(a.shape)}, expected scalar (time,) or diagonal "
            "(time, state) factors; choose another algorithm for dense ones"
        )
    L = one_semiseparable(as_diagonal(a, b.shape[1]).mT).movedim(0, -1)
    Z = torch.einsum("sp,sn->spn", x, b)
    H = torch.einsum("tsn,spn->tpn", L, Z)
    return torch.einsum("tn,tpn->tp", c, H)
