"""With a draft: greedy text is the same, ends are the same, and drafts are accepted as often as they should be."""

import math

import pytest
import torch
from generation_examples import BLOCKS, Letters, near, prompts_of, reference_probabilities, slow_text, tiny
from torch import Tensor

from statedual.generation import generate, stream
from statedual.models import LanguageModel

PROMPTS = prompts_of((4, 1, 9, 2))


@pytest.mark.parametrize(
    ("kind", "draft", "ahead"),
    [
        ("mamba2", "mamba2", 1),
        ("mamba2", "bigram", 2),
        ("mamba2", "hybrid", 5),
        ("mamba1", "mamba2", 2),
        ("hybrid", "mamba1", 1),
        ("hybrid", "mamba2", 3),
        ("hybrid", "hybrid", 5),
        ("bigram", "mamba2", 2),
    ],
)
def test_greedy_text_is_the_same_with_any_draft(kind: str, draft: str, ahead: int) -> None:
    model = tiny(kind)
    plain = generate(model, PROMPTS, max_new_tokens=11)
    found = generate(model, PROMPTS, max_new_tokens=11, draft=tiny(draft, seed=3, padding=1), draft_tokens=ahead)
    assert [row.tokens for row in found] == [row.tokens for row in plain]
    assert [row.reason for row in found] == [row.reason for row in plain]
    for row, other in zip(found, plain, strict=True):
        assert row.logprobs == pytest.approx(other.logprobs, rel=1e-6)


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("kind", BLOCKS)
def test_the_model_as_its_own_draft_is_always_accepted(kind: str, ahead: int) -> None:
    model, draft, calls = tiny(kind), tiny(kind), []
    plain = generate(model, PROMPTS, max_new_tokens=13)
    model.norm.register_forward_hook(lambda *_: calls.append(1))
    assert [row.tokens for row in generate(model, PROMPTS, max_new_tokens=13, draft=draft, draft_tokens=ahead)] == [
        row.tokens for row in plain
    ]
    assert len(calls) == 1 + math.ceil(12 / (ahead + 1))
    calls.clear()
    generate(model, PROMPTS, max_new_tokens=13, draft=draft, draft_tokens=ahead, temperature=1.0, top_p=0.9, seed=0)
    assert len(calls) == 1 + math.ceil(12 / (ahead + 1))


def passes(model: LanguageModel) -> list[int]:
    """Grows by one with every check of what a draft has written."""
    checks: list[int] = []

    def count(_: object, inputs: tuple, __: object) -> None:
        if inputs[0].ndim == 3:  # (rows, tokens, model): neither the last tokens of prompts nor those read again
            checks.append(1)

    model.norm.register_forward_hook(count)
    return checks


@pytest.mark.parametrize("kind", ["mamba2", "hybrid"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0, "repetition_penalty": 1.5}])
def test_the_draft_writes_what_it_would_after_the_text(kind: str, settings: dict) -> None:
    model, draft, prompt, ahead, count = tiny(kind), near(tiny(kind), 0.1), PROMPTS[0], 4, 31

    def choose(logits: Tensor, tokens: list[int]) -> int:
        return int(
            torch.tensor(reference_probabilities(logits.tolist(), seen=tokens, temperature=0, **penalty)).argmax()
        )

    penalty = {"repetition_penalty": settings.get("repetition_penalty", 1.0)}
    text, wanted = slow_text(model, prompt, count + ahead, choose), 0
    done = 1
    while done < count:
        proposed = slow_text(draft, [*prompt, *text[:done]], ahead, choose)
        agree = [one == other for one, other in zip(proposed, text[done:], strict=False)]
        done += [*agree, False].index(False) + 1
        wanted += 1
    checks = passes(model)
    (row,) = generate(model, [prompt], max_new_tokens=count, draft=draft, draft_tokens=ahead, **settings)
    assert row.tokens == text[:count]
    assert len(checks) == wanted
    assert count / (ahead + 1) < wanted < count - 1  # some of it was accepted


