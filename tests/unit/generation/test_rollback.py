"""States that go back, against the whole text read anew."""

import random
import re
import weakref

import pytest
import torch
from generation_examples import BLOCKS, VOCAB, logits_after_all, prompts_of, tiny
from torch import Tensor

from statedual.generation import History, prefill
from statedual.models import LanguageModel

PROMPTS = prompts_of((3, 1, 6))


def begin(model: LanguageModel, depth: int) -> History:
    return History(model, prefill(model, PROMPTS)[1], depth, rows=len(PROMPTS))


def require_texts(model: LanguageModel, history: History, texts: list[list[int]]) -> None:
    """The state is that behind ``texts``: judged by two tokens more, read with a copy."""
    state = history.state.clone()
    for ahead in ([3], [3, 5]):
        logits, state = model.step(torch.full((len(texts),), ahead[-1]), state)
        require_logits(model, logits, [[*text, *ahead] for text in texts])


def require_logits(model: LanguageModel, logits: Tensor, texts: list[list[int]]) -> None:
    truth = logits_after_all(model, texts)
    assert (logits - truth).norm() / truth.norm() < 1e-12


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("seed", range(3))
def test_any_walk_forth_and_back(kind: str, seed: int) -> None:
    chance, model, depth = random.Random(seed), tiny(kind), 5
    history = begin(model, depth)
    texts = [list(prompt) for prompt in PROMPTS]
    kept = [0] * len(texts)  # how far each row can go back
    for _ in range(20):
        move = chance.choice(["extend", "last", "step", "back", "back", "some"])
        if move == "back":
            counts = [chance.randint(0, most) for most in kept]
            history.rollback(counts)
            texts = [text[: len(text) - count] for text, count in zip(texts, counts, strict=True)]
            kept = [most - count for most, count in zip(kept, counts, strict=True)]
        elif move == "some":
            rows = chance.sample(range(len(texts)), chance.randint(min(2, len(texts)), len(texts)))
            history.select(rows)
            texts, kept = [texts[row] for row in rows], [kept[row] for row in rows]
        else:
            sizes = [1 if move == "step" else chance.randint(1, 7) for _ in texts]
            pieces = [[chance.randrange(VOCAB) for _ in range(size)] for size in sizes]
            if move == "extend":
                logits = history.extend(pieces)
                starts = zip(texts, pieces, strict=True)
                read = [[*text, *piece[: at + 1]] for text, piece in starts for at in range(len(piece))]
            else:
                step = move == "step"
                logits = history.step([row[0] for row in pieces]) if step else history.extend(pieces, last_only=True)
                read = [[*text, *piece] for text, piece in zip(texts, pieces, strict=True)]
            require_logits(model, logits, read)
            texts = [[*text, *piece] for text, piece in zip(texts, pieces, strict=True)]
            kept = [min(depth, most + len(piece)) for most, piece in zip(kept, pieces, strict=True)]
        assert history.rows == len(texts)
        require_texts(model, history, texts)


