"""The chunked form: the block decomposition of sec. 6 (thm:algorithm).

    right factors    z_k     = sum_s to_end[s] x_s outer b_s          the state that chunk k alone leaves
    center factors   h_{k+1} = total_k h_k + z_k                      the states at the borders
    left factors     y[l]    = from_start[l] h_k c_l                  what the past contributes
    diagonal blocks  y[l]   += sum_s L[l, s] (c_l . b_s) x_s          what the chunk itself contributes

The sequence is walked in segments of a few chunks. Memory beyond input and output is that of one segment; its work is
matrix products, those of heads that share b or c joined into one.
"""

import torch
from torch import Tensor

from statedual.ssd.chunk import Buffers, Chunks
from statedual.ssd.segments import Walk


def chunked_forward(
    x: Tensor,
    log_a: Tensor,
    b: Tensor,
    c: Tensor,
    initial_state: Tensor | None,
    offsets: list[int] | None,
    walk: Walk,
    like: Tensor,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, final states, the states that later segments of a run start from if ``keep``), computed in ``like.dtype``."""
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
            state.copy_(_segment_forward(chunks, x, log_a, b, c, state, y))
    return y, states, kept


def _segment_forward(
    chunks: Chunks, x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, entry: Tensor, y: Tensor
) -> Tensor:
    held_x = chunks.load("x", x, chunks.heads)
    held_b, held_c = chunks.load("b", b, chunks.gb), chunks.load("c", c, chunks.gc)
    decay, from_start, to_end = chunks.decays(log_a)
    borders, _ = chunks.states_at_borders(held_x, held_b, from_start, to_end, entry)
    past = chunks.from_the_past(held_c, borders)
    gram = chunks.gram(held_b, held_c)
    inside = chunks.buffers.take("inside", *held_x.shape)
    for rows in chunks.row_blocks():
        masked = chunks.masked(decay, gram, rows)
        torch.bmm(masked, held_x[:, :, : rows.stop].flatten(0, 1), out=inside[:, :, rows].flatten(0, 1))
    target = chunks.of(y).unflatten(2, (chunks.gc, -1))
    terms = (inside.unflatten(1, (chunks.gc, -1)), past, from_start.unflatten(1, (chunks.gc, -1)).unsqueeze(-1))
    torch.addcmul(*(term.unflatten(0, target.shape[:2]) for term in terms), out=target)
    return borders[-1]
