"""Cutting a sequence anywhere and passing the state on is the same function, gradients included."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ssd_examples import FORMS, PATTERNS, Example, Results, assert_equal, example, truth

from statedual.ssd import ssd

every_form = pytest.mark.parametrize("form", FORMS)


def in_pieces(case: Example, borders: list[int], form: str, chunk: int) -> Results:
    """Run ``case`` from border to border, differentiate the whole."""
    leaves = [t.clone().requires_grad_() for t in case.tensors()]
    state = leaves[4] if len(leaves) > 4 else None
    edges = [0, *sorted(borders), case.x.shape[1]]
    ys = []
    for start, stop in itertools.pairwise(edges):
        parts = (t[:, start:stop] for t in leaves[:4])
        y, state = ssd(*parts, initial_state=state, form=form, chunk_size=chunk)
        ys.append(y)
    y = torch.cat(ys, 1)
    gradients = torch.autograd.grad((y, state), leaves, (case.grad_y, case.grad_final))
    return Results(y.detach(), state.detach(), *gradients, *([None] if len(leaves) == 4 else []))


@every_form
@settings(deadline=None, derandomize=True, max_examples=20)
@given(
    borders=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    chunk=st.integers(1, 70),
    pattern=st.sampled_from(sorted(PATTERNS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 999),
)
def test_any_cuts(form: str, borders: list[int], chunk: int, pattern: str, dtype: torch.dtype, seed: int) -> None:
    """Also at both ends, and twice at one place."""
    case = example(60, groups=PATTERNS[pattern], batch=2, dtype=dtype, initial=bool(seed % 2), seed=seed)
    assert_equal(in_pieces(case, borders, form, chunk), truth(case), case)


@every_form
def test_token_by_token(form: str) -> None:
    case = example(12, groups=(6, 2, 3))
    assert_equal(in_pieces(case, list(range(1, 12)), form, 64), truth(case), case)


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_one_form_continues_another(first: str, second: str) -> None:
    case = example(50, dtype=torch.float64)
    parts = [[t[:, :21] for t in case.tensors()[:4]], [t[:, 21:] for t in case.tensors()[:4]]]
    y1, state = ssd(*parts[0], initial_state=case.initial_state, form=first)
    y2, state = ssd(*parts[1], initial_state=state, form=second)
    wanted = truth(case)
    torch.testing.assert_close(torch.cat([y1, y2], 1), wanted.y, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(state, wanted.final_state, rtol=1e-11, atol=1e-11)


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_no_time_returns_the_initial_state(form: str, dtype: torch.dtype) -> None:
    case = example(0, batch=2, dtype=dtype)
    initial = case.initial_state.requires_grad_()
    y, final = ssd(case.x, case.log_a, case.b, case.c, initial_state=initial, form=form)
    assert y.shape == (2, 0, 6, 4)
    assert y.dtype == dtype
    assert torch.equal(final, initial)
    (gradient,) = torch.autograd.grad(final, initial, case.grad_final)
    assert torch.equal(gradient, case.grad_final)


@every_form
@pytest.mark.parametrize("time", [0, 1, 5])
def test_the_final_state_shares_no_memory_with_the_initial_one(form: str, time: int) -> None:
    """``ssd_step`` writes into the state it is given: that must not reach back into an earlier one."""
    case = example(time)
    kept = case.initial_state.clone()
    ssd(case.x, case.log_a, case.b, case.c, initial_state=case.initial_state, form=form).final_state.fill_(7)
    assert torch.equal(case.initial_state, kept)


@every_form
def test_the_initial_state_may_have_fewer_bits(form: str) -> None:
    case = example(5, kind="usual")
    half = case.initial_state.bfloat16().requires_grad_()
    y, final = ssd(case.x, case.log_a, case.b, case.c, initial_state=half, form=form)
    expected = ssd(case.x, case.log_a, case.b, case.c, initial_state=half.detach().float(), form=form)
    torch.testing.assert_close(y, expected.y, rtol=0, atol=0)
    assert final.dtype == torch.float32
    (gradient,) = torch.autograd.grad(y.sum() + final.sum(), half)
    assert gradient.dtype == torch.bfloat16
    assert gradient.any()
