"""Packed sequences, ``cu_seqlens``: each is by itself what it is alone."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from ssd_examples import (
    BOUNDS,
    CHUNKS,
    FORMS,
    Example,
    Results,
    assert_equal,
    example,
    examples,
    results,
    truth,
)

from statedual.ssd import segments, ssd

every_form = pytest.mark.parametrize("form", FORMS)
OFFSETS = {
    "one": [0, 40],
    "several": [0, 7, 23, 40],
    "empty_first": [0, 0, 0, 40],
    "empty_middle": [0, 17, 17, 17, 40],
    "empty_last": [0, 40, 40],
    "empty_everywhere": [0, 0, 16, 16, 33, 33],
    "single_tokens": [0, 1, 2, 3],
    "all_empty": [0, 0, 0, 0],
    "no_sequences": [0],
}


@every_form
@settings(deadline=None, derandomize=True, max_examples=25)
@given(examples(tuple(BOUNDS), packed=True), CHUNKS)
def test_any_packing(form: str, case: Example, chunk: int) -> None:
    assert_equal(results(case, form, chunk), truth(case), case)


@every_form
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("name", OFFSETS)
def test_empty_sequences(form: str, name: str, initial: bool) -> None:
    offsets = OFFSETS[name]
    case = example(offsets[-1], groups=(6, 2, 3), offsets=offsets, initial=initial)
    got = results(case, form, 16)
    assert_equal(got, truth(case), case)
    for k, (start, stop) in enumerate(itertools.pairwise(offsets)):
        if start == stop:
            assert torch.equal(got.final_state[k], case.initial_state[k] if initial else torch.zeros(6, 4, 3))


def alone(case: Example, form: str, chunk: int) -> Results:
    """The sequences of ``case`` one by one, put together again."""
    parts = []
    for k, (start, stop) in enumerate(itertools.pairwise(case.offsets)):
        x, log_a, b, c, grad_y = (t[:, start:stop] for t in (case.x, case.log_a, case.b, case.c, case.grad_y))
        own = slice(k, k + 1)
        part = Example(x, log_a, b, c, case.initial_state[own], None, grad_y, case.grad_final[own])
        parts.append(results(part, form, chunk))
    axes = (1, 0, 1, 1, 1, 1, 0)
    return Results(*(torch.cat(tensors, axis) for axis, tensors in zip(axes, zip(*parts, strict=True), strict=True)))


@every_form
def test_packing_is_exactly_running_one_by_one(form: str) -> None:
    """No number of one sequence, not even by rounding, depends on its neighbours."""
    case = example(100, groups=(6, 2, 3), offsets=[0, 33, 33, 34, 98, 100])
    for got, wanted in zip(results(case, form, 16), alone(case, form, 16), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@every_form
def test_nothing_crosses_a_border(form: str) -> None:
    """NaN in one sequence stays there, forwards and backwards."""
    case = example(30, kind="usual", offsets=[0, 10, 20, 30])
    clean = results(case, form, 4)
    for tensor in (case.x, case.log_a, case.b, case.c):
        tensor[:, 10:20] = torch.nan
    dirty = results(case, form, 4)
    for name in ("y", "x", "log_a", "b", "c"):
        got, wanted = getattr(dirty, name), getattr(clean, name)
        assert got[:, 10:20].isnan().any(), name
        assert torch.equal(got[:, :10], wanted[:, :10]), name
        assert torch.equal(got[:, 20:], wanted[:, 20:]), name
    for name in ("final_state", "initial_state"):
        assert torch.equal(getattr(dirty, name)[[0, 2]], getattr(clean, name)[[0, 2]]), name


@every_form
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_both_dtypes_of_offsets(form: str, dtype: torch.dtype) -> None:
    case = example(40, offsets=[0, 7, 7, 40])
    given_ = (case.x, case.log_a, case.b, case.c)
    y, final = ssd(*given_, cu_seqlens=torch.tensor(case.offsets, dtype=dtype), form=form)
    expected = ssd(*given_, cu_seqlens=torch.tensor(case.offsets), form="recurrent")
    torch.testing.assert_close(y, expected.y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(final, expected.final_state, rtol=1e-5, atol=1e-5)


def test_sequences_that_are_cut_into_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sequence keeps the states that enter its segments; the backward finds its own."""
    monkeypatch.setitem(segments._BUDGET, "cpu", 100_000)
    case = example(1000, 4, (4, 2, 1), head_dim=16, state=8, offsets=[0, 0, 300, 309, 309, 900, 1000])
    walk = segments.Walk.plan(1, 1000, 16, 4 * (2 * 16 * 16 + 4 * 16 * 16 + 2 * 16 * 8), case.x)
    assert sum(len(run.segments) for run in walk.runs(1, 1000, case.offsets)) > 10
    assert_equal(results(case, "chunked", 16), truth(case), case)
