"""The walk: every position of every sequence once, in order, in segments that the budget holds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ssd_examples import example
from torch import Tensor

from statedual.ssd import segments
from statedual.ssd.library import ssd_chunked
from statedual.ssd.segments import Segment, Walk

LIKE = torch.empty(0)
BUDGETS = st.one_of(st.sampled_from([0, 1, 1000, 16 << 20]), st.integers(0, 100_000))
SIZES = {
    "time": st.one_of(st.integers(0, 5), st.integers(0, 400)),
    "chunk": st.one_of(st.sampled_from([1, 16, 64]), st.integers(1, 500)),
    "elements": st.one_of(st.integers(0, 3), st.integers(0, 5000)),
    "budget": BUDGETS,
}
LENGTHS = st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 120)), max_size=7)


def plan(batch: int, time: int, chunk: int, elements: int, budget: int, dtype: torch.dtype = torch.float32) -> Walk:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(segments._BUDGET, "cpu", budget)
        return Walk.plan(batch, time, chunk, elements, LIKE.to(dtype))


def positions(segment: Segment, row: int) -> list[int]:
    """The times of one row, chunk by chunk, as ``Chunks.of`` cuts them."""
    assert segment.row0 <= row < segment.row1
    assert segment.t1 - segment.t0 == segment.chunks * segment.pos
    return list(range(segment.t0, segment.t1))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(batch=st.integers(0, 9), **SIZES)
def test_a_batch_is_walked_whole_and_in_order(batch: int, time: int, chunk: int, elements: int, budget: int) -> None:
    walk = plan(batch, time, chunk, elements, budget)
    seen: dict[int, list[int]] = {row: [] for row in range(batch)}
    states: list[int] = []
    for run in walk.runs(batch, time, None):
        rows = list(range(batch))[run.states]
        states += rows
        for segment in run.segments:
            assert list(range(segment.row0, segment.row1)) == rows
            for row in rows:
                seen[row] += positions(segment, row)
    assert states == list(range(batch))
    assert all(times == list(range(time)) for times in seen.values())


@settings(deadline=None, derandomize=True, max_examples=300)
@given(lengths=LENGTHS, **{name: strategy for name, strategy in SIZES.items() if name != "time"})
def test_packed_sequences_are_walked_one_by_one(lengths: list[int], chunk: int, elements: int, budget: int) -> None:
    """A run for each, also for an empty one, whose state is that of its number; chunks restart at its first token."""
    offsets = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    walk = plan(1, offsets[-1], chunk, elements, budget)
    runs = list(walk.runs(1, offsets[-1], offsets))
    assert [run.states for run in runs] == [slice(k, k + 1) for k in range(len(lengths))]
    for run, start, length in zip(runs, offsets, lengths, strict=False):
        times = [t for segment in run.segments for t in positions(segment, 0)]
        assert times == list(range(start, start + length))
        assert all((segment.t0 - start) % chunk == 0 and segment.rows == 1 for segment in run.segments)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(batch=st.integers(0, 9), **SIZES)
def test_chunks_are_whole_but_for_the_last(batch: int, time: int, chunk: int, elements: int, budget: int) -> None:
    """The rest of a sequence is one chunk, in a segment of its own, for chunks of a segment are equally long."""
    for run in plan(batch, time, chunk, elements, budget).runs(batch, time, None):
        whole, rest = divmod(time, chunk)
        assert sum(segment.chunks for segment in run.segments if segment.pos == chunk) == whole
        assert [(s.chunks, s.pos) for s in run.segments if s.pos != chunk] == ([(1, rest)] if rest else [])
        assert all(segment.pos == chunk for segment in run.segments[:-1])


@settings(deadline=None, derandomize=True, max_examples=300)
@given(batch=st.integers(0, 9), wide=st.booleans(), **SIZES)
def test_a_segment_stays_within_the_budget(
    batch: int, time: int, chunk: int, elements: int, budget: int, wide: bool
) -> None:
    """One chunk at least, however small the budget is; rows go side by side only where they fit as a whole."""
    dtype = torch.float64 if wide else torch.float32
    walk = plan(batch, time, chunk, elements, budget, dtype)
    for run in walk.runs(batch, time, None):
        for segment in run.segments:
            side_by_side = segment.chunks * segment.rows
            assert side_by_side == 1 or side_by_side * elements * dtype.itemsize <= budget
            if segment.rows > 1:
                assert sum(s.chunks for s in run.segments if s.pos == chunk) == time // chunk <= walk.chunks
    # Nor is room left over that one more chunk, or row, would fill.
    used = walk.rows * walk.chunks + walk.rows
    assert used * max(1, elements * dtype.itemsize) > budget


def kept_states(batch: int, offsets: list[int] | None, time: int, chunk: int, budget: int) -> Tensor:
    """What the operator keeps for its backward: none of these states is zero."""
    case = example(time, 2, (2, 1, 1), batch=batch, head_dim=2, state=2, kind="none", offsets=offsets)
    given = (*case.tensors(), None if offsets is None else torch.tensor(offsets))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(segments._BUDGET, "cpu", budget)
        return ssd_chunked(*given, chunk, True)[2]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(batch=st.integers(0, 5), time=st.integers(0, 60), chunk=st.integers(1, 70), budget=BUDGETS)
def test_the_states_that_a_batch_keeps_are_counted(batch: int, time: int, chunk: int, budget: int) -> None:
    """Before anything runs, as a compiler needs it: no room too little, which would raise, and none to spare."""
    kept = kept_states(batch, None, time, chunk, budget)
    assert kept.flatten(1).any(1).all()
    assert len(kept) <= batch * -(-time // chunk)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(lengths=LENGTHS, chunk=st.integers(1, 70), budget=BUDGETS)
def test_packed_sequences_have_room_for_the_states_they_keep(lengths: list[int], chunk: int, budget: int) -> None:
    """Told from their number and the time alone, for a compiler knows no offsets. What is left over is zero."""
    offsets = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    kept = kept_states(1, offsets, offsets[-1], chunk, budget)
    used = kept.flatten(1).any(1)
    assert not used[int(used.sum()) :].any()
    assert kept.isfinite().all()
    shorter = max(1, min(chunk, offsets[-1]))
    assert len(kept) <= offsets[-1] // shorter + len(lengths)


def test_short_rows_go_side_by_side_and_long_ones_are_cut() -> None:
    """16 chunks fit: 4 rows of 4 chunks at once, or half of one row of 32."""
    budget = 16 * 100 * 4
    short, long = plan(6, 40, 10, 100, budget), plan(6, 320, 10, 100, budget)
    assert [run.states for run in short.runs(6, 40, None)] == [slice(0, 4), slice(4, 6)]
    assert [s.chunks for run in short.runs(6, 40, None) for s in run.segments] == [4, 4]
    assert [run.states for run in long.runs(6, 320, None)] == [slice(k, k + 1) for k in range(6)]
    assert [s.chunks for run in long.runs(6, 320, None) for s in run.segments] == [16, 16] * 6


def test_a_device_without_a_budget_of_its_own_has_one() -> None:
    assert Walk.plan(1, 1 << 20, 64, 1 << 14, torch.empty(0, device="meta")).chunks == (64 << 20) // (4 << 14)
