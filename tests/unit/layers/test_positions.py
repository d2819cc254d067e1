"""Where tokens stand: against counting."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statedual.layers.positions import lengths, positions, sequence_of

# How long packed sequences are, and how many tokens came before each of them.
pieces = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), max_size=8)


def packed(sizes: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(sizes)], dtype=dtype)


@settings(deadline=None, max_examples=50)
@given(pieces=pieces, dtype=st.sampled_from([torch.int32, torch.int64]))
def test_packed_sequences_count_each_from_its_own_length(pieces: list[tuple[int, int]], dtype: torch.dtype) -> None:
    sizes, before = [size for size, _ in pieces], [length for _, length in pieces]
    offsets, length, time = packed(sizes, dtype), torch.tensor(before, dtype=torch.int64), sum(sizes)
    own = [(row, length + k) for row, (size, length) in enumerate(pieces) for k in range(size)]
    assert sequence_of(time, offsets).tolist() == [row for row, _ in own]
    assert positions(time, length, offsets).tolist() == [[where for _, where in own]]
    assert lengths(time, length, offsets).tolist() == [size + length for size, length in pieces]


@pytest.mark.parametrize("before", [[], [0], [3, 0, 70]])
@pytest.mark.parametrize("time", [0, 1, 5])
def test_rows_count_from_their_lengths(time: int, before: list[int]) -> None:
    length = torch.tensor(before, dtype=torch.int64)
    where = positions(time, length)
    assert where.shape == (len(before), time)
    assert where.tolist() == [[start + k for k in range(time)] for start in before]
    assert lengths(time, length).tolist() == [start + time for start in before]


def test_positions_are_int64_and_what_was_given_stays() -> None:
    length = torch.tensor([2, 7])
    for offsets in (None, torch.tensor([0, 1, 4], dtype=torch.int32)):
        for result in (positions(4, length, offsets), lengths(4, length, offsets)):
            assert result.dtype == torch.int64
            result.add_(1)
    assert length.tolist() == [2, 7]


def test_counting_goes_on_where_it_stopped() -> None:
    sizes = [3, 0, 2]
    first, second = packed(sizes), packed([1, 4, 0])
    length = lengths(5, torch.zeros(3, dtype=torch.int64), first)
    assert positions(5, length, second).tolist() == [[3, 0, 1, 2, 3]]
    assert lengths(5, length, second).tolist() == [4, 4, 2]


def test_no_value_of_a_tensor_is_needed() -> None:
    """On "meta" tensors have none: a host that asked for one would get an error."""
    length, offsets = torch.zeros(3, dtype=torch.int64, device="meta"), torch.zeros(4, dtype=torch.int32, device="meta")
    assert sequence_of(9, offsets).shape == (9,)
    assert positions(9, length, offsets).shape == (1, 9)
    assert lengths(9, length, offsets).shape == (3,)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 5], "cu_seqlens starts at 1, expected 0"),
        ([0, 4, 3, 5], "cu_seqlens decreases from 4 to 3 at index 2"),
        ([0, 3], "cu_seqlens ends at 3, expected 5, the time of x"),
        ([0, 9], "cu_seqlens ends at 9, expected 5, the time of x"),
        ([0], "cu_seqlens ends at 0, expected 5, the time of x"),
    ],
)
def test_offsets_on_a_cpu_are_checked_before_they_index(offsets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequence_of(5, torch.tensor(offsets))
    with pytest.raises(ValueError, match=message):
        positions(5, torch.zeros(len(offsets) - 1, dtype=torch.int64), torch.tensor(offsets))
