"""Text against the slow way: the whole text through the model for each token, and a choice made by plain lists."""

import bisect
import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from generation_examples import (
    BLOCKS,
    VOCAB,
    Letters,
    logits_after,
    prompts_of,
    reference_probabilities,
    slow_text,
    tiny,
)
from torch import Tensor

from statedual.generation import Generation, generate, stream
from statedual.models import LanguageModel

PROMPTS = prompts_of((4, 1, 9, 2))
DRAWN = {"temperature": 0.9, "top_k": 7, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2}


def tokens_of(found: Sequence[Generation]) -> list[list[int]]:
    return [row.tokens for row in found]


def slow_draws(model: LanguageModel, prompt: Sequence[int], count: int, seed: int, **settings: float) -> list[int]:
    generator = torch.Generator().manual_seed(seed)

    def choose(logits: Tensor, tokens: list[int]) -> int:
        mass = list(itertools.accumulate(reference_probabilities(logits.tolist(), seen=tokens, **settings)))
        number = torch.rand((), generator=generator, dtype=torch.float64).item()
        return bisect.bisect_right(mass, number * mass[-1])

    return slow_text(model, prompt, count, choose)


@pytest.mark.parametrize("kind", BLOCKS)
def test_greedy_takes_the_likeliest_token(kind: str) -> None:
    model = tiny(kind)
    found = generate(model, PROMPTS, max_new_tokens=12)
    assert tokens_of(found) == [slow_text(model, prompt, 12) for prompt in PROMPTS]
    assert {row.reason for row in found} == {"length"}
    # Rows of the embedding behind the vocabulary would be chosen if they could.
    assert any(logits_after(model, prompt).argmax() >= VOCAB for prompt in PROMPTS)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("settings", [{"temperature": 1.0}, DRAWN], ids=["plain", "filters"])
def test_draws_are_those_of_each_rows_own_stream(kind: str, settings: dict) -> None:
    model = tiny(kind)
    found = generate(model, PROMPTS, max_new_tokens=12, seed=5, **settings)
    assert tokens_of(found) == [
        slow_draws(model, prompt, 12, 5 + row, **settings) for row, prompt in enumerate(PROMPTS)
    ]


def test_the_repetition_penalty_changes_greedy_text_too() -> None:
    model, settings = tiny(), {"repetition_penalty": 2.5, "temperature": 0.0}
    found = tokens_of(generate(model, PROMPTS, max_new_tokens=12, **settings))
    assert found == [slow_draws(model, prompt, 12, 0, **settings) for prompt in PROMPTS]
    assert found != tokens_of(generate(model, PROMPTS, max_new_tokens=12))


@pytest.mark.parametrize("settings", [{}, DRAWN], ids=["greedy", "drawn"])
def test_logprobs_are_of_the_models_own_logits(settings: dict) -> None:
    model = tiny()
    for prompt, row in zip(PROMPTS, generate(model, PROMPTS, max_new_tokens=6, seed=1, **settings), strict=True):
        for at, (token, logprob) in enumerate(zip(row.tokens, row.logprobs, strict=True)):
            truth = logits_after(model, [*prompt, *row.tokens[:at]])[:VOCAB].log_softmax(0)[token].item()
            assert logprob == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_row_does_not_depend_on_the_others(kind: str) -> None:
    model, seeds = tiny(kind), [3, 1, 4, 1]
    together = generate(model, PROMPTS, max_new_tokens=10, seed=seeds, eos=0, **DRAWN)
    order = [2, 0, 3, 1]
    other = generate(
        model, [PROMPTS[row] for row in order], max_new_tokens=10, seed=[seeds[row] for row in order], eos=0, **DRAWN
    )
    alone = [
        generate(model, [prompt], max_new_tokens=10, seed=seed, eos=0, **DRAWN)[0]
        for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    assert tokens_of(alone) == tokens_of(together)
    assert [other[order.index(row)].tokens for row in range(4)] == tokens_of(together)
    assert [row.reason for row in alone] == [row.reason for row in together]


def test_the_same_seed_gives_the_same_text_and_none_another() -> None:
    model, settings = tiny(), {"max_new_tokens": 20, "temperature": 1.0}
    assert generate(model, PROMPTS, seed=3, **settings) == generate(model, PROMPTS, seed=3, **settings)
    assert generate(model, PROMPTS, seed=3, **settings) != generate(model, PROMPTS, seed=4, **settings)
    assert generate(model, PROMPTS, **settings) != generate(model, PROMPTS, **settings)


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_row_ends_for_itself(kind: str) -> None:
    model = tiny(kind)
    given = {"max_new_tokens": 25, "temperature": 4.0, "seed": 2}
    texts = tokens_of(generate(model, PROMPTS, **given))
    for eos in ([0], [3, 8]):
        found = generate(model, PROMPTS, eos=eos, **given)
        for text, row in zip(texts, found, strict=True):
            ends = [at for at, token in enumerate(text) if token in eos]
            assert row.tokens == (text[: ends[0] + 1] if ends else text)
            assert row.reason == ("eos" if ends else "length")
            assert len(row.logprobs) == len(row.tokens)
        assert len({len(row.tokens) for row in found}) > 1


def test_rows_that_ended_are_not_computed_any_more() -> None:
    model, sizes = tiny(), []
    model.norm.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[0]))
    found = generate(model, PROMPTS, max_new_tokens=25, temperature=1.0, seed=2, eos=0)
    lengths = [len(row.tokens) for row in found]
    assert sizes[1:] == [sum(length > step for length in lengths) for step in range(1, max(lengths))]


