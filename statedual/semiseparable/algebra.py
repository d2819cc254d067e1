"""Sums, products and inverses of SSS representations (Proposition ``prop:ss-closure``), built exactly.

Each function takes and returns representations ``(a, b, c)``, in the cheapest structure of ``a`` that holds the result
whatever the values: a sum of scalar or diagonal ones is diagonal, everything else is dense.
"""

from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.semiseparable.transition import as_dense, as_diagonal

Representation: TypeAlias = tuple[Float[Tensor, "time ..."], Float[Tensor, "time _"], Float[Tensor, "time _"]]
"""``(a, b, c)``. The axis of states has no name: representations of several orders meet in one signature."""


def add(first: Representation, second: Representation) -> Representation:
    """``M1 + M2`` of order N + P: two SSMs side by side on one input, their outputs summed.

    A = [[A1, 0], [0, A2]],  b = [b1; b2],  c = [c1; c2].
    """
    (a1, b1, c1), (a2, b2, c2) = first, second
    n, p = b1.shape[1], b2.shape[1]
    if a1.ndim < 3 and a2.ndim < 3:
        a = torch.cat([as_diagonal(a1, n), as_diagonal(a2, p)], dim=-1)
    else:
        above = b1.new_zeros(len(b1), n, p)
        a = _blocks(as_dense(a1, n), above, above.mT, as_dense(a2, p))
    return a, torch.cat([b1, b2], dim=-1), torch.cat([c1, c2], dim=-1)


def multiply(first: Representation, second: Representation) -> Representation:
    """``M1 M2`` of order N + P: the output of the second SSM is the input of the first.

    With the state (h2, h1):  A = [[A2, 0], [b1 c2^T A2, A1]],  b = [b2; b1 (c2^T b2)],  c = [0; c1].
    """
    (a1, b1, c1), (a2, b2, c2) = first, second
    n, p = b1.shape[1], b2.shape[1]
    a1, a2 = as_dense(a1, n), as_dense(a2, p)
    coupling = b1.unsqueeze(-1) @ (c2.unsqueeze(-2) @ a2)
    a = _blocks(a2, b1.new_zeros(len(b1), p, n), coupling, a1)
    b = torch.cat([b2, b1 * (c2 * b2).sum(-1, keepdim=True)], dim=-1)
    c = torch.cat([torch.zeros_like(c2), c1], dim=-1)
    return a, b, c


def invert(representation: Representation) -> Representation:
    """``M^-1`` of order N + 1, for a diagonal ``d_t = c_t^T b_t`` without zeros.

    Solving ``y_t = c_t^T A_t h_{t-1} + d_t x_t`` for x_t makes y the input of the same recurrence:

        x_t = (y_t - c_t^T A_t h_{t-1}) / d_t,      h_t = A_t h_{t-1} + b_t x_t

    The output x_t reads h_{t-1}, which the paper's form reads only through h_t; so x_t becomes one more coordinate:
    with the state (h, x), A = [[A - b r, 0], [-r, 0]] where r = c^T A / d,  b = [b / d; 1 / d],  c = [0; 1].
    """
    a, b, c = representation
    diagonal = (c * b).sum(-1, keepdim=True)
    zeros = (diagonal.squeeze(-1) == 0).nonzero().flatten().tolist()
    if zeros:
        raise ValueError(
            f"the matrix has zeros on its diagonal, c_t . b_t = 0 at positions {zeros}, expected none: it is singular; "
            "add a nonzero diagonal matrix to it first"
        )
    a = as_dense(a, b.shape[1])
    read = c.unsqueeze(-2) @ a / diagonal.unsqueeze(-1)
    no_column = b.new_zeros(len(b), b.shape[1], 1)
    closed = _blocks(a - b.unsqueeze(-1) @ read, no_column, -read, b.new_zeros(len(b), 1, 1))
    return (
        closed,
        torch.cat([b, torch.ones_like(diagonal)], dim=-1) / diagonal,
        torch.cat([torch.zeros_like(c), torch.ones_like(diagonal)], dim=-1),
    )


def _blocks(top_left: Tensor, top_right: Tensor, bottom_left: Tensor, bottom_right: Tensor) -> Tensor:
    top, bottom = torch.cat([top_left, top_right], dim=-1), torch.cat([bottom_left, bottom_right], dim=-1)
    return torch.cat([top, bottom], dim=-2)
