"""From logits to a token: each filter against a plain list, draws against exact probabilities."""

import bisect
import itertools
import math

import pytest
import torch
from generation_examples import reference_probabilities, require_distribution
from torch import Tensor

from statedual.generation.sampling import Sampling, draw

SETTINGS = {
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 4},
    "top_k of one": {"top_k": 1},
    "top_k of more than there are": {"top_k": 99},
    "top_p": {"top_p": 0.7},
    "top_p of the first": {"top_p": 1e-9},
    "top_p of all": {"top_p": 1.0},
    "min_p": {"min_p": 0.2},
    "min_p of the first": {"min_p": 1.0},
    "min_p of all": {"min_p": 0.0},
    "penalty": {"repetition_penalty": 1.7},
    "reward": {"repetition_penalty": 0.6},
    "all": {"temperature": 0.8, "top_k": 6, "top_p": 0.85, "min_p": 0.1, "repetition_penalty": 1.3},
    "greedy": {"temperature": 0.0},
    "greedy with penalty": {"temperature": 0.0, "repetition_penalty": 5.0},
}


def logits_of(rows: int, vocab: int = 9) -> Tensor:
    return 2 * torch.randn(rows, vocab)


def seen_of(rows: int, vocab: int = 9) -> Tensor:
    return torch.rand(rows, vocab) < 0.4


def sampling(settings: dict) -> Sampling:
    return Sampling(**{"temperature": 1.0, **settings})


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_probabilities_are_those_of_the_plain_list(settings: dict) -> None:
    logits, seen = logits_of(20), seen_of(20)
    found = sampling(settings).probabilities(logits, seen)
    assert found.dtype == torch.float64
    for row, marks, values in zip(logits.tolist(), seen.tolist(), found.tolist(), strict=True):
        tokens = [token for token, mark in enumerate(marks) if mark]
        assert values == pytest.approx(reference_probabilities(row, seen=tokens, **settings), abs=1e-12)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_any_leading_axes(settings: dict) -> None:
    logits, seen = logits_of(6), seen_of(6)
    apart = sampling(settings).probabilities(logits, seen)
    together = sampling(settings).probabilities(logits.unflatten(0, (2, 3)), seen.unflatten(0, (2, 3)))
    assert torch.equal(together.flatten(0, 1), apart)


@pytest.mark.parametrize(
    ("one", "other"),
    # Each pair gives another result in the other order, on these logits.
    [
        ({"temperature": 2.0}, {"top_p": 0.6}),
        ({"temperature": 2.0}, {"min_p": 0.3}),
        ({"top_k": 3}, {"top_p": 0.7}),
        ({"repetition_penalty": 3.0}, {"top_k": 2}),
        ({"repetition_penalty": 3.0}, {"top_p": 0.6}),
    ],
)
def test_filters_work_on_what_the_ones_before_left(one: dict, other: dict) -> None:
    logits = torch.tensor([[2.0, 1.7, 1.3, 0.9, 0.2, -1.0]])
    seen = torch.tensor([[True, False, False, False, True, False]])
    found = sampling(one | other).probabilities(logits, seen)
    first = sampling(one).probabilities(logits, seen)
    # ln p as logits is the distribution itself: the second filter alone, on what the first one left
    assert torch.allclose(found, sampling(other).probabilities(first.log()), atol=1e-12)
    swapped = sampling(one).probabilities(sampling(other).probabilities(logits, seen).log(), seen)
    assert not torch.allclose(found, swapped, atol=1e-3)


def test_min_p_is_relative_to_the_largest_probability() -> None:
    logits = torch.tensor([[-4.0, 3.0, 2.9, 0.0]])  # token 0 is neither the largest, nor is its logit a probability
    found = sampling({"min_p": 0.5}).probabilities(logits)
    assert found[0].gt(0).tolist() == [False, True, True, False]
    shifted = sampling({"min_p": 0.5}).probabilities(logits - 100)
    assert torch.allclose(found, shifted, atol=1e-6)


def test_equal_logits_are_taken_from_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0, 2.0]])
    for settings, kept in (
        ({"temperature": 0.0}, [1]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 5}, [0, 1, 2, 3, 5]),
        ({"top_p": 0.3}, [1, 2]),
    ):
        assert sampling(settings).probabilities(logits)[0].nonzero()[:, 0].tolist() == kept, settings
    found = sampling({"top_k": 3}).probabilities(torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0]]))
    assert found[0].nonzero()[:, 0].tolist() == [0, 1, 2]


