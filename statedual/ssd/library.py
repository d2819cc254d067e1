"""The chunked form as a PyTorch operator, with its gradient: opaque to compilers, so they pass through it whole."""

from typing import Any, Optional

import torch
from torch import Tensor

from statedual.ssd.chunked import chunked_forward
from statedual.ssd.chunked_backward import chunked_backward
from statedual.ssd.inputs import compute_dtype, read_offsets
from statedual.ssd.segments import Walk


def _walk(x: Tensor, log_a: Tensor, b: Tensor, chunk: int, like: Tensor) -> Walk:
    chunk = min(chunk, max(1, x.shape[1]))
    return Walk.plan(x.shape[0], x.shape[1], log_a.shape[2], x.shape[3], b.shape[3], chunk, like)


@torch.library.custom_op("statedual::ssd_chunked", mutates_args=())
def ssd_chunked(
    x: Tensor,
    log_a: Tensor,
    b: Tensor,
    c: Tensor,
    initial_state: Optional[Tensor],  # noqa: UP045 - the schema of an operator is read from these annotations
    cu_seqlens: Optional[Tensor],  # noqa: UP045
    chunk: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, final states, states kept for the backward)."""
    like = x.new_empty(0, dtype=compute_dtype(x, log_a, b, c))
    with torch.autocast(x.device.type, enabled=False):
        offsets = read_offsets(cu_seqlens, x.shape[1])
        walk = _walk(x, log_a, b, chunk, like)
        return chunked_forward(x, log_a, b, c, initial_state, offsets, walk, like, keep)


@ssd_chunked.register_fake
def _(
    x: Tensor,
    log_a: Tensor,
    b: Tensor,
    c: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    chunk: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, time, _, p = x.shape
    heads, n = log_a.shape[2], b.shape[3]
    like = x.new_empty(0, dtype=compute_dtype(x, log_a, b, c))
    sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    kept = _walk(x, log_a, b, chunk, like).borders(batch, time, sequences) if keep else 0
    return (
        x.new_empty(batch, time, heads, p),
        like.new_empty(batch if sequences is None else sequences, heads, p, n),
        like.new_empty(kept, heads, p, n),
    )


@torch.library.custom_op("statedual::ssd_chunked_backward", mutates_args=())
def ssd_chunked_backward(
    grad_y: Tensor,
    grad_final: Tensor,
    x: Tensor,
    log_a: Tensor,
    b: Tensor,
    c: Tensor,
    initial_state: Optional[Tensor],  # noqa: UP045
    cu_seqlens: Optional[Tensor],  # noqa: UP045
    kept: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, log_a, b, c and the initial states."""
    with torch.autocast(x.device.type, enabled=False):
        offsets = read_offsets(cu_seqlens, x.shape[1])
        walk = _walk(x, log_a, b, chunk, kept)
        return chunked_backward(grad_y, grad_final, x, log_a, b, c, initial_state, kept, offsets, walk)


@ssd_chunked_backward.register_fake
def _(
    grad_y: Tensor,
    grad_final: Tensor,
    x: Tensor,
    log_a: Tensor,
    b: Tensor,
    c: Tensor,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    kept: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    del grad_y, initial_state, cu_seqlens, kept, chunk
    grads = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, log_a, b, c))
    return (*grads, torch.empty_like(grad_final, memory_format=torch.contiguous_format))  # type: ignore[return-value]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, log_a, b, c, initial_state, cu_seqlens, ctx.chunk, _ = inputs
    ctx.save_for_backward(x, log_a, b, c, initial_state, cu_seqlens, output[2])


def _backward(ctx: Any, grad_y: Tensor, grad_final: Tensor, grad_kept: Tensor) -> tuple[Tensor | None, ...]:
    del grad_kept
    *saved, kept = ctx.saved_tensors
    grads = ssd_chunked_backward(grad_y, grad_final, *saved, kept, ctx.chunk)
    initial_state = saved[4]
    grad_initial = None if initial_state is None else grads[4].to(initial_state.dtype)
    return *grads[:4], grad_initial, None, None, None


ssd_chunked.register_autograd(_backward, setup_context=_setup_context)
