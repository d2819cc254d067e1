"""One function: full pass = chunked prefill = packed = padded = token by token, for every block kind and hybrid."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_examples import (
    EXAMPLES,
    LIMITS,
    WAYS,
    alone,
    difference,
    model,
    state_difference,
    tokens,
)

from statedual.models import LanguageModel, ModelState

# Shapes are checked in the tests of the layers; here it would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked_shapes")
every_example = pytest.mark.parametrize("name", EXAMPLES)
every_precision = pytest.mark.parametrize(
    ("dtype", "bound", "tied"),
    [(torch.float32, 1e-5, True), (torch.float64, 1e-12, False)],
    ids=["float32, tied", "float64, untied"],
)
FIRST, SECOND = (3, 1, 0, 5), (2, 4, 3, 0)
"""Lengths of two pieces of four rows: a row may have nothing in either."""


@torch.no_grad()
def truth(lm: LanguageModel, rows: list[torch.Tensor]) -> tuple[list[torch.Tensor], ModelState]:
    """Every row in one pass by itself, in float64."""
    return alone(copy.deepcopy(lm).double(), rows, None)


@every_precision
@every_example
@torch.no_grad()
def test_every_way_is_one_function(name: str, dtype: torch.dtype, bound: float, tied: bool) -> None:
    """Each way to read the first piece, followed by each way to read the second."""
    lm = model(name, tied, dtype)
    rows = [tokens(sum(lengths)) for lengths in zip(FIRST, SECOND, strict=True)]
    first = [row[:length] for row, length in zip(rows, FIRST, strict=True)]
    second = [row[length:] for row, length in zip(rows, FIRST, strict=True)]
    logits_half, state_half = truth(lm, first)
    logits, state = truth(lm, rows)
    for way, read in WAYS.items():
        got, before = read(lm, first, None)
        assert difference(torch.cat(got), torch.cat(logits_half)) < bound, way
        assert state_difference(before, state_half) < bound, way
        for next_way, read_on in WAYS.items():
            more, after = read_on(lm, second, before)
            both = torch.cat([torch.cat(pair) for pair in zip(got, more, strict=True)])
            assert difference(both, torch.cat(logits)) < bound, (way, next_way)
            assert state_difference(after, state) < bound, (way, next_way)


@every_precision
@every_example
@torch.no_grad()
def test_a_batch_is_its_rows(name: str, dtype: torch.dtype, bound: float, tied: bool) -> None:
    """Rows of equal length side by side, in one pass, in chunks, and in steps behind a prefill."""
    lm = model(name, tied, dtype)
    ids = tokens(3, 14)
    logits, state = truth(lm, list(ids))
    whole = torch.stack(logits)
    assert difference(lm(ids).logits, whole) < bound
    assert state_difference(lm(ids).state, state) < bound
    for cuts in ((5,), (1, 2, 2, 9), (0, 13)):
        pieces, before = [], None
        for piece in ids.tensor_split(cuts, 1):
            output = lm(piece, before)
            pieces.append(output.logits)
            before = output.state
        assert difference(torch.cat(pieces, 1), whole) < bound
        assert state_difference(before, state) < bound
    for prompt in (0, 6):
        output = lm(ids[:, :prompt])
        steps = [output.logits]
        for token in ids[:, prompt:].unbind(1):
            output = lm.step(token, output.state)
            steps.append(output.logits[:, None])
        assert difference(torch.cat(steps, 1), whole) < bound
        assert state_difference(output.state, state) < bound


@pytest.mark.parametrize("name", ["mamba2, dt_limit", "mamba2, sequential, limited, biased"])
@pytest.mark.parametrize("without", [(0.0, LIMITS[1]), (LIMITS[0], math.inf)], ids=["lower", "upper"])
@torch.no_grad()
def test_both_limits_of_the_step_size_are_reached(name: str, without: tuple[float, float]) -> None:
    """Otherwise nothing above would show that every way respects them."""
    lm, ids = model(name), tokens(2, 10)
    blocks = tuple(dataclasses.replace(block, dt_limit=without) for block in lm.config.blocks)
    other = LanguageModel(dataclasses.replace(lm.config, blocks=blocks))
    other.load_state_dict(lm.state_dict())
    assert difference(other(ids).logits, lm(ids).logits) > 1e-2


DRAWN = {
    "hybrid, everything": torch.float64,
    "mamba2, cosformer, normalised, initial states": torch.float64,
    "hybrid, mamba2 + mlp + attention": torch.float32,
    "hybrid, Based": torch.float32,
    "mamba1": torch.float32,
}


@pytest.mark.parametrize("name", DRAWN)
@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    pieces=st.integers(1, 4).flatmap(
        lambda rows: st.lists(
            st.tuples(st.sampled_from(list(WAYS)), st.lists(st.integers(0, 9), min_size=rows, max_size=rows)),
            min_size=1,
            max_size=4,
        )
    ),
    seed=st.integers(0, 1000),
)
@torch.no_grad()
def test_any_cuts_in_any_ways(name: str, pieces: list[tuple[str, list[int]]], seed: int) -> None:
    """Rows of any lengths, cut anywhere, each piece read in a way of its own."""
    torch.manual_seed(seed)
    dtype = DRAWN[name]
    lm = model(name, dtype=dtype)
    rows = [tokens(sum(lengths)) for lengths in zip(*(lengths for _, lengths in pieces), strict=True)]
    logits, state = truth(lm, rows)
    found = [[] for _ in rows]
    before, start = None, [0] * len(rows)
    for way, lengths in pieces:
        stop = [position + length for position, length in zip(start, lengths, strict=True)]
        cut = [row[a:b] for row, a, b in zip(rows, start, stop, strict=True)]
        got, before = WAYS[way](lm, cut, before)
        for line, one in zip(found, got, strict=True):
            line.append(one)
        start = stop
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    assert difference(torch.cat(list(itertools.chain(*found))), torch.cat(logits)) < bound
    assert state_difference(before, state) < bound