def test_the_nucleus_is_full_when_it_reaches_its_mass() -> None:
    logits = torch.zeros(1, 4)  # a quarter each, exactly
    for mass, kept in ((0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.99, 4)):
        found = sampling({"top_p": mass}).probabilities(logits)
        assert found[0].nonzero()[:, 0].tolist() == list(range(kept))


def test_impossible_tokens_stay_impossible_and_no_temperature_overflows() -> None:
    logits = torch.tensor([[-math.inf, 3e38, -3e38, 3e38]])
    for temperature in (1e-300, 1e-8, 1.0, 1e300):
        for settings in ({}, {"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.0}, {"repetition_penalty": 2.0}):
            found = sampling({"temperature": temperature, **settings}).probabilities(logits, logits > 0)
            assert found.isfinite().all()
            assert found[0, 0] == 0
            assert found.sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("settings", [{"top_p": 0.9}, {"top_p": 0.999}, {"top_k": 700, "top_p": 0.95}])
def test_large_vocabularies_with_narrow_and_wide_nuclei(settings: dict) -> None:
    logits = (logits_of(4, 6000) * torch.tensor([[0.0], [0.1], [1.0], [4.0]])).bfloat16()  # of few values: many equals
    found = sampling(settings).probabilities(logits)
    sizes = (found > 0).sum(-1).tolist()
    assert sizes[0] > 600
    assert sizes[3] < 100
    for row, values in zip(logits.tolist(), found.tolist(), strict=True):
        assert values == pytest.approx(reference_probabilities(row, **settings), abs=1e-12)


def test_half_precision_logits_are_widened() -> None:
    logits = torch.full((1, 1000), -20.0, dtype=torch.bfloat16)
    found = sampling({"top_p": 0.5}).probabilities(logits)
    # A sum of equal terms in bfloat16 would stop at 256 of them.
    assert found[0].nonzero()[:, 0].tolist() == list(range(500))


def test_the_draw_inverts_the_running_sum() -> None:
    weights = sampling({"top_k": 5}).probabilities(logits_of(50))
    numbers = torch.rand(50, dtype=torch.float64)
    for row, number, chosen in zip(weights.tolist(), numbers.tolist(), draw(weights, numbers).tolist(), strict=True):
        mass = list(itertools.accumulate(row))
        assert chosen == bisect.bisect_right(mass, number * mass[-1])


def test_the_draw_never_takes_what_has_no_weight() -> None:
    weights = torch.tensor([[0.0, 0.1, 0.0, 0.3, 0.0]], dtype=torch.float64).expand(4, 5)
    largest = 1 - 2.0**-53
    border = torch.tensor([0.0, 0.25, 0.25 - 1e-12, largest], dtype=torch.float64)
    assert draw(weights, border).tolist() == [1, 3, 1, 3]
    scales = torch.logspace(-300, 300, 601, dtype=torch.float64)
    many = scales[:, None] * torch.tensor([0.0, 0.7, 0.0], dtype=torch.float64)
    assert draw(many, torch.full((601,), largest, dtype=torch.float64)).unique().tolist() == [1]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_draws_are_distributed_as_the_probabilities(settings: dict) -> None:
    logits = torch.tensor([1.1, 0.4, -0.3, 2.0, 0.9, -2.5, 1.4, 0.0])
    seen = torch.tensor([False, True, False, True, False, False, False, True])
    exact = reference_probabilities(logits.tolist(), seen=[1, 3, 7], **settings)
    count = 20_000
    numbers = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    weights = sampling(settings).probabilities(logits.expand(count, 8), seen.expand(count, 8))
    counts = torch.bincount(draw(weights, numbers), minlength=8).tolist()
    if max(exact) == 1:
        assert counts == [count * int(p) for p in exact]
    else:
        require_distribution(counts, exact)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("temperature", value) for value in (-0.1, math.nan, math.inf, "1", None, True)),
        *(("top_k", value) for value in (0, -1, 2.0, math.nan, True)),
        *(("top_p", value) for value in (0.0, -0.1, 1.1, math.nan, True, "1")),
        *(("min_p", value) for value in (-0.1, 1.1, math.nan, False)),
        *(("repetition_penalty", value) for value in (0.0, -1.0, 1e-320, 1e9, math.nan, math.inf, None)),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_settings_that_mean_nothing_are_refused(name: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is {wrong!r}, expected ".replace("(", r"\(")):
        Sampling(**{name: wrong})
