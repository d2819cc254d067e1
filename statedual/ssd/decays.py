"""The decays inside a chunk, and the way their gradient comes back: sums that are only ever added, never subtracted."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


def split_decay(log_a: Float[Tensor, "*shape"]) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """exp(log_a) as keep + change: 1 + expm1(log_a) for decays above a half, 0 + exp(log_a) below.

    For recurrences, which multiply by thousands of decays: as one float32 number exp(-1e-4) is off by 2e-8, and where
    decays are equal, to the same side at every step. h <- keep h + change h has no such drift.
    """
    weak = log_a > -0.69
    return weak.to(log_a.dtype), torch.where(weak, log_a.expm1(), log_a.exp())


class Total(NamedTuple):
    """What a state is multiplied with from border to border: ``keep`` alone, or ``in_two``, keep + change."""

    keep: Tensor
    change: Tensor
    in_two: bool


def total_decay(log_total: Float[Tensor, "*shape"], chunks: int) -> Total:
    """exp(log_total), in two parts (``split_decay``) for states that pass through many ``chunks``.

    One float32 number for each of 100 chunks is off by 3e-6 in all at the most, and spares a pass over the states.
    """
    if chunks > 100:
        return Total(*split_decay(log_total), in_two=True)
    decay = log_total.exp()
    return Total(decay, decay, in_two=False)


def fill_decays(
    log_a: Float[Tensor, "chunk heads size"], matrix: Float[Tensor, "chunk heads size size"]
) -> tuple[Float[Tensor, "chunk heads size"], Float[Tensor, "chunk heads size"]]:
    """Write L = 1SS(exp(log_a)) below the diagonal of ``matrix``; return the decays from the start and to the end.

        L[l, s]       = exp(log_a[s+1] + ... + log_a[l])     s < l; all else is the caller's: 0 above, 1 on it
        from_start[l] = exp(log_a[0] + ... + log_a[l])
        to_end[s]     = exp(log_a[s+1] + ... + log_a[size-1])

    ``semiseparable.segment_sums`` has the argument. This is its in-place twin for a work buffer: half the matrix is
    written, once, and only ``size`` exponentials are taken a level. ``size`` is a power of two; pad with zeros.
    """
    size = log_a.shape[-1]
    # Quadrants of one or two positions are too small for a call each: they lie on three diagonals.
    decay, diagonal = log_a.exp(), torch.ones_like(log_a)
    for k in range(1, min(4, size)):
        below = matrix.diagonal(-k, -2, -1)
        diagonal = torch.mul(diagonal[..., : size - k], decay[..., k:], out=below)
    start, end = log_a.clone(), torch.zeros_like(log_a)
    half = 1
    while half < size:
        start_left, start_right = start.unflatten(-1, (-1, 2, half)).unbind(-2)
        end_left = end.unflatten(-1, (-1, 2, half))[..., 0, :]
        if half > 2:
            # The lower-left quadrant of every block of size 2 * half on the diagonal:
            # (chunk, heads, half, half, blocks).
            blocks = matrix.unflatten(-1, (-1, 2, half)).unflatten(-4, (-1, 2, half))
            quadrants = blocks[..., 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
            torch.mul(start_right.exp().unsqueeze(-1), end_left.exp().unsqueeze(-2), out=quadrants)
        end_left += start_right[..., -1:]
        start_right += start_left[..., -1:]
        half *= 2
    return start.exp_(), end.exp_()


def crossing_sums(d: Float[Tensor, "*batch rows columns"], first_row: int = 0) -> Float[Tensor, "*batch columns"]:
    """out[t] = sum of d[l, s] over s < t <= l, all paths through decay t. Row r of ``d`` is l = first_row + r.

    This is the gradient of log_a when d = L * dL. Row sums minus column sums would give it more cheaply, and wrongly:
    the large entries near the diagonal cancel and bury what strong decays leave.
    """
    crossing = torch.zeros_like(d[..., 0, :])
    crossing[..., 1:] = d.cumsum_(-1).tril_(first_row - 1).sum(-2)[..., :-1]
    return crossing
