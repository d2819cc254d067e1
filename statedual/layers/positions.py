"""Where a token stands in its own sequence."""

import torch
from jaxtyping import Int
from torch import Tensor

from statedual.shapes import Offsets
from statedual.ssd.inputs import read_offsets


def sequence_of(time: int, cu_seqlens: Offsets) -> Int[Tensor, " time"]:
    """The packed sequence to which each position belongs; empty sequences own none."""
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        read_offsets(cu_seqlens, time)  # elsewhere their values would have to be waited for
    here = torch.arange(time, device=cu_seqlens.device)
    return torch.bucketize(here, cu_seqlens[1:].long(), right=True)


def positions(time: int, length: Int[Tensor, " rows"], cu_seqlens: Offsets | None = None) -> Int[Tensor, "batch time"]:
    """length + 0, 1, 2, ... in every row; packed sequences each count from their own length."""
    here = torch.arange(time, device=length.device)
    if cu_seqlens is None:
        return length[:, None] + here
    row = sequence_of(time, cu_seqlens)
    return (here - cu_seqlens[:-1].long()[row] + length[row])[None]


def lengths(time: int, length: Int[Tensor, " rows"], cu_seqlens: Offsets | None = None) -> Int[Tensor, " rows"]:
    """How long every sequence is after ``time`` more positions, or after its packed piece."""
    return length + (time if cu_seqlens is None else cu_seqlens.long().diff())
