"""Padding is never computed with: the tokens of all rows are packed behind one another, and put back."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional


def pack(
    ids: Int[Tensor, "batch time"], mask: Bool[Tensor, "batch time"]
) -> tuple[Int[Tensor, "1 tokens"], Int[Tensor, " offsets"], Int[Tensor, " tokens"]]:
    """The tokens where ``mask`` is True, the offsets of the rows, and where in ids.flatten() each token stood."""
    where = mask.flatten().nonzero()[:, 0]
    offsets = functional.pad(mask.sum(1).cumsum(0), (1, 0))
    return ids.flatten()[where][None], offsets, where


def unpack(
    packed: Float[Tensor, "1 tokens width"], where: Int[Tensor, " tokens"], shape: torch.Size
) -> Float[Tensor, "batch time width"]:
    """The inverse of ``pack`` for what was computed of the tokens; zeros at padding."""
    flat = packed.new_zeros(shape.numel(), packed.shape[-1])
    padded: Tensor = flat.index_copy(0, where, packed[0]).unflatten(0, shape)
    return padded
