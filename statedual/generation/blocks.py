"""A walk over ragged sequences in blocks of bounded size, without padding, their states carried along."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch.nn import functional

from statedual.models import LanguageModel, LMOutput, ModelState

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (tokens done, tokens in all) after every block."""


class Piece(NamedTuple):
    """Tokens start:stop of sequence ``row``; ``last``: its end."""

    row: int
    start: int
    stop: int
    last: bool


def pieces_of(lengths: Sequence[int], block: int) -> Iterator[list[Piece]]:
    """Sequences of ``lengths`` behind one another, cut every ``block`` tokens."""
    pieces: list[Piece] = []
    room = block
    for row, length in enumerate(lengths):
        start = 0
        while start < length:
            stop = min(start + room, length)
            pieces.append(Piece(row, start, stop, stop == length))
            room -= stop - start
            start = stop
            if room == 0:
                yield pieces
                pieces, room = [], block
    if pieces:
        yield pieces


def read(
    model: LanguageModel, pieces: Sequence[Sequence[int]], state: ModelState | None, *, last_only: bool
) -> LMOutput:
    """The model over ``pieces``, none of them empty, one of each row of ``state``; None is the beginning.

    Pieces of one length are a batch, others are packed: the same function, but a batch is faster.

    Returns:
        Logits (tokens of all pieces behind one another, vocabulary), or with ``last_only`` (pieces, vocabulary), and
        the state behind.

    """
    device = model.embedding.weight.device
    sizes = [len(piece) for piece in pieces]
    if len(set(sizes)) == 1:
        ids = torch.tensor([list(piece) for piece in pieces], device=device)
        output: LMOutput = model(ids, state, last_only=last_only)
    else:
        ids = torch.tensor([[token for piece in pieces for token in piece]], device=device)
        cu_seqlens = functional.pad(torch.tensor(sizes, device=device).cumsum(0), (1, 0))
        output = model(ids, state, cu_seqlens, last_only)
    return output if last_only else LMOutput(output.logits.flatten(0, 1), output.state)


def walk(
    model: LanguageModel,
    sequences: Sequence[Sequence[int]],
    block: int,
    *,
    last_only: bool,
    progress: Progress | None = None,
) -> Iterator[tuple[list[Piece], LMOutput]]:
    """The model over all ``sequences``, none of them empty, from the beginning.

    Yields:
        The pieces of a block, and what ``read`` gives for them.

    """
    total, done = sum(len(sequence) for sequence in sequences), 0
    carried: ModelState | None = None
    for pieces in pieces_of([len(sequence) for sequence in sequences], block):
        state = carried
        if carried is not None and len(pieces) > 1:
            state = ModelState.cat([carried, model.init_state(len(pieces) - 1)])
        texts = [sequences[row][start:stop] for row, start, stop, _ in pieces]
        output = read(model, texts, state, last_only=last_only)
        carried = None
        if not pieces[-1].last:
            carried = output.state if len(pieces) == 1 else output.state.select([len(pieces) - 1])
        yield pieces, output
        done += sum(len(text) for text in texts)
        if progress is not None:
            progress(done, total)
