"""The four parts of the block decomposition (sec. 6), each against what the paper says it means."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statedual.semiseparable import SemiseparableMatrix, one_semiseparable
from statedual.ssd import ssd
from statedual.ssd.chunk import Buffers, Chunks
from statedual.ssd.chunked import state_first
from statedual.ssd.segments import Segment

ROWS, CHUNKS, POS, HEADS, HEAD_DIM, STATE = 2, 3, 5, 4, 3, 2
TIME = CHUNKS * POS


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


class Held:
    """One segment of random inputs in work buffers, b in two groups and c in one."""

    def __init__(self) -> None:
        self.x, self.log_a = double(ROWS, TIME, HEADS, HEAD_DIM), -torch.rand(ROWS, TIME, HEADS, dtype=torch.float64)
        self.b, self.c = double(ROWS, TIME, 2, STATE), double(ROWS, TIME, 1, STATE)
        self.entry = double(ROWS, HEADS, HEAD_DIM, STATE)
        self.chunks = Chunks(Buffers(self.x), Segment(0, ROWS, 0, CHUNKS, POS, CHUNKS), HEADS, 2, 1)
        self.held_x, self.held_b = self.chunks.load("x", self.x, HEADS), self.chunks.load("b", self.b, 2)
        self.held_c = self.chunks.load("c", self.c, 1)
        self.decay, self.from_start, self.to_end = self.chunks.decays(self.log_a)

    def borders(self, entry: Tensor) -> Tensor:
        """The states that enter the chunks and the one at the end, (borders, row, head, head_dim, state)."""
        weighted, total = self.chunks.weigh(self.held_x, self.to_end, "weighted"), self.chunks.total(self.log_a)
        state = state_first(entry).clone()
        entering = state.new_empty(CHUNKS, *state.shape)
        self.chunks.pass_states(self.held_b, weighted, total, state, entering)
        return torch.cat([entering, state[None]]).movedim(2, -1)

    def run(self, start: int, stop: int, state: Tensor | None, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = self.x if x is None else x
        part = [tensor[:, start:stop] for tensor in (x, self.log_a, self.b, self.c)]
        return ssd(*part, initial_state=state, form="recurrent")

    def by_chunk(self, tensor: Tensor) -> Tensor:
        """(chunk, row, head, pos, ...) of what is held with chunks and rows in one axis."""
        return tensor.reshape(CHUNKS, ROWS, HEADS, *tensor.shape[2:])


@pytest.fixture
def held() -> Held:
    return Held()


def test_decays_of_a_chunk(held: Held) -> None:
    """L of each diagonal block is 1SS of the chunk; its first column times a_0 and its last row lead out of it."""
    a = held.log_a.exp().unflatten(1, (CHUNKS, POS)).permute(1, 0, 3, 2)
    L = one_semiseparable(a)
    torch.testing.assert_close(held.by_chunk(held.decay), L)
    torch.testing.assert_close(held.by_chunk(held.from_start), a[..., :1] * L[..., :, 0])
    torch.testing.assert_close(held.by_chunk(held.to_end), L[..., -1, :])


def test_right_factors_are_the_final_states_of_chunks_that_start_from_zero(held: Held) -> None:
    """h_{jQ+Q-1} assuming that x_{0:jQ} = 0."""
    for j in range(CHUNKS):
        alone = torch.zeros_like(held.x)
        alone[:, j * POS : (j + 1) * POS] = held.x[:, j * POS : (j + 1) * POS]
        held.held_x = held.chunks.load("x", alone, HEADS)
        _, final = held.run(j * POS, (j + 1) * POS, None)
        torch.testing.assert_close(held.borders(torch.zeros_like(held.entry))[j + 1], final)


def test_center_factors_give_the_true_states_at_the_borders(held: Held) -> None:
    """Taking all previous inputs into account: by the recurrence, and by the 1-SS matrix of the chunks' decays."""
    borders = held.borders(held.entry)
    for j in range(CHUNKS + 1):
        _, state = held.run(0, j * POS, held.entry)
        torch.testing.assert_close(borders[j], state)
    alone = torch.stack([held.entry, *(held.run(j * POS, (j + 1) * POS, None)[1] for j in range(CHUNKS))])
    totals = torch.cat([torch.ones(1, ROWS, HEADS), held.by_chunk(held.from_start)[..., -1]]).movedim(0, -1)
    torch.testing.assert_close(borders, torch.einsum("rhji,irhpn->jrhpn", one_semiseparable(totals), alone))


