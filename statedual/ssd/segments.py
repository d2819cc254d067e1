"""How a batch, or a row of packed sequences, is walked: segments of a few chunks, small enough to stay in cache."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

# Bytes of work buffers that one segment may fill: measured on two CPU cores; a GPU wants width.
_BUDGET = {"cpu": 16 << 20, "cuda": 512 << 20}


@dataclass(frozen=True)
class Segment:
    """``chunks`` chunks of ``pos`` positions in each of the rows ``row0:row1``, from time ``t0`` on.

    The sequences that it is a part of have ``chunks_in_all``.
    """

    row0: int
    row1: int
    t0: int
    chunks: int
    pos: int
    chunks_in_all: int

    @property
    def rows(self) -> int:
        """Rows side by side."""
        return self.row1 - self.row0

    @property
    def t1(self) -> int:
        """The first position after the segment."""
        return self.t0 + self.chunks * self.pos


@dataclass(frozen=True)
class Run:
    """Rows that share their borders in time: some rows of a batch, or one packed sequence. Its states are a slice."""

    states: slice
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Walk:
    """The cutting rule: ``rows`` rows side by side, ``chunks`` chunks of ``chunk`` positions in each."""

    chunk: int
    rows: int
    chunks: int

    @classmethod
    def plan(cls, batch: int, time: int, chunk: int, elements: int, like: torch.Tensor) -> "Walk":
        """As many chunks at once, of ``elements`` numbers each, as the budget of ``like``'s device holds.

        Short rows of a batch go side by side.
        """
        budget = _BUDGET.get(like.device.type, 64 << 20)
        width = max(1, budget // max(1, elements * like.dtype.itemsize))
        rows = max(1, min(batch, width // max(1, -(-time // chunk))))
        return cls(chunk, rows, max(1, width // rows))

    def runs(self, batch: int, time: int, offsets: list[int] | None) -> Iterator[Run]:
        """Every position of every sequence once, in order of time within a run."""
        if offsets is None:
            for row in range(0, batch, self.rows):
                last = min(batch, row + self.rows)
                yield Run(slice(row, last), tuple(self._cut(row, last, 0, time)))
        else:
            for index, (start, stop) in enumerate(itertools.pairwise(offsets)):
                yield Run(slice(index, index + 1), tuple(self._cut(0, 1, start, stop)))

    def _cut(self, row0: int, row1: int, start: int, stop: int) -> Iterator[Segment]:
        whole = start + (stop - start) // self.chunk * self.chunk
        in_all = -(-(stop - start) // self.chunk)
        for t0 in range(start, whole, self.chunk * self.chunks):
            yield Segment(row0, row1, t0, min(self.chunks, (whole - t0) // self.chunk), self.chunk, in_all)
        if whole < stop:
            yield Segment(row0, row1, whole, 1, stop - whole, in_all)


def count_chunks(batch: int, time: int, chunk: int, sequences: int | None) -> int:
    """How many chunks there are, rows counted singly; for packed sequences at most so many.

    There the exact number depends on the offsets. ``batch`` and ``time`` may be a compiler's symbols, so that nothing
    here may ask whether one is larger than something.
    """
    if sequences is None:
        return batch * -(-time // chunk)
    count: int = torch.sym_min(time, time // chunk + sequences)
    return count
