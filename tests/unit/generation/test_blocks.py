"""Ragged sequences cut into blocks: every token once, in order, never more than a block."""

import itertools

import pytest
import torch
from generation_examples import BLOCKS, logits_after_all, prompts_of, tiny

from statedual.generation.blocks import pieces_of, read


@pytest.mark.parametrize("block", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("lengths", [[1], [7], [3, 1, 4, 1, 5], [5, 5], [0, 2, 0, 3, 0], [0], []])
def test_every_token_stands_once_in_blocks_that_are_full(lengths: list[int], block: int) -> None:
    blocks = list(pieces_of(lengths, block))
    sizes = [sum(stop - start for _, start, stop, _ in pieces) for pieces in blocks]
    assert all(size == block for size in sizes[:-1])
    assert all(0 < size <= block for size in sizes)
    tokens = [(row, at) for pieces in blocks for row, start, stop, _ in pieces for at in range(start, stop)]
    assert tokens == [(row, at) for row, length in enumerate(lengths) for at in range(length)]


@pytest.mark.parametrize("block", [1, 3, 5])
def test_only_the_last_piece_of_a_block_goes_on_and_the_next_one_begins_there(block: int) -> None:
    lengths = [3, 1, 4, 1, 5]
    blocks = list(pieces_of(lengths, block))
    for pieces in blocks:
        assert all(piece.last for piece in pieces[:-1])
        assert all(piece.last == (piece.stop == lengths[piece.row]) for piece in pieces)
    for before, after in itertools.pairwise(blocks):
        if not before[-1].last:
            assert (after[0].row, after[0].start) == (before[-1].row, before[-1].stop)


@pytest.mark.parametrize("pieces", [[[5, 6], [7], [8, 9, 1]], [[5, 6, 7], [7, 1, 2]], [[3]], [[3], [4]]])
@pytest.mark.parametrize("kind", BLOCKS)
def test_pieces_are_read_from_their_states(kind: str, pieces: list) -> None:
    model, prompts = tiny(kind), prompts_of(range(2, 2 + len(pieces)))
    _, state = read(model, prompts, None, last_only=True)
    texts = [[*prompt, *piece] for prompt, piece in zip(prompts, pieces, strict=True)]
    last = read(model, pieces, state, last_only=True).logits
    assert torch.allclose(last, logits_after_all(model, texts), rtol=1e-10)
    whole = read(model, pieces, state, last_only=False).logits
    starts = zip(prompts, pieces, strict=True)
    texts = [[*prompt, *piece[: at + 1]] for prompt, piece in starts for at in range(len(piece))]
    assert torch.allclose(whole, logits_after_all(model, texts), rtol=1e-10)