def test_a_number_goes_for_all_rows() -> None:
    model = tiny("hybrid")
    history = begin(model, 4)
    history.extend([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    history.rollback(2)
    require_texts(model, history, [[*prompt, row] for prompt, row in zip(PROMPTS, (1, 4, 7), strict=True)])


def test_a_row_that_goes_back_does_not_find_a_future_that_was_not() -> None:
    model = tiny()
    history = begin(model, 6)
    for token in (1, 2, 3):
        history.step([token] * 3)
    history.rollback([2, 0, 0])  # row 0 forgets 2 and 3, whose snapshots the others keep
    for token in (4, 5, 6):
        history.step([token] * 3)
    history.rollback([1, 2, 0])
    behind = ([1, 4, 5], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6])
    require_texts(model, history, [[*prompt, *tokens] for prompt, tokens in zip(PROMPTS, behind, strict=True)])


def test_going_back_to_a_snapshot_reads_nothing_again() -> None:
    model, read = tiny(), []
    history = begin(model, 4)
    for token in (1, 2, 3):
        history.step([token] * 3)
    history.extend([[4, 5], [6], [7, 8]])
    model.embedding.register_forward_hook(lambda _, inputs, __: read.append(inputs[0].flatten().tolist()))
    history.rollback([2, 3, 0])  # all to where a snapshot is
    assert read == []
    history.extend([[1, 2], [3, 4], [5, 6]])
    history.rollback([1, 0, 2])  # row 0 alone has to read one token again
    assert read == [[1, 2, 3, 4, 5, 6], [1]]


def test_the_states_that_were_given_and_taken_are_not_changed() -> None:
    """But for free slots of key and value caches, behind the length of every row, which snapshots share."""
    model = tiny("hybrid")
    state = prefill(model, PROMPTS)[1]
    given = state.clone()
    history = History(model, state, 3)
    history.step([1, 2, 3])
    taken = history.state
    copy = taken.clone()
    history.step([4, 5, 6])
    history.extend([[1], [2], [3]])
    history.rollback(2)
    for after, before in ((state, given), (taken, copy)):
        for tensors in zip(after.blocks, before.blocks, strict=True):
            for name, one, other in zip(tensors[0]._fields, *tensors, strict=True):
                if name in ("keys", "values"):
                    for row, length in enumerate(tensors[1].length.tolist()):
                        assert torch.equal(one[row, :length], other[row, :length])
                else:
                    assert one is other or torch.equal(one, other)


def test_old_snapshots_are_let_go() -> None:
    model = tiny()
    history = begin(model, 4)
    states = []
    for token in range(40):
        history.step([token % VOCAB] * 3)
        states.append(weakref.ref(history.state))
    alive = [index for index, state in enumerate(states) if state() is not None]
    assert alive == [35, 36, 37, 38, 39]  # 4 tokens back, and now


def test_no_graph_is_kept() -> None:
    history = begin(tiny(), 4)
    logits = history.extend([[1, 2], [3], [4]])
    assert not logits.requires_grad
    assert not history.state.blocks[0].ssm.requires_grad


@pytest.mark.parametrize(
    ("move", "told"),
    [
        (lambda history: history.rollback(5), "row 0 cannot go back 5 tokens, expected 0 to 4: depth is 4"),
        (lambda history: history.rollback([0, 3, 0]), "row 1 cannot go back 3 tokens, expected 0 to 2"),
        (lambda history: history.rollback(-1), "row 0 cannot go back -1 tokens, expected 0 to 4"),
        (lambda history: history.rollback([1, 1]), "tokens has 2 numbers, expected 3"),
        (lambda history: history.extend([[1], [2]]), "pieces has 2 rows, expected 3"),
        (lambda history: history.extend([[1], [2], []]), "piece of row 2 is empty"),
        (lambda history: history.step([1, 2]), "ids has 2 tokens, expected 3"),
        (lambda history: history.extend([[1], [2], [99]]), "ids contain 99"),
        (lambda history: history.step([1, 2, 99]), "ids contain 99"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(move, told: str) -> None:
    model = tiny()
    history = begin(model, 4)
    pieces = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 1]]
    history.extend(pieces)
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        move(history)
    require_texts(model, history, [[*prompt, *piece] for prompt, piece in zip(PROMPTS, pieces, strict=True)])
    history.rollback([4, 2, 1])
    left = ([1], [], [8, 9, 10])
    require_texts(model, history, [[*prompt, *piece] for prompt, piece in zip(PROMPTS, left, strict=True)])


def test_what_was_gone_back_does_not_come_again() -> None:
    history = begin(tiny(), 4)
    history.extend([[1] * 9] * 3)
    history.rollback(3)
    with pytest.raises(ValueError, match="cannot go back 2 tokens, expected 0 to 1"):
        history.rollback(2)
    history.rollback(1)


def test_depth_is_positive() -> None:
    model = tiny()
    with pytest.raises(ValueError, match="depth is 0, expected a positive integer"):
        History(model, model.init_state(1), 0)
