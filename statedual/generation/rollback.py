"""States that can go back. A recurrence cannot be run backwards, so snapshots are kept and the rest is read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from statedual.checks import require_positive
from statedual.generation.blocks import read
from statedual.models import LanguageModel, ModelState


class _Mark(NamedTuple):
    """One row of a snapshot: ``position`` tokens after the beginning of the history."""

    position: int
    state: ModelState
    row: int


class History:
    """The states of some sequences, row by row up to ``depth`` tokens back.

        history = History(model, state, depth=8)
        logits = history.extend([[5, 3, 8], [2]])       # row 0 reads three tokens, row 1 one
        history.rollback([2, 0])                        # row 0 has read only the 5
        history.state                                   # as if it had never read more

    Every ``extend`` and ``step`` leaves its state as a snapshot, as long as something within ``depth`` needs it. Going
    back takes the nearest one before and reads the tokens from there on again, through the model: exact to rounding.
    """

    def __init__(self, model: LanguageModel, state: ModelState, depth: int, *, rows: int | None = None) -> None:
        """Begin at ``state``, which is taken over.

        ``rows`` is asked for only where no block of the model keeps a state, which then cannot tell.
        """
        require_positive("depth", depth)
        self._model = model
        self._depth = depth
        self._state = state
        count = state.rows if rows is None else rows
        self._tokens: list[list[int]] = [[] for _ in range(count)]
        """Of each row, since its first mark."""
        self._marks = [[_Mark(0, state, row)] for row in range(count)]
        """Of each row, oldest first."""
        self._floors = [0] * count
        """Of each row, the position before which it cannot go."""

    @property
    def state(self) -> ModelState:
        """Behind the last token of every row. ``LanguageModel.step`` changes states in place: give it a clone."""
        return self._state

    @property
    def rows(self) -> int:
        """Sequences."""
        return len(self._tokens)

    @torch.no_grad()
    def extend(self, pieces: Sequence[Sequence[int]], *, last_only: bool = False) -> Tensor:
        """Every row reads its piece, which has at least one token.

        Returns:
            Logits (tokens of all pieces behind one another, vocabulary), or with ``last_only`` (rows, vocabulary).

        """
        if len(pieces) != self.rows:
            raise ValueError(f"pieces has {len(pieces)} rows, expected {self.rows}, one for every row of the state")
        for row, piece in enumerate(pieces):
            if len(piece) == 0:
                raise ValueError(f"piece of row {row} is empty, expected at least one token; select() leaves rows out")
        logits, state = read(self._model, pieces, self._state, last_only=last_only)
        self._advance(state, pieces)
        return logits

    @torch.no_grad()
    def step(self, ids: Sequence[int]) -> Tensor:
        """Every row reads one token. Returns logits (rows, vocabulary)."""
        if len(ids) != self.rows:
            raise ValueError(f"ids has {len(ids)} tokens, expected {self.rows}, one for every row of the state")
        device = self._model.embedding.weight.device
        logits, state = self._model.step(torch.tensor(ids, device=device), self._state.snapshot())
        self._advance(state, [[token] for token in ids])
        return logits

    @torch.no_grad()
    def rollback(self, tokens: int | Sequence[int]) -> None:
        """Forget the last ``tokens`` tokens of every row, or of each its own number; none is older than ``depth``."""
        counts = [tokens] * self.rows if isinstance(tokens, int) else list(tokens)
        if len(counts) != self.rows:
            raise ValueError(f"tokens has {len(counts)} numbers, expected {self.rows}, one for every row of the state")
        for row, count in enumerate(counts):
            kept = self._position(row) - self._floors[row]
            if not 0 <= count <= kept:
                raise ValueError(
                    f"row {row} cannot go back {count} tokens, expected 0 to {kept}: "
                    f"depth is {self._depth}, and nothing is known from before the beginning"
                )
        if not any(counts):
            return
        self._mark()  # what is now, for rows that stay
        for row, count in enumerate(counts):
            position, marks = self._position(row) - count, self._marks[row]
            while marks[-1].position > position:
                marks.pop()
            del self._tokens[row][position - marks[0].position :]
        nearest = [marks[-1] for marks in self._marks]
        again = [
            tokens[mark.position - marks[0].position :]
            for mark, marks, tokens in zip(nearest, self._marks, self._tokens, strict=True)
        ]
        self._state = self._replay(_gather(nearest), again)

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some of the rows, in that order."""
        self._state = self._state.select(rows)
        self._tokens = [list(self._tokens[row]) for row in rows]
        self._marks = [list(self._marks[row]) for row in rows]
        self._floors = [self._floors[row] for row in rows]

    def _position(self, row: int) -> int:
        return self._marks[row][0].position + len(self._tokens[row])

    def _mark(self) -> None:
        """The present state as a snapshot, where there is none of this position."""
        for row, marks in enumerate(self._marks):
            if marks[-1].position < self._position(row):
                marks.append(_Mark(self._position(row), self._state, row))

    def _advance(self, state: ModelState, pieces: Sequence[Sequence[int]]) -> None:
        self._mark()
        self._state = state
        for row, piece in enumerate(pieces):
            marks, tokens = self._marks[row], self._tokens[row]
            tokens.extend(piece)
            self._floors[row] = max(self._floors[row], self._position(row) - self._depth)
            while len(marks) > 1 and marks[1].position <= self._floors[row]:
                del tokens[: marks[1].position - marks[0].position]
                del marks[0]

    def _replay(self, state: ModelState, pieces: list[list[int]]) -> ModelState:
        """``state`` after its rows have read their pieces, of which some or all are empty."""
        late = [row for row, piece in enumerate(pieces) if piece]
        if not late:
            return state
        there = [row for row, piece in enumerate(pieces) if not piece]
        before = state.select(late) if there else state
        after = read(self._model, [pieces[row] for row in late], before, last_only=True).state
        return _in_order([after, state.select(there)], late + there) if there else after


def _gather(marks: Sequence[_Mark]) -> ModelState:
    """The rows of some snapshots as one state."""
    places: dict[int, list[int]] = {}
    for place, mark in enumerate(marks):
        places.setdefault(id(mark.state), []).append(place)
    parts = [marks[some[0]].state.select([marks[place].row for place in some]) for some in places.values()]
    return _in_order(parts, [place for some in places.values() for place in some])


def _in_order(parts: Sequence[ModelState], places: Sequence[int]) -> ModelState:
    """The rows of all ``parts``, each at its place."""
    return ModelState.cat(parts).select(sorted(range(len(places)), key=places.__getitem__))
