"""Cutting a sequence anywhere and passing the state on is the same function, gradients included."""

import itertools

import pytest
import torch
from diagonal_examples import PATHS, differentiated, example, truth
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.ssd.ssd_examples import PATTERNS, Example, Results, assert_equal

from statedual.selective_scan import diagonal_ssm

every_path = pytest.mark.parametrize("path", PATHS)


def in_pieces(case: Example, borders: list[int], forms: list[str], chunk: int) -> Results:
    """Run ``case`` from border to border, each piece in the next form, and differentiate the whole."""
    leaves = [t.clone().requires_grad_() for t in case.tensors()]
    state, ys = leaves[4] if leaves[4:] else None, []
    pieces = itertools.pairwise([0, *sorted(borders), case.x.shape[1]])
    for (start, stop), form in zip(pieces, itertools.cycle(forms), strict=False):
        parts = (t[:, start:stop] for t in leaves[:4])
        y, state = diagonal_ssm(*parts, initial_state=state, form=form, chunk_size=chunk)
        ys.append(y)
    return differentiated(case, torch.cat(ys, 1), state, leaves)


@every_path
@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    borders=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    chunk=st.integers(1, 70),
    pattern=st.sampled_from(sorted(PATTERNS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 999),
)
def test_any_cuts(path: str, borders: list[int], chunk: int, pattern: str, dtype: torch.dtype, seed: int) -> None:
    """Also at both ends, and twice at one place."""
    form, head_dim = PATHS[path]
    initial = bool(seed % 2)
    case = example(60, groups=PATTERNS[pattern], batch=2, head_dim=head_dim, dtype=dtype, initial=initial, seed=seed)
    assert_equal(in_pieces(case, borders, [form], chunk), truth(case), case)


@every_path
def test_token_by_token(path: str) -> None:
    form, head_dim = PATHS[path]
    case = example(12, groups=(6, 2, 3), head_dim=head_dim)
    assert_equal(in_pieces(case, list(range(1, 12)), [form], 64), truth(case), case)


@pytest.mark.parametrize("head_dim", [3, 16])
@pytest.mark.parametrize("forms", [["recurrent", "chunked"], ["chunked", "recurrent"]])
def test_one_form_continues_another(forms: list[str], head_dim: int) -> None:
    case = example(50, head_dim=head_dim, dtype=torch.float64)
    assert_equal(in_pieces(case, [21], forms, 16), truth(case), case)


@every_path
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_no_time_returns_the_initial_state(path: str, dtype: torch.dtype) -> None:
    form, head_dim = PATHS[path]
    case = example(0, batch=2, head_dim=head_dim, dtype=dtype)
    initial = case.initial_state.requires_grad_()
    y, final = diagonal_ssm(case.x, case.log_a, case.b, case.c, initial_state=initial, form=form)
    assert y.shape == (2, 0, 6, head_dim)
    assert y.dtype == dtype
    assert torch.equal(final, initial)
    (gradient,) = torch.autograd.grad(final, initial, case.grad_final)
    assert torch.equal(gradient, case.grad_final)


@every_path
@pytest.mark.parametrize("time", [0, 1, 5])
def test_the_final_state_shares_no_memory_with_the_initial_one(path: str, time: int) -> None:
    """Who decodes writes into the state: that must not reach back into an earlier one."""
    form, head_dim = PATHS[path]
    case = example(time, head_dim=head_dim)
    kept = case.initial_state.clone()
    final = diagonal_ssm(*case.tensors()[:4], initial_state=case.initial_state, form=form).final_state
    final.fill_(7)
    assert torch.equal(case.initial_state, kept)


@every_path
def test_the_initial_state_may_have_fewer_bits(path: str) -> None:
    form, head_dim = PATHS[path]
    case = example(5, kind="usual", head_dim=head_dim)
    half = case.initial_state.bfloat16().requires_grad_()
    y, final = diagonal_ssm(*case.tensors()[:4], initial_state=half, form=form)
    expected = diagonal_ssm(*case.tensors()[:4], initial_state=half.detach().float(), form=form)
    torch.testing.assert_close(y, expected.y, rtol=0, atol=0)
    assert final.dtype == torch.float32
    (gradient,) = torch.autograd.grad(y.sum() + final.sum(), half)
    assert gradient.dtype == torch.bfloat16
    assert gradient.any()
