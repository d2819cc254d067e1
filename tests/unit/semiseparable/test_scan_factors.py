"""The factors of the 1-SS matrix that every mode applies: their product, and where app. B draws their entries."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import error, normal
from torch import Tensor

from statedual.semiseparable import scan, scan_factors
from statedual.semiseparable.scan_modes import MODES

every_mode = pytest.mark.parametrize("mode", MODES)


def entry(a: Tensor, t: int, s: int) -> float:
    return math.prod(a[s + 1 : t + 1].tolist())


def matrix(a: Tensor) -> Tensor:
    time = range(len(a))
    rows = [[entry(a, t, s) if t >= s else 0.0 for s in time] for t in time]
    return torch.tensor(rows, dtype=torch.float64)


def below(factor: Tensor) -> set[tuple[int, int]]:
    return {(t, s) for t, s in factor.nonzero().tolist() if t != s}


@every_mode
@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(1, 19), st.booleans(), st.integers(0, 999))
def test_product_is_the_1_ss_matrix(mode: str, time: int, zeros: bool, seed: int) -> None:
    a = normal(time, seed=seed)
    if zeros:
        a = torch.where(normal(time, seed=seed + 1) < 0, 0.0, a)
    assert error(functools.reduce(torch.matmul, scan_factors(a, mode)), matrix(a)) < 1e-13


@every_mode
@pytest.mark.parametrize("time", [1, 2, 3, 8, 11])
def test_applied_from_the_right_they_are_the_scan(mode: str, time: int) -> None:
    a, b = normal(time, seed=1), normal(time, 2, seed=2)
    h = b
    for factor in reversed(scan_factors(a, mode)):
        h = factor @ h
    assert error(h, scan(a, b, dim=0, mode=mode)) < 1e-13


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "blelloch"])
@pytest.mark.parametrize("time", [1, 2, 3, 8, 11])
def test_each_is_the_1_ss_matrix_with_entries_erased(mode: str, time: int) -> None:
    a = normal(time, seed=3)
    for factor in scan_factors(a, mode):
        assert torch.equal(factor.diagonal(), torch.ones(time, dtype=torch.float64))
        for t, s in below(factor):
            assert t > s
            assert factor[t, s].item() == pytest.approx(entry(a, t, s), rel=1e-14)
        assert below(factor) or time == 1, "an identity"


def test_places_at_eight_steps() -> None:
    """The drawings: strides 4, 2, 1; and stage 3, then stage 2 in its own three stages, then stage 1."""
    places = {mode: [below(factor) for factor in scan_factors(normal(8, seed=1), mode)] for mode in MODES}
    assert places["dilated"] == [{(t, t - k) for t in range(k, 8)} for k in (4, 2, 1)]
    assert places["block"] == [
        {(4, 3), (5, 3), (6, 3), (7, 3)},
        {(2, 1), (3, 1), (6, 5), (7, 5)},
        {(1, 0), (3, 2), (5, 4), (7, 6)},
    ]
    assert places["associative"] == [
        {(2, 1), (4, 3), (6, 5)},
        {(5, 3)},
        {(7, 3)},
        {(3, 1), (7, 5)},
        {(1, 0), (3, 2), (5, 4), (7, 6)},
    ]
    assert places["sequential"] == places["recurrent"] == [{(t, t - 1)} for t in reversed(range(1, 8))]
    chunks = [{(t, s) for t in steps for s in steps if s < t} for steps in (range(6, 8), range(3, 6), range(3))]
    assert places["state_passing"] == [chunks[0], {(6, 5)}, chunks[1], {(3, 2)}, chunks[2]]


def test_three_step_factorisation_of_the_paper() -> None:
    """The middle one of the three drawn is the 1-SS matrix on the odd steps, of half the size."""
    a = normal(8, seed=4)
    last, *inner, first = scan_factors(a, "associative")
    middle = functools.reduce(torch.matmul, inner)
    assert below(middle) == {(3, 1), (5, 1), (5, 3), (7, 1), (7, 3), (7, 5)}
    assert error(middle[1::2, 1::2], matrix(torch.stack([a[0] * a[1], *(a[k - 1] * a[k] for k in (3, 5, 7))]))) < 1e-14
    assert error(last @ middle @ first, matrix(a)) < 1e-14


@every_mode
@pytest.mark.parametrize("time", [2, 3, 8, 11])
def test_number_of_factors_and_of_their_entries(mode: str, time: int) -> None:
    """Parallel modes have a factor or two a level, each row of which reads one other step: butterfly matrices."""
    factors = scan_factors(normal(time, seed=5), mode)
    levels = (time - 1).bit_length()
    if mode in ("sequential", "recurrent"):
        assert len(factors) == time - 1
    elif mode != "state_passing":
        assert (
            len(factors)
            <= {"dilated": levels, "block": levels, "associative": 2 * levels, "blelloch": 2 * levels + 1}[mode]
        )
        assert max(int((factor != 0).sum(1).max()) for factor in factors) <= 2


@every_mode
def test_gradients(mode: str) -> None:
    a = normal(5, seed=6)
    a[2] = 0
    assert torch.autograd.gradcheck(lambda a: tuple(scan_factors(a, mode)), a.requires_grad_())


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="mode is 'parallel', expected one of 'sequential'"):
        scan_factors(torch.ones(3), "parallel")
    with pytest.raises(ValueError, match=r"a has shape \(0,\), expected at least one step"):
        scan_factors(torch.ones(0), "block")
    with pytest.raises(ValueError, match=r"a has shape \(2, 3\), expected 1 axes"):
        scan_factors(torch.ones(2, 3), "block")
    with pytest.raises(ValueError, match=r"a has dtype torch\.int64"):
        scan_factors(torch.ones(3, dtype=torch.int64), "block")
