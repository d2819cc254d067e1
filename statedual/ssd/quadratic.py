"""The quadratic (dual) form, eq:ssm-quad: M = L * (C B^T) in full, then Y = M X. Masked attention without a softmax."""

import math

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from statedual.semiseparable.segment_sums import segment_sums
from statedual.shapes import B, C, LogA, X


def quadratic(
    x: X, log_a: LogA, b: B, c: C, state: Float[Tensor, "batch heads head_dim state"]
) -> tuple[Float[Tensor, "batch time heads head_dim"], Float[Tensor, "batch heads head_dim state"]]:
    """Y = (L * C B^T) X with L = 1SS(exp(log_a)); the initial state enters as a source before the first.

    Axis ``source`` of the mask has one column more than time: column 0 is the initial state.
    """
    heads = log_a.shape[2]
    if x.shape[1] == 0:
        return x.new_zeros(x.shape[0], 0, heads, x.shape[3]), state.clone()
    mask = segment_sums(pad(rearrange(log_a, "b t h -> b h t"), (1, 0))).exp()[:, :, 1:]
    from_start, mask = mask[..., 0], mask[..., 1:]
    gram = _gram(b, c)
    scores = (mask.unflatten(1, (gram.shape[1], -1)) * gram.unsqueeze(2)).flatten(1, 2)
    inside = torch.einsum("bgrts,bsgp->btgrp", scores.unflatten(1, (x.shape[2], -1)), x).flatten(2, 3)
    past = torch.einsum("bgrpn,btgn->btgrp", state.unflatten(1, (c.shape[2], -1)), c).flatten(2, 3)
    y = inside + rearrange(from_start, "b h t -> b t h 1") * past

    to_end = rearrange(mask[:, :, -1], "b h s -> b s h 1")
    weighted = (x.unsqueeze(3) * to_end.unflatten(2, (x.shape[2], -1))).flatten(2, 3)
    left = torch.einsum("bsgrp,bsgn->bgrpn", weighted.unflatten(2, (b.shape[2], -1)), b).flatten(1, 2)
    return y, from_start[:, :, -1, None, None] * state + left


def _gram(b: B, c: C) -> Float[Tensor, "batch grams time source"]:
    """C B^T for every distinct pair of groups; for all of their common refinement where neither divides the other."""
    refined = math.lcm(b.shape[2], c.shape[2])
    if refined > max(b.shape[2], c.shape[2]):
        b, c = (t.repeat_interleave(refined // t.shape[2], 2) for t in (b, c))
    lead = min(b.shape[2], c.shape[2])
    by_lead = (t.unflatten(2, (lead, -1)) for t in (c, b))
    return torch.einsum("btgjn,bsgin->bgijts", *by_lead).flatten(1, 3)