def test_left_factors_are_the_outputs_of_chunks_without_inputs(held: Held) -> None:
    """From the correct initial state, supposing x_{jQ:(j+1)Q} = 0."""
    borders = held.borders(held.entry)
    past = held.chunks.from_the_past(held.held_c, state_first(borders[:-1]))
    y = held.by_chunk(held.from_start).unsqueeze(-1) * held.by_chunk(past.transpose(1, 2))
    for j in range(CHUNKS):
        expected, _ = held.run(j * POS, (j + 1) * POS, borders[j], torch.zeros_like(held.x))
        torch.testing.assert_close(y[j], expected.transpose(1, 2))


def test_diagonal_blocks_are_the_outputs_of_chunks_that_start_from_zero(held: Held) -> None:
    gram = held.chunks.gram(held.held_b, held.held_c)
    masked = held.chunks.masked(held.decay, gram, slice(0, POS)).view(CHUNKS, ROWS, HEADS, POS, POS)
    y = masked @ held.by_chunk(held.held_x)
    for j in range(CHUNKS):
        expected, _ = held.run(j * POS, (j + 1) * POS, None)
        torch.testing.assert_close(y[j], expected.transpose(1, 2))


@settings(deadline=None, max_examples=20)
@given(time=st.integers(1, 20), chunk=st.integers(1, 7), seed=st.integers(0, 99))
def test_the_grid_of_blocks_is_the_matrix(time: int, chunk: int, seed: int) -> None:
    """Diagonal blocks are SSMs of their own, those below are three factors; the last chunk may be shorter."""
    torch.manual_seed(seed)
    m = SemiseparableMatrix(torch.rand(time, dtype=torch.float64), double(time, STATE), double(time, STATE))
    M = torch.zeros(time, time, dtype=torch.float64)
    parts = [(start, min(start + chunk, time)) for start in range(0, time, chunk)]
    for j, (top, bottom) in enumerate(parts):
        own = slice(top, bottom)
        M[own, own] = SemiseparableMatrix(m.a[own], m.b[own], m.c[own]).dense()
        for first, last in parts[:j]:
            left, center, right = m.block_factors((top, bottom), (first, last))
            M[own, first:last] = left @ center @ right
    torch.testing.assert_close(M, m.dense())


def test_nine_steps_in_chunks_of_three_share_their_factors() -> None:
    """The paper's example: a row of blocks has one left factor, a column of blocks one right factor."""
    m = SemiseparableMatrix(torch.rand(9, dtype=torch.float64), double(9, STATE), double(9, STATE))
    (left_20, center_20, right_20), (left_21, center_21, _), (_, center_10, right_10) = (
        m.block_factors((3 * j, 3 * j + 3), (3 * i, 3 * i + 3)) for j, i in ((2, 0), (2, 1), (1, 0))
    )
    torch.testing.assert_close(left_20, left_21)
    torch.testing.assert_close(right_20, right_10)
    identity = torch.eye(STATE, dtype=torch.float64)
    torch.testing.assert_close(right_20, torch.stack([m.a[1] * m.a[2] * m.b[0], m.a[2] * m.b[1], m.b[2]], dim=1))
    # The center reaches up to the row's first step; the paper's ends one step earlier and leaves that one to the left.
    torch.testing.assert_close(left_20, torch.stack([m.c[6], m.a[7] * m.c[7], m.a[8] * m.a[7] * m.c[8]]))
    torch.testing.assert_close(center_20, m.a[3:7].prod() * identity)
    torch.testing.assert_close(center_21, m.a[6] * identity)
    torch.testing.assert_close(center_10, m.a[3] * identity)