def test_half_good_drafts_are_partly_accepted_when_text_is_drawn() -> None:
    model, draft = tiny(), near(tiny(), 0.05)
    checks = passes(model)
    generate(model, PROMPTS[:1], max_new_tokens=41, draft=draft, draft_tokens=4, temperature=1.0, seed=4)
    assert 40 / 5 < len(checks) < 40


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.8, "top_k": 8, "repetition_penalty": 1.3}], ids=["greedy", "drawn"]
)
def test_ends_within_what_was_accepted(settings: dict) -> None:
    model, draft = tiny("hybrid"), near(tiny("hybrid"), 0.05)
    given = {"draft": draft, "draft_tokens": 3, "seed": [5, 2, 8, 9], "max_new_tokens": 14, **settings}
    texts = [row.tokens for row in generate(model, PROMPTS, **given)]
    for arguments, end, reason in (
        ({"eos": texts[2][5]}, texts[2][5:6], "eos"),
        ({"stop": [texts[2][6:9]]}, texts[2][6:9], "stop"),
        ({"stop": Letters().decode(texts[2][3:6]), "tokenizer": Letters()}, texts[2][3:6], "stop"),
    ):
        found = generate(model, PROMPTS, **arguments, **given)
        for row, whole in zip(found, texts, strict=True):
            ends = [at for at in range(len(end), len(whole) + 1) if whole[at - len(end) : at] == end]
            assert row.tokens == (whole[: ends[0]] if ends else whole)
            assert row.reason == (reason if ends else "length")
        assert found[2].reason == reason


@pytest.mark.parametrize("kind", ["mamba2", "mamba1", "hybrid"])
def test_a_row_does_not_depend_on_the_others(kind: str) -> None:
    model, draft, seeds = tiny(kind), near(tiny(kind), 0.1), [3, 1, 4, 1]
    given = {
        "max_new_tokens": 12,
        "temperature": 1.0,
        "min_p": 0.01,
        "eos": 0,
        "draft": draft,
        "repetition_penalty": 1.1,
    }
    together = generate(model, PROMPTS, seed=seeds, **given)
    assert together == generate(model, PROMPTS, seed=seeds, **given)
    order = [2, 0, 3, 1]
    other = generate(model, [PROMPTS[row] for row in order], seed=[seeds[row] for row in order], **given)
    for row, seed in enumerate(seeds):
        (alone,) = generate(model, [PROMPTS[row]], seed=seed, **given)
        assert alone.tokens == together[row].tokens == other[order.index(row)].tokens
        assert alone.reason == together[row].reason
    assert len({len(row.tokens) for row in together}) > 1


def test_streaming_is_the_same_text() -> None:
    model = tiny()
    given = {"max_new_tokens": 9, "temperature": 1.0, "seed": 2, "draft": tiny(seed=3)}
    found = list(stream(model, PROMPTS, **given))
    whole = [row.tokens for row in generate(model, PROMPTS, **given)]
    assert [[token for row, token in found if row == index] for index in range(4)] == whole


def test_one_new_token_and_none() -> None:
    model, draft = tiny(), tiny(seed=3)
    for count in (0, 1):
        plain = generate(model, PROMPTS, max_new_tokens=count)
        assert generate(model, PROMPTS, max_new_tokens=count, draft=draft) == plain


@pytest.mark.parametrize("whose", ["the model", "the draft"])
def test_logits_that_are_no_numbers_are_an_error_that_names_the_place(whose: str) -> None:
    prompts = [[1, 2], [3, 4]]
    for seed in range(50):  # until the second row begins with a token of its own
        model, draft = tiny(seed=seed), tiny(seed=seed)
        texts = [row.tokens for row in generate(model, prompts, max_new_tokens=6)]
        if texts[1][0] not in [1, 2, 3, 4, *texts[0]]:
            break
    with torch.no_grad():
        (model if whose == "the model" else draft).embedding.weight[texts[1][0]] = math.nan
    with pytest.raises(ValueError, match=f"logits of {whose} for position 3 of row 1 are not finite"):
        generate(model, prompts, max_new_tokens=5, draft=draft, draft_tokens=1)
