"""Packed sequences, ``cu_seqlens``: each is by itself what it is alone."""

import itertools

import pytest
import torch
from diagonal_examples import CHUNKS, PATHS, example, examples, results, truth
from hypothesis import given, settings
from unit.ssd.ssd_examples import BOUNDS, Example, Results, assert_equal

from statedual.selective_scan import diagonal_ssm, op

every_form = pytest.mark.parametrize("form", op.FORMS)
every_path = pytest.mark.parametrize("path", PATHS)
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
@settings(deadline=None, derandomize=True, max_examples=40)
@given(examples(tuple(BOUNDS), packed=True), CHUNKS)
def test_any_packing(form: str, case: Example, chunk: int) -> None:
    assert_equal(results(case, form, chunk), truth(case), case)


@every_path
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("name", OFFSETS)
def test_empty_sequences(path: str, name: str, initial: bool) -> None:
    (form, head_dim), offsets = PATHS[path], OFFSETS[name]
    case = example(offsets[-1], groups=(6, 2, 3), head_dim=head_dim, offsets=offsets, initial=initial)
    got = results(case, form, 16)
    assert_equal(got, truth(case), case)
    for k, (start, stop) in enumerate(itertools.pairwise(offsets)):
        if start == stop:
            assert torch.equal(got.final_state[k], case.initial_state[k] if initial else torch.zeros(6, head_dim, 3))


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


@every_path
def test_packing_is_exactly_running_one_by_one(path: str) -> None:
    """No number of one sequence, not even by rounding, depends on its neighbours."""
    form, head_dim = PATHS[path]
    case = example(100, groups=(6, 2, 3), head_dim=head_dim, offsets=[0, 33, 33, 34, 98, 100])
    for got, wanted in zip(results(case, form, 16), alone(case, form, 16), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@every_path
def test_nothing_crosses_a_border(path: str) -> None:
    """NaN in one sequence stays there, forwards and backwards."""
    form, head_dim = PATHS[path]
    case = example(30, head_dim=head_dim, kind="usual", offsets=[0, 10, 20, 30])
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


@every_path
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_both_dtypes_of_offsets(path: str, dtype: torch.dtype) -> None:
    form, head_dim = PATHS[path]
    case = example(40, head_dim=head_dim, offsets=[0, 7, 7, 40])
    offsets = torch.tensor(case.offsets, dtype=dtype)
    y, final = diagonal_ssm(*case.tensors()[:4], initial_state=case.initial_state, cu_seqlens=offsets, form=form)
    expected = truth(case)
    torch.testing.assert_close(y.double(), expected.y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(final.double(), expected.final_state, rtol=1e-5, atol=1e-5)
