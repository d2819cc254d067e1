"""A chunked form along whole sequences: its segments forwards for the output, backwards for the gradient.

What happens inside a segment is the form's own (``ChunkedForm``). Between chunks only states pass: the forward keeps
the one that enters each of them, and the backward recomputes everything else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from statedual.shapes import State
from statedual.ssd.chunk import Buffers, Chunks
from statedual.ssd.segments import Walk, count_chunks

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


def plain_states(like: Tensor, count: int, heads: int, head_dim: int, state: int) -> State:
    """Uninitialised states as their axes say."""
    return like.new_empty(count, heads, head_dim, state)


@dataclass(frozen=True)
class ChunkedForm:
    """The inside of a segment. ``inputs`` are the whole x, log_a, b, c; ``chunks`` says which part is meant.

    forward(chunks, inputs, state, entering, y)              writes y and the states that enter the chunks; moves state
    backward(chunks, inputs, entering, grad_y, grad_state, grads)       writes grads; moves grad_state back
    elements(x, log_a, b, chunk)                             numbers held in buffers for one chunk of one row
    new_states(like, count, heads, head_dim, state)          uninitialised, in the order in memory that suits the form
    """

    forward: Callable[[Chunks, Inputs, Tensor, Tensor, Tensor], None]
    backward: Callable[[Chunks, Inputs, Tensor, Tensor, Tensor, Inputs], None]
    elements: Callable[[Tensor, Tensor, Tensor, int], int]
    new_states: Callable[[Tensor, int, int, int, int], Tensor] = plain_states

    def walk(self, inputs: Inputs, chunk: int, like: Tensor) -> Walk:
        """How these inputs are cut when numbers are held as ``like``."""
        x, log_a, b, _ = inputs
        elements = self.elements(x, log_a, b, min(chunk, max(1, x.shape[1])))
        return Walk.plan(x.shape[0], x.shape[1], chunk, elements, like)


def forward_pass(
    form: ChunkedForm,
    inputs: Inputs,
    initial_state: Tensor | None,
    offsets: list[int] | None,
    walk: Walk,
    like: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, final states, the states that enter all chunks if ``keep``), computed in ``like.dtype``."""
    x, log_a, b, c = inputs
    batch, time, _, p = x.shape
    heads, n = log_a.shape[2], b.shape[3]
    sequences = None if offsets is None else len(offsets) - 1
    states = form.new_states(like, batch if sequences is None else sequences, heads, p, n)
    if initial_state is None:
        states.zero_()
    else:
        states.copy_(initial_state)
    y = x.new_empty(batch, time, heads, p)
    count = count_chunks(batch, time, walk.chunk, sequences)
    kept = form.new_states(like, count if keep else 0, heads, p, n)
    passing = kept if keep else form.new_states(like, min(count, walk.rows * walk.chunks), heads, p, n)
    if 0 in (p, n):  # no state: nothing comes out
        return y.zero_(), states.contiguous(), kept
    buffers, filled = Buffers(like), 0
    for run in walk.runs(batch, time, offsets):
        for segment in run.segments:
            chunks = Chunks(buffers, segment, heads, b.shape[2], c.shape[2])
            form.forward(chunks, inputs, states[run.states], chunks.entering(passing, filled), y)
            filled += chunks.count if keep else 0
    kept[filled:] = 0  # an operator returns no memory as it was found
    return y, states.contiguous(), kept


def backward_pass(
    form: ChunkedForm,
    grad_y: Tensor,
    grad_final: Tensor,
    inputs: Inputs,
    kept: Tensor,
    offsets: list[int] | None,
    walk: Walk,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, log_a, b, c and the initial states."""
    x, log_a, b, c = inputs
    grad_x, grad_log_a, grad_b, grad_c = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in inputs)
    grads = (grad_x, grad_log_a, grad_b, grad_c)
    grad_states = form.new_states(grad_final, *grad_final.shape).copy_(grad_final)
    if 0 in grad_states.shape[2:]:
        return grad_x.zero_(), grad_log_a.zero_(), grad_b.zero_(), grad_c.zero_(), grad_states.contiguous()
    buffers, runs = Buffers(grad_states), list(walk.runs(x.shape[0], x.shape[1], offsets))
    filled = sum(segment.chunks * segment.rows for run in runs for segment in run.segments)
    for run in reversed(runs):
        for segment in reversed(run.segments):
            chunks = Chunks(buffers, segment, log_a.shape[2], b.shape[2], c.shape[2])
            filled -= chunks.count
            form.backward(chunks, inputs, chunks.entering(kept, filled), grad_y, grad_states[run.states], grads)
    return *grads, grad_states.contiguous()
