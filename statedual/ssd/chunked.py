"""The chunked form: the block decomposition of sec. 6 (thm:algorithm).

    right factors    z_k     = sum_s to_end[s] x_s outer b_s          the state that chunk k alone leaves
    center factors   h_{k+1} = total_k h_k + z_k                      the states at the borders
    left factors     y[l]    = from_start[l] h_k c_l                  what the past contributes
    diagonal blocks  y[l]   += sum_s L[l, s] (c_l . b_s) x_s          what the chunk itself contributes

The sequence is walked in segments of a few chunks. Memory beyond input and output is that of one segment; its work is
matrix products, those of heads that share b or c joined into one.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.shapes import State
from statedual.ssd.chunk import Chunks
from statedual.ssd.passes import Inputs


def elements(x: Tensor, log_a: Tensor, b: Tensor, chunk: int) -> int:
    """Numbers in the work buffers of one chunk: L and its product with the Gram matrix, rows of x's width, states."""
    head_dim, state = x.shape[3], b.shape[3]
    return log_a.shape[2] * (2 * chunk * chunk + 4 * chunk * head_dim + 2 * head_dim * state)


def new_states(like: Tensor, count: int, heads: int, head_dim: int, state: int) -> State:
    """Uninitialised states, ``state`` first in memory: then every product over heads is one of row-major matrices."""
    return like.new_empty(count, state, heads, head_dim).permute(0, 2, 3, 1)


def state_first(states: Float[Tensor, "*lead heads head_dim state"]) -> Float[Tensor, "*lead state heads head_dim"]:
    """States in their order in memory."""
    return states.movedim(-1, -3)


def segment_forward(chunks: Chunks, inputs: Inputs, state: Tensor, entering: Tensor, y: Tensor) -> None:
    """Write the segment of ``y`` and the states that enter its chunks; move ``state`` to its end."""
    x, log_a, b, c = inputs
    held_x = chunks.load("x", x, chunks.heads)
    held_b, held_c = chunks.load("b", b, chunks.gb), chunks.load("c", c, chunks.gc)
    decay, from_start, to_end = chunks.decays(log_a)
    state, entering = state_first(state), state_first(entering)
    chunks.pass_states(held_b, chunks.weigh(held_x, to_end, "weighted"), chunks.total(log_a), state, entering)
    past = chunks.from_the_past(held_c, entering)
    gram = chunks.gram(held_b, held_c)
    inside = chunks.buffers.take("inside", *held_x.shape)
    for rows in chunks.row_blocks():
        masked = chunks.masked(decay, gram, rows)
        torch.bmm(masked, held_x[:, :, : rows.stop].flatten(0, 1), out=inside[:, :, rows].flatten(0, 1))
    target = chunks.of(y)
    terms = inside, past.transpose(1, 2), from_start.unsqueeze(-1)
    torch.addcmul(*(term.unflatten(0, target.shape[:2]) for term in terms), out=target)
