"""The algorithms that multiply by ``M = SSS(a, b, c)``: each is an order of contraction of the same product ``M x``.

All take ``x`` as (T, P), ``P`` columns that share the matrix, and need one dtype among their arguments.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from statedual.semiseparable.transition import (
    Transition,
    act,
    as_diagonal,
    left_factor,
    products_from_first,
    right_factor,
)


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
    outputs = []
    for t in range(len(x)):
        expanded = b[t, :, None] * x[t]
        h = act(a[t], h) + expanded if t else expanded
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
    count = -(-time // chunk_size)

    def split(v: Tensor) -> Tensor:
        return pad(v, (0, 0) * (v.ndim - 1) + (0, count * chunk_size - time)).unflatten(0, (count, chunk_size))

    a, b, c, x = split(a), split(b), split(c), split(x)
    within = torch.vmap(dense)(a, b, c) @ x
    written = torch.vmap(right_factor)(a, b) @ x
    across = torch.vmap(products_from_first)(a)[:, -1]
    entering = [torch.zeros_like(written[0])]
    for k in range(1, count):
        entering.append(act(a[k, 0], act(across[k - 1], entering[-1]) + written[k - 1]))
    read = torch.vmap(left_factor)(a, c) @ torch.stack(entering)
    return (within + read).flatten(0, 1)[:time]


def diagonal_contraction(
    a: Float[Tensor, " time"] | Float[Tensor, "time state"],
    b: Float[Tensor, "time state"],
    c: Float[Tensor, "time state"],
    x: Float[Tensor, "time columns"],
) -> Float[Tensor, "time columns"]:
    """A scalar or diagonal SSM in the three contractions of ``eq:ssm-diagonal``, tensors materialised as written.

        Z = contract(SP, SN -> SPN)(X, B)         expand the input
        H = contract(TSN, SPN -> TPN)(L, Z)       unroll N scalar recurrences, L[:, :, n] = 1SS(a[:, n])
        Y = contract(TN, TPN -> TP)(C, H)         contract the state

    The paper's definition, kept for reading and checking: L alone takes (T, T, N) memory.
    """
    if a.ndim > 2:
        raise ValueError(
            f"a has shape {tuple(a.shape)}, expected scalar (time,) or diagonal (time, state) factors; "
            "multiply by a dense SSM with SemiseparableMatrix(a, b, c).matmul(x)"
        )
    ones = torch.ones_like(b[:, :1])
    L = torch.vmap(dense, in_dims=(1, None, None), out_dims=2)(as_diagonal(a, b.shape[1]), ones, ones)
    Z = torch.einsum("sp,sn->spn", x, b)
    H = torch.einsum("tsn,spn->tpn", L, Z)
    return torch.einsum("tn,tpn->tp", c, H)
