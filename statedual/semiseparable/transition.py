"""The factors ``A_t`` of an SSS representation: scalar, diagonal or dense, told apart by their number of axes.

    scalar    (T,)         A_t = a_t I          diagonal  (T, N)       A_t = diag(a_t)
    dense     (T, N, N)    A_t = a_t

Products follow the paper's notation ``A_{j:i}^x = A_j ... A_{i+1}``, so that ``A_{i:i}^x`` is the identity.
"""

from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Transition: TypeAlias = Float[Tensor, " time"] | Float[Tensor, "time state"] | Float[Tensor, "time state state"]


def act(
    a: Float[Tensor, "*transition"], h: Float[Tensor, "*lead state columns"]
) -> Float[Tensor, "*lead state columns"]:
    """``A h``, where ``a`` has the leading axes of ``h`` followed by none (scalar), one (diagonal) or two (dense)."""
    match a.ndim - h.ndim + 2:
        case 0:
            return a[..., None, None] * h
        case 1:
            return a[..., None] * h
        case _:
            return a @ h


def transpose(a: Transition) -> Transition:
    """``A_t^T`` for every t: only a dense factor changes."""
    return a.mT if a.ndim == 3 else a


def products_from_first(a: Transition) -> Transition:
    """``A_{t:0}^x = A_t ... A_1`` for every t, in the structure of ``a``; ``A_0`` is never read."""
    if a.ndim < 3:
        return torch.cat([torch.ones_like(a[:1]), a[1:]]).cumprod(dim=0)
    products = [torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)]
    for factor in a[1:]:
        products.append(factor @ products[-1])
    return torch.stack(products)[: len(a)]


def products_to_last(a: Transition) -> Transition:
    """``A_{T-1:t}^x = A_{T-1} ... A_{t+1}`` for every t, in the structure of ``a``; ``A_0`` is never read."""
    shifted = torch.cat([a[:1], a[1:].flip(0)])
    return transpose(products_from_first(transpose(shifted))).flip(0)


def left_factor(a: Transition, c: Float[Tensor, "time state"]) -> Float[Tensor, "time state"]:
    """Rows ``C_t^T A_{t:0}^x``: what every output reads from a state that has entered at the first position."""
    return act(transpose(products_from_first(a)), c.unsqueeze(-1)).squeeze(-1)


def right_factor(a: Transition, b: Float[Tensor, "time state"]) -> Float[Tensor, "state time"]:
    """Columns ``A_{T-1:t}^x B_t``: what every input leaves in the state at the last position."""
    return act(products_to_last(a), b.unsqueeze(-1)).squeeze(-1).mT


def as_diagonal(a: Float[Tensor, " time"] | Float[Tensor, "time state"], order: int) -> Float[Tensor, "time {order}"]:
    """A scalar or diagonal factor as a diagonal one."""
    return a.unsqueeze(-1).expand(-1, order) if a.ndim == 1 else a


def as_dense(a: Transition, order: int) -> Float[Tensor, "time {order} {order}"]:
    """Any factor as a dense one."""
    return a if a.ndim == 3 else torch.diag_embed(as_diagonal(a, order))
