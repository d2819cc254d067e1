"""The inside of a chunk, cut in halves: every pair of a source and a target meets at exactly one border.

A source s < l of a target l lies left of it at just one level of a binary tree over the chunk: the level whose border
runs between them. With that border as the point of reference the decay of the pair is a product of two factors,

    exp(log_a[s+1] + ... + log_a[l]) = exp(log_a[s+1] + ... up to the border) * exp(from the border on + ... + log_a[l])

each at most 1, whatever the decays. So each level is one matrix product of C and B, weighted by these factors for each
state channel: nothing overflows, nothing is divided, and decays are only ever multiplied.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Held = Float[Tensor, "count heads size state"]
Scores = Float[Tensor, "count heads size size"]


def halves(held: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """The left and right halves of all blocks of 2 * half positions: views (..., blocks, half, width)."""
    left, right = held.unflatten(-2, (-1, 2, half)).unbind(-3)
    return left, right


def quadrants(scores: Scores, half: int) -> Float[Tensor, "count heads blocks half half"]:
    """The lower left quadrants of the blocks of 2 * half on the diagonal, as a view: right targets, left sources."""
    blocks: Tensor = scores.unflatten(3, (-1, 2, half)).unflatten(2, (-1, 2, half))
    return blocks[:, :, :, 1, :, :, 0].diagonal(dim1=2, dim2=4).movedim(-1, 2)


def fill_border_decays(
    log_a: Held, levels: Float[Tensor, "levels count heads size state"], start: Held, end: Held
) -> None:
    """Write the decays between every position and its border, for each level; and those to both ends of the chunk.

    levels[k][s] = exp(log_a[s+1] + ... ) up to the end of its half (of 2^k positions) for s on the left of a border,
    levels[k][l] = exp( ... + log_a[l]) from the start of its half for l on the right. start[l] is the decay from the
    chunk's start up to l included, end[s] that after s to the chunk's end. ``size`` is a power of two.
    """
    torch.exp(log_a, out=start)
    end.fill_(1)
    for k, level in enumerate(levels):
        half = 1 << k
        (start_left, start_right), (end_left, _) = halves(start, half), halves(end, half)
        level_left, level_right = halves(level, half)
        level_left.copy_(end_left)
        level_right.copy_(start_right)
        end_left *= start_right[..., -1:, :]
        start_right *= start_left[..., -1:, :]


def pass_down(grad_start: Held, grad_end: Held, grad_level: Held, half: int) -> None:
    """The adjoint of one level of ``fill_border_decays``, in place, from the top of the tree downwards.

    All three are gradients of the logarithms. At the bottom ``grad_start`` is the gradient of log_a.
    """
    (start_left, start_right), (end_left, _) = halves(grad_start, half), halves(grad_end, half)
    level_left, level_right = halves(grad_level, half)
    start_left[..., -1, :] += start_right.sum(-2)
    start_right[..., -1, :] += end_left.sum(-2)
    end_left += level_left
    start_right += level_right
