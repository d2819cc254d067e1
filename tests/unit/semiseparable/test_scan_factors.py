"""The factors of the 1-SS matrix that every mode applies: their product, and where app. B draws their entries."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import error, normal
from torch import Tensor

from statedual.semiseparable import one_semiseparable, scan, scan_factors
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


@pytest.mark.parametrize("mode", ["dilated", "block"])
@pytest.mark.parametrize("time", [2, 3, 8, 11, 16])
def test_each_factor_doubles_what_is_solved(mode: str, time: int) -> None:
    """The last l factors: dilated sums 2^l entries; block has every aligned block of 2^l steps, quadrant included."""
    a, step = normal(time, seed=8), torch.arange(time)
    product, length = torch.eye(time, dtype=torch.float64), 1
    for factor in reversed(scan_factors(a, mode)):
        product, length = factor @ product, 2 * length
        near = step[:, None] - step < length
        solved = near if mode == "dilated" else step[:, None] // length == step // length
        assert error(product, matrix(a) * solved) < 1e-14
    assert length >= time


@pytest.mark.parametrize(
    ("mode", "time", "ends"),
    [("sequential", 5, range(2, 6)), ("recurrent", 5, range(2, 6)), ("state_passing", 8, [3, 3, 6, 6, 8])],
)
def test_states_are_finished_one_stretch_after_another(mode: str, time: int, ends: list[int]) -> None:
    """Up to its end the matrix is done; the entries after it are untouched, but for the first: it has the state."""
    a = normal(time, seed=9)
    product, M = torch.eye(time, dtype=torch.float64), matrix(a)
    for factor, end in zip(reversed(scan_factors(a, mode)), ends, strict=True):
        product = factor @ product
        assert error(product[:end], M[:end]) < 1e-14
        changed = (product != torch.eye(time)).any(1)
        assert not changed[end + 1 :].any()


@pytest.mark.parametrize("time", [2, 3, 8, 11])
def test_the_lower_left_block_has_the_rank_one_factorisation_of_the_paper(time: int) -> None:
    """M_C = [a_{k:k} ... a_{T-1:k}]^T a_k [a_{k-1:0} ... a_{k-1:k-1}], M_R's first column and M_L's last row, all k."""
    a, b = normal(time, seed=10), normal(time, seed=11)
    M, h = one_semiseparable(a), matrix(a) @ b
    for k in range(1, time):
        column = torch.tensor([entry(a, t, k) for t in range(k, time)], dtype=torch.float64)
        row = torch.tensor([entry(a, k - 1, s) for s in range(k)], dtype=torch.float64)
        assert error(M[k:, :k], torch.outer(column, a[k] * row)) < 1e-14
        assert error(M[k:, k], column) < 1e-14
        assert error(M[k - 1, :k], row) < 1e-14
        assert error(M[k:, :k] @ b[:k], column * a[k] * h[k - 1]) < 1e-12


def test_the_grid_of_pairs_has_the_blocks_of_the_paper() -> None:
    """[a_{2i:2i} a_{2i+1:2i}]^T a_{2i:2j+1} [a_{2j+1:2j} a_{2j+1:2j+1}]; that row is the last of the diagonal block."""
    a = normal(8, seed=12)
    M, one = one_semiseparable(a), torch.ones((), dtype=torch.float64)
    for i in range(4):
        for j in range(i):
            column, row = torch.stack([one, a[2 * i + 1]]), torch.stack([a[2 * j + 1], one])
            center = entry(a, 2 * i, 2 * j + 1)
            assert error(M[2 * i : 2 * i + 2, 2 * j : 2 * j + 2], center * torch.outer(column, row)) < 1e-14
            assert torch.equal(M[2 * j + 1, 2 * j : 2 * j + 2], row)


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_blelloch_s_sweeps_are_the_stages_of_the_associative_mode(levels: int) -> None:
    """The up-sweep is stage 1 at every level; the down-sweep has the products of stage 3, one step later."""
    a = normal(2**levels, seed=13)
    blelloch, associative = scan_factors(a, "blelloch"), scan_factors(a, "associative")
    for up, stage_1 in zip(blelloch[-levels:], associative[-levels:], strict=True):
        assert torch.equal(up, stage_1)
    # The root's pair has nothing to carry: a factor of the down-sweep that only moves numbers, and none of stage 3.
    for down, stage_3 in zip(blelloch[1:levels], associative[:-levels], strict=True):
        for t, s in below(stage_3):
            assert down[2 * t - s, 2 * t - s] == stage_3[t, s]
        assert int((down != 0).sum()) == 2**levels + len(below(stage_3))
    assert sorted(blelloch[levels].unique().tolist()) == [0, 1]


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
