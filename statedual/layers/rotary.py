"""Rotary position embedding (RoPE, Su et al. 2021): a query and a key meet at the angle of their distance."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from statedual.ssd.inputs import compute_dtype


def rotate(
    x: Float[Tensor, "batch time heads head_dim"],
    positions: Int[Tensor, "#batch time"],
    rotary_dim: int,
    base: float = 10000.0,
) -> Float[Tensor, "batch time heads head_dim"]:
    """Turn the pairs (x_i, x_{i + r/2}), i < r/2 with r = ``rotary_dim``, by positions * base^(-2i/r).

    The pairs are the two halves of the first ``rotary_dim`` numbers of a head, as in GPT-NeoX, not neighbours. The rest
    of the head stays as it is. Products are at least float32; the result has the dtype of ``x``.
    """
    half = rotary_dim // 2
    # An angle is as large as its position: float32 would leave position 100,000 with two digits behind the point.
    # Apple's GPUs have no float64.
    exact = torch.float32 if x.device.type == "mps" else torch.float64
    frequency = base ** (torch.arange(half, dtype=exact, device=x.device) / -half)
    angle = positions[:, :, None, None] * frequency
    dtype = compute_dtype(x)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    left, right, rest = x.to(dtype).split([half, half, x.shape[3] - 2 * half], dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], dim=-1).to(x.dtype)