def test_stop_sequences_and_strings() -> None:
    model = tiny()
    texts = tokens_of(generate(model, PROMPTS, max_new_tokens=25, temperature=1.0, seed=2))
    pair = texts[0][7:9]
    ends = [next((at + 2 for at in range(24) if text[at : at + 2] == pair), 25) for text in texts]
    for stop in ([pair], Letters().decode(pair), [[0] * 30, Letters().decode(pair)]):
        found = generate(model, PROMPTS, max_new_tokens=25, temperature=1.0, seed=2, stop=stop, tokenizer=Letters())
        assert tokens_of(found) == [text[:end] for text, end in zip(texts, ends, strict=True)]
        assert [row.reason for row in found] == ["stop" if end < 25 else "length" for end in ends]
        assert found[0].reason == "stop"


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padded_prompts_give_the_same_text_as_ragged_ones(kind: str, side: str) -> None:
    model = tiny(kind)
    ids, mask = torch.full((4, 12), 7), torch.zeros(4, 12, dtype=torch.bool)
    for row, prompt in enumerate(PROMPTS):
        start = {"left": 12 - len(prompt), "right": 0, "both": 1}[side]
        ids[row, start : start + len(prompt)] = torch.tensor(prompt)
        mask[row, start : start + len(prompt)] = True
    assert generate(model, ids, mask=mask, max_new_tokens=8) == generate(model, PROMPTS, max_new_tokens=8)


@pytest.mark.parametrize("kind", BLOCKS)
def test_the_text_does_not_depend_on_the_block(kind: str) -> None:
    model = tiny(kind)
    texts = {
        block: tokens_of(generate(model, PROMPTS, max_new_tokens=6, block=block)) for block in (1, 2, 3, 5, 16, 99)
    }
    assert all(text == texts[99] for text in texts.values())


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 2, "eos": 0}], ids=["greedy", "drawn"])
def test_streaming_is_the_same_text_as_it_comes(settings: dict) -> None:
    model = tiny()
    found = list(stream(model, PROMPTS, max_new_tokens=9, **settings))
    whole = tokens_of(generate(model, PROMPTS, max_new_tokens=9, **settings))
    assert [[token for row, token in found if row == index] for index in range(4)] == whole
    places: dict[int, int] = {}
    steps = [(places.setdefault(row, -1), places.update({row: places[row] + 1}))[0] for row, _ in found]
    assert steps == sorted(steps)  # the first token of all rows, then the second


def test_streaming_computes_as_it_is_asked_and_leaves_the_callers_mode_alone() -> None:
    model, calls = tiny(), []
    model.norm.register_forward_hook(lambda *_: calls.append(torch.is_inference_mode_enabled()))
    tokens = stream(model, [[1, 2]], max_new_tokens=5)
    assert calls == []
    next(tokens)
    assert calls == [True]
    assert not torch.is_inference_mode_enabled()
    next(tokens)
    assert calls == [True, True]
    tokens.close()


def test_no_new_tokens_need_no_model() -> None:
    model, calls = tiny(), []
    model.embedding.register_forward_hook(lambda *_: calls.append(1))
    assert generate(model, PROMPTS, max_new_tokens=0) == [Generation([], [], "length")] * 4
    assert list(stream(model, PROMPTS, max_new_tokens=0)) == []
    assert calls == []


def test_progress_of_the_prompts() -> None:
    calls: list[tuple[int, int]] = []
    generate(tiny(), PROMPTS, max_new_tokens=3, block=6, progress=lambda *done: calls.append(done))
    assert calls == [(6, 16), (12, 16), (16, 16)]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_is(training: bool) -> None:
    model = tiny("hybrid").train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generate(model, PROMPTS, max_new_tokens=3)
    assert model.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    model(torch.tensor([[1, 2]])).logits.sum().backward()  # no inference tensor was left in it


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["mamba2", "hybrid"])
def test_models_of_every_precision(kind: str, dtype: torch.dtype) -> None:
    model = tiny(kind).to(dtype)
    for settings in ({}, {**DRAWN, "seed": 1}):
        found = generate(model, PROMPTS, max_new_tokens=5, **settings)
        assert all(0 <= token < VOCAB for row in found for token in row.tokens)
        assert all(math.isfinite(logprob) for row in found for logprob in row.logprobs)


def test_half_precision_chooses_by_its_own_logits() -> None:
    model = tiny().to(torch.bfloat16)
    (row,) = generate(model, PROMPTS[:1], max_new_tokens=1)
    assert row.tokens == slow_text(model, PROMPTS[0], 1)
    truth = logits_after(model, PROMPTS[0])[:VOCAB].log_softmax(0)[row.tokens[0]].item()
    assert row.logprobs[0] == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"top_p": 0.5, "temperature": 1.0}])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_an_error_that_names_the_place(settings: dict, poison: float) -> None:
    model = tiny()
    with torch.no_grad():
        model.embedding.weight[8] = poison
    with pytest.raises(ValueError, match=r"logits of the model for position 3 of row 1 are not finite"):
        generate(model, [[1, 2], [3, 8, 4], [5]], max_new_tokens=3, **settings)


def test_logits_that_are_no_numbers_any_more_end_a_text_that_began() -> None:
    prompts = [[1, 2], [3, 4]]
    for seed in range(50):  # until the second row begins with a token of its own
        model = tiny(seed=seed)
        first = [slow_text(model, prompt, 1)[0] for prompt in prompts]
        if first[1] not in [1, 2, 3, 4, first[0]]:
            break
    with torch.no_grad():
        model.embedding.weight[first[1]] = math.nan
    tokens = stream(model, prompts, max_new_tokens=3)
    assert [next(tokens), next(tokens)] == [(0, first[0]), (1, first[1])]
    with pytest.raises(ValueError, match="for position 3 of row 1 are not finite"):
        list(tokens)
