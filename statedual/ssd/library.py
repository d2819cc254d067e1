"""Chunked forms as PyTorch operators, with their gradients: opaque to compilers, so they pass through them whole."""

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from statedual.ssd import chunked, chunked_backward
from statedual.ssd.inputs import compute_dtype, read_offsets, without_autocast
from statedual.ssd.passes import ChunkedForm, backward_pass, forward_pass
from statedual.ssd.segments import count_chunks


class Operators(NamedTuple):
    """A chunked form and its gradient as operators."""

    forward: Callable[..., tuple[Tensor, Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]


def register(name: str, form: ChunkedForm) -> Operators:
    """Define ``statedual::name``, which returns (y, final states, states kept for the backward), and its backward."""

    @torch.library.custom_op(f"statedual::{name}", mutates_args=())
    def forward(
        x: Tensor,
        log_a: Tensor,
        b: Tensor,
        c: Tensor,
        initial_state: Optional[Tensor],  # noqa: UP045 - the schema of an operator is read from these annotations
        cu_seqlens: Optional[Tensor],  # noqa: UP045
        chunk: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        like, inputs = x.new_empty(0, dtype=compute_dtype(x, log_a, b, c)), (x, log_a, b, c)
        with without_autocast(x.device):
            offsets = read_offsets(cu_seqlens, x.shape[1])
            return forward_pass(form, inputs, initial_state, offsets, form.walk(inputs, chunk, like), like, keep)

    @forward.register_fake
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
        del initial_state
        batch, time, _, p = x.shape
        heads, n = log_a.shape[2], b.shape[3]
        like = x.new_empty(0, dtype=compute_dtype(x, log_a, b, c))
        sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
        kept = count_chunks(batch, time, chunk, sequences) if keep else 0
        return (
            x.new_empty(batch, time, heads, p),
            like.new_empty(batch if sequences is None else sequences, heads, p, n),
            form.new_states(like, kept, heads, p, n),
        )

    @torch.library.custom_op(f"statedual::{name}_backward", mutates_args=())
    def backward(
        grad_y: Tensor,
        grad_final: Tensor,
        x: Tensor,
        log_a: Tensor,
        b: Tensor,
        c: Tensor,
        cu_seqlens: Optional[Tensor],  # noqa: UP045
        kept: Tensor,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        inputs = (x, log_a, b, c)
        with without_autocast(x.device):
            offsets = read_offsets(cu_seqlens, x.shape[1])
            walk = form.walk(inputs, chunk, kept)
            return backward_pass(form, grad_y, grad_final, inputs, kept, offsets, walk)

    @backward.register_fake
    def _(
        grad_y: Tensor,
        grad_final: Tensor,
        x: Tensor,
        log_a: Tensor,
        b: Tensor,
        c: Tensor,
        cu_seqlens: Tensor | None,
        kept: Tensor,
        chunk: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        del grad_y, cu_seqlens, kept, chunk
        grads = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, log_a, b, c, grad_final))
        return tuple(grads)  # type: ignore[return-value]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, log_a, b, c, initial_state, cu_seqlens, ctx.chunk, _ = inputs
        ctx.initial_dtype = None if initial_state is None else initial_state.dtype
        ctx.set_materialize_grads(False)  # or PyTorch would fill one for ``kept``, as large as that
        ctx.save_for_backward(x, log_a, b, c, cu_seqlens, output[2])

    def differentiate(
        ctx: Any, grad_y: Tensor | None, grad_final: Tensor | None, grad_kept: None
    ) -> tuple[Tensor | None, ...]:
        del grad_kept
        x, log_a, b, c, cu_seqlens, kept = ctx.saved_tensors  # once: checkpointing unpacks them by recomputing
        heads, sequences = log_a.shape[2], x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if grad_y is None:
            grad_y = x.new_zeros(x.shape[0], x.shape[1], heads, x.shape[3])
        if grad_final is None:
            grad_final = kept.new_zeros(sequences, heads, x.shape[3], b.shape[3])
        *grads, grad_initial = backward(grad_y, grad_final, x, log_a, b, c, cu_seqlens, kept, ctx.chunk)
        given = ctx.initial_dtype
        return *grads, None if given is None else grad_initial.to(given), None, None, None

    forward.register_autograd(differentiate, setup_context=setup_context)
    return Operators(forward, backward)


SSD = ChunkedForm(chunked.segment_forward, chunked_backward.segment_backward, chunked.elements, chunked.new_states)
ssd_chunked, ssd_chunked_backward = register("ssd_chunked", SSD)
