"""Sums over every segment of a sequence: the logarithm of a 1-semiseparable matrix."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad


def segment_sums(log_a: Float[Tensor, "*batch time"]) -> Float[Tensor, "*batch time source"]:
    """S[t, s] = log_a[s+1] + ... + log_a[t] for t >= s and -inf above, so that exp(S) = 1SS(exp(log_a)) (eq:1ss).

    The paper's listing takes S as a difference of two cumulative sums. That loses every digit of a small decay that
    follows a large one, and gives NaN after a decay of -inf. Here sums are only ever added: two neighbouring blocks
    become one twice as large, whose lower-left quadrant has rank one and is the sum of what lies after and before
    the border (the block decomposition of sec:scan, in logarithms). Float32 therefore keeps full relative accuracy at
    any length, and -inf ("forget") needs no special case, forward or backward.
    """
    time = log_a.shape[-1]
    if time == 0:
        return log_a.new_zeros(*log_a.shape, 0)
    size = 1 << (time - 1).bit_length()
    # Of each block: the matrix, the sums from its start to each position, those from after each position to its end.
    from_start = pad(log_a, (0, size - time)).unsqueeze(-1)
    to_end = torch.zeros_like(from_start)
    blocks = to_end.unsqueeze(-1)
    while blocks.shape[-1] < size:
        upper, lower = blocks[..., 0::2, :, :], blocks[..., 1::2, :, :]
        start_left, start_right = from_start[..., 0::2, :], from_start[..., 1::2, :]
        end_left, end_right = to_end[..., 0::2, :], to_end[..., 1::2, :]
        across = start_right.unsqueeze(-1) + end_left.unsqueeze(-2)
        above = torch.full_like(across, -math.inf)
        blocks = torch.cat([torch.cat([upper, above], -1), torch.cat([across, lower], -1)], -2)
        from_start = torch.cat([start_left, start_left[..., -1:] + start_right], -1)
        to_end = torch.cat([end_left + start_right[..., -1:], end_right], -1)
    return blocks[..., 0, :time, :time]
