"""What ``ssd`` asks of its arguments, said in one place for every form and backend."""

import itertools
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from statedual.checks import (
    require_divides,
    require_floating,
    require_ndim,
    require_one_device,
    require_positive,
    require_sizes,
)


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any input is; otherwise float32: decays, states and products never have fewer bits (DESIGN 6)."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Products in the precision of their factors, whatever the caller's autocast says ("meta" has no autocast)."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def needs_gradient(*inputs: Tensor | None) -> bool:
    """Whether a chunked form has to keep what its backward starts from. There is no forward-mode derivative."""
    given = [t for t in inputs if t is not None]
    if not torch.compiler.is_compiling() and any(forward_ad.unpack_dual(t).tangent is not None for t in given):
        raise ValueError("an input has a tangent, expected none: use form='recurrent' for forward-mode derivatives")
    return torch.is_grad_enabled() and any(t.requires_grad for t in given)


def check_inputs(
    x: Tensor,
    log_a: Tensor,
    b: Tensor,
    c: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    chunk_size: int | None,
    validate: bool,
    *,
    diagonal: bool = False,
) -> None:
    """Shapes, dtypes and devices; values of the decays only on request, for they cost a pass and a synchronisation.

    ``diagonal``: ``log_a`` has one decay for each channel of the state.
    """
    require_floating(x=x, log_a=log_a, b=b, c=c, initial_state=initial_state)
    require_one_device(x=x, log_a=log_a, b=b, c=c, initial_state=initial_state, cu_seqlens=cu_seqlens)
    require_ndim("x", x, "batch time heads_x head_dim")
    batch, time, _, head_dim = x.shape
    by_state: dict[str, int | None] = {"state": None} if diagonal else {}
    require_sizes("log_a", log_a, {"batch": batch, "time": time, "heads": None, **by_state}, "x")
    state = log_a.shape[3] if diagonal else None
    require_sizes("b", b, {"batch": batch, "time": time, "heads_b": None, "state": state}, "x and log_a")
    require_sizes("c", c, {"batch": batch, "time": time, "heads_c": None, "state": b.shape[3]}, "x and b")
    heads = log_a.shape[2]
    for name, tensor in (("x", x), ("b", b), ("c", c)):
        require_divides(name, tensor.shape[2], heads)
    sequences = batch
    if cu_seqlens is not None:
        check_offsets_shape(cu_seqlens, batch)
        sequences = cu_seqlens.shape[0] - 1
    if initial_state is not None:
        wanted = {"sequences": sequences, "heads": heads, "head_dim": head_dim, "state": b.shape[3]}
        source = "log_a, x and b" if cu_seqlens is None else "cu_seqlens, log_a, x and b"
        require_sizes("initial_state", initial_state, wanted, source)
    if chunk_size is not None:
        require_positive("chunk_size", chunk_size)
    if validate:
        check_decays(log_a)


def check_offsets_shape(cu_seqlens: Tensor, batch: int) -> None:
    """Packed sequences lie behind one another in a single row."""
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens has dtype {cu_seqlens.dtype}, expected int32 or int64 offsets")
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 1:
        raise ValueError(
            f"cu_seqlens has shape {tuple(cu_seqlens.shape)}, expected (num_seqs + 1,): "
            "the first offset is 0, each next one the end of a sequence"
        )
    if batch != 1:
        raise ValueError(
            f"cu_seqlens was given with batch {batch}, expected batch 1: packed sequences share one row; "
            "reshape x, log_a, b and c to (1, batch * time, ...)"
        )


def read_offsets(cu_seqlens: Tensor | None, time: int) -> list[int] | None:
    """The offsets as integers, their values checked. The one place that waits for the device."""
    if cu_seqlens is None:
        return None
    offsets: list[int] = cu_seqlens.tolist()
    if offsets[0] != 0:
        raise ValueError(f"cu_seqlens starts at {offsets[0]}, expected 0")
    for index, (start, stop) in enumerate(itertools.pairwise(offsets)):
        if stop < start:
            raise ValueError(
                f"cu_seqlens decreases from {start} to {stop} at index {index + 1}, expected offsets in rising order"
            )
    if offsets[-1] != time:
        raise ValueError(f"cu_seqlens ends at {offsets[-1]}, expected {time}, the time of x")
    return offsets


def check_decays(log_a: Tensor) -> None:
    """Decays are at most 1 (``validate=True``)."""
    wrong = ~(log_a <= 0)
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"log_a is {log_a[where].item():g} at {where}, expected at most 0 everywhere (-inf means forget); "
            "log_a is the logarithm of the decay, -softplus(dt) * exp(A_log) for example"
        )
