"""A chunked form along whole sequences: its segments forwards for the output, backwards for the gradient.

What happens inside a segment is the form's own (``ChunkedForm``). Between segments only states pass: the forward keeps
the state that enters each of them, and the backward recomputes everything else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from statedual.ssd.chunk import Buffers, Chunks
from statedual.ssd.segments import Walk

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class ChunkedForm:
    """The inside of a segment. ``inputs`` are the whole x, log_a, b, c; ``chunks`` says which part is meant.

    forward(chunks, inputs, entry, y)                              writes y, returns the state at the segment's end
    backward(chunks, inputs, entry, grad_y, grad_exit, grads)      writes grads, returns the gradient of ``entry``
    elements(x, log_a, b, chunk)                                   numbers held in buffers for one chunk of one row
    """

    forward: Callable[[Chunks, Inputs, Tensor, Tensor], Tensor]
    backward: Callable[[Chunks, Inputs, Tensor, Tensor, Tensor, Inputs], Tensor]
    elements: Callable[[Tensor, Tensor, Tensor, int], int]

    def walk(self, inputs: Inputs, chunk: int, like: Tensor) -> Walk:
        """How these inputs are cut when numbers are held as ``like``."""
        x, log_a, b, _ = inputs
        chunk = torch.sym_min(chunk, torch.sym_max(1, x.shape[1]))
        return Walk.plan(x.shape[0], x.shape[1], chunk, self.elements(x, log_a, b, chunk), like)


def forward_pass(
    form: ChunkedForm,
    inputs: Inputs,
    initial_state: Tensor | None,
    offsets: list[int] | None,
    walk: Walk,
    like: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, final states, the states that later segments of a run start from if ``keep``), computed in ``like.dtype``."""
    x, log_a, b, c = inputs
    batch, time, _, p = x.shape
    heads, n = log_a.shape[2], b.shape[3]
    sequences = None if offsets is None else len(offsets) - 1
    states = like.new_zeros(batch if sequences is None else sequences, heads, p, n)
    if initial_state is not None:
        states.copy_(initial_state)
    y = x.new_empty(batch, time, heads, p)
    kept = like.new_empty(walk.borders(batch, time, sequences) if keep else 0, heads, p, n)
    buffers, filled = Buffers(like), 0
    for run in walk.runs(batch, time, offsets):
        state = states[run.states]
        for index, segment in enumerate(run.segments):
            if keep and index > 0:
                kept[filled : filled + segment.rows] = state
                filled += segment.rows
            chunks = Chunks(buffers, segment, heads, b.shape[2], c.shape[2])
            state.copy_(form.forward(chunks, inputs, state, y))
    kept[filled:] = 0  # an operator returns no memory as it was found
    return y, states, kept


def backward_pass(
    form: ChunkedForm,
    grad_y: Tensor,
    grad_final: Tensor,
    inputs: Inputs,
    initial_state: Tensor | None,
    kept: Tensor,
    offsets: list[int] | None,
    walk: Walk,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, log_a, b, c and the initial states."""
    x, log_a, b, c = inputs
    grad_x, grad_log_a, grad_b, grad_c = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in inputs)
    grads = (grad_x, grad_log_a, grad_b, grad_c)
    grad_states = grad_final.clone(memory_format=torch.contiguous_format)
    zero = grad_states.new_zeros(()).expand_as(grad_states)
    start = zero if initial_state is None else initial_state
    buffers, runs = Buffers(grad_states), list(walk.runs(x.shape[0], x.shape[1], offsets))
    filled = sum(segment.rows for run in runs for segment in run.segments[1:])
    for run in reversed(runs):
        grad_state = grad_states[run.states]
        for index, segment in reversed(list(enumerate(run.segments))):
            entry = start[run.states]
            if index > 0:
                filled -= segment.rows
                entry = kept[filled : filled + segment.rows]
            chunks = Chunks(buffers, segment, log_a.shape[2], b.shape[2], c.shape[2])
            grad_state.copy_(form.backward(chunks, inputs, entry, grad_y, grad_state, grads))
    return *grads, grad_states
