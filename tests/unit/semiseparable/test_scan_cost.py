"""The counter against counts by hand, and the counted work and depth against what app. B claims of every mode."""

import functools
import math

import pytest
import torch

from statedual.semiseparable import ScanCost, scan, scan_cost, scan_factors
from statedual.semiseparable.scan_cost import DepthArithmetic
from statedual.semiseparable.scan_modes import MODES, combine, default_chunk

cost = functools.cache(scan_cost)
every_mode = pytest.mark.parametrize("mode", MODES)
POWERS = [2**level for level in range(1, 9)]
LENGTHS = [*range(1, 20), 31, 32, 33, 50, 63, 64, 65, 100]

# (work, depth) of lengths 2, 3 and 4, by following every product and sum on paper. a x + b is two operations.
BY_HAND = {
    # One a x + b a step, each after the other.
    "sequential": [(2, 2), (4, 4), (6, 6)],
    "recurrent": [(2, 2), (4, 4), (6, 6)],
    # 3: chunks of 2 and 1: a pair (a product and a x + b), then the increment.  4: pair, increment, pair.
    "state_passing": [(3, 2), (5, 4), (8, 6)],
    # 3: stride 1 takes two a x + b and the product a_2 a_1; stride 2 one a x + b, whose factor is ready at depth 1 and
    # whose x is b_0. 4: three a x + b, two products; then two a x + b.
    "dilated": [(2, 2), (7, 3), (12, 4)],
    # 3: a pair, then one product and one a x + b for the step left over. 4: two pairs, then a half of two steps.
    "block": [(3, 2), (6, 4), (12, 4)],
    # 3: a pair, then one a x + b for the step left over. 4: two pairs, a pair of them, one a x + b for step 2.
    "associative": [(3, 2), (5, 4), (11, 4)],
    # T - 1 pairs on the way up, T - 1 times a x + b on the way down; h_3 is ready before h_2 is.
    "blelloch": [(5, 2), (10, 4), (15, 5)],
}


@every_mode
def test_counts_by_hand(mode: str) -> None:
    assert [cost(time, mode) for time in (2, 3, 4)] == BY_HAND[mode]


@every_mode
@pytest.mark.parametrize("time", [0, 1])
def test_nothing_to_do(mode: str, time: int) -> None:
    assert cost(time, mode) == ScanCost(work=0, depth=0)


@pytest.mark.parametrize("mode", ["sequential", "recurrent"])
def test_recurrences_do_one_step_after_the_other(mode: str) -> None:
    for time in LENGTHS:
        assert cost(time, mode) == (2 * (time - 1), 2 * (time - 1))


def test_state_passing_is_linear_and_sequential() -> None:
    """Increments take constant work; chunk follows chunk, so that the depth grows with their number."""
    for time in LENGTHS:
        work, depth = cost(time, "state_passing")
        chunk = default_chunk(time)
        chunks = -(-time // chunk)
        ends = time % chunk or chunk
        parts = [cost(chunk, "associative")] * (chunks - 1) + [cost(ends, "associative")]
        assert work == sum(part.work for part in parts) + 2 * (chunks - 1)
        assert work <= 5 * time
        assert 2 * (chunks - 1) <= depth <= sum(part.depth + 2 for part in parts)
    for side in (4, 8, 16):
        # A state passes through every chunk along the shortest path: the increment, and the levels of the chunk.
        assert cost(side**2, "state_passing").depth >= side * (2 * int(math.log2(side)))


@pytest.mark.parametrize("mode", ["dilated", "block"])
def test_parallel_modes_take_logarithmic_depth_for_more_work(mode: str) -> None:
    for time in POWERS:
        level = int(math.log2(time))
        work, depth = cost(time, mode)
        assert depth == 2 * level
        assert work == {"dilated": 3 * time * level - 4 * time + 4, "block": 3 * time * level // 2}[mode]
        # For every doubling, work grows by as much again and T more.
        assert cost(2 * time, mode).work >= 2 * work + time
    for time in LENGTHS:
        work, depth = cost(time, mode)
        assert depth <= 2 * math.ceil(math.log2(time))
        assert work <= 3 * time * math.ceil(math.log2(time))


@pytest.mark.parametrize("mode", ["associative", "blelloch"])
def test_scans_take_logarithmic_depth_and_linear_work(mode: str) -> None:
    for time in LENGTHS:
        work, depth = cost(time, mode)
        assert work <= 5 * time
        assert depth <= 4 * math.ceil(math.log2(time))
    for time in POWERS:
        level = int(math.log2(time))
        work, depth = cost(time, mode)
        # T/2 pairs of three operations, a problem of half the size, and T/2 - 1 steps a x + b; or T - 1 of each.
        assert work == {"associative": 5 * (time - 1) - 2 * level, "blelloch": 5 * (time - 1)}[mode]
        assert cost(2 * time, mode).depth <= depth + 4


def test_dilated_mode_has_half_the_depth_of_the_associative_scan() -> None:
    """The remark on Hillis and Steele: more work, half the span, but for a constant."""
    for time in POWERS[1:]:
        dilated, associative = cost(time, "dilated"), cost(time, "associative")
        assert 2 * dilated.depth == associative.depth + 4
        assert dilated.work > associative.work


@every_mode
def test_no_mode_beats_the_bounds(mode: str) -> None:
    """T - 1 steps a x + b at least; and a result of T numbers, two at a time, is at least log2(T) operations deep."""
    for time in LENGTHS:
        work, depth = cost(time, mode)
        assert work >= 2 * (time - 1)
        assert depth >= math.log2(time)


@pytest.mark.parametrize("mode", ["sequential", "recurrent", "dilated", "block", "associative"])
def test_a_mode_adds_once_for_each_entry_of_its_factors(mode: str) -> None:
    """All channels share the products of decays; one channel more costs an a x + b for each entry off the diagonal."""
    for time in LENGTHS:
        works = []
        for channels in (1, 2):
            a, b = torch.zeros(time, 1), torch.zeros(time, channels)
            with torch.no_grad(), DepthArithmetic() as counter:
                scan(a, b, dim=0, mode=mode)
            works.append(counter.work)
        entries = sum(int(factor.tril(-1).count_nonzero()) for factor in scan_factors(torch.ones(time), mode))
        assert works[1] - works[0] == 2 * entries


def test_arithmetic_follows_chains_and_counts_elements() -> None:
    x = torch.zeros(3, dtype=torch.float64)
    with DepthArithmetic() as counter:
        product = x * x
        chain = product + product
        later = torch.cat([chain[:1] + x[1:2], x[:1]])
        fused = torch.addcmul(x[:2], later, later)
        spread = x[:1] * x
    assert product.tolist() == [1, 1, 1]
    assert chain.tolist() == [2, 2, 2]
    assert later.tolist() == [3, 0]
    assert fused.tolist() == [5, 2]
    assert spread.tolist() == [1, 1, 1]
    assert counter.work == 3 + 3 + 1 + 2 * 2 + 3


def test_fused_operation_waits_for_its_slowest_part() -> None:
    """b + a x: the sum comes one after the product, or one after b if that is later."""
    depths = torch.tensor([0.0, 7.0], dtype=torch.float64)
    with DepthArithmetic():
        late_addend = torch.addcmul(depths[1:], depths[:1], depths[:1])
        late_factor = torch.addcmul(depths[:1], depths[:1], depths[1:])
    assert (late_addend.item(), late_factor.item()) == (8, 9)


def test_operator_of_the_scan_takes_three_operations() -> None:
    """eq:scan:associative-operator: a_t a_s, and a_t b_s + b_t."""
    zero = torch.zeros(1, dtype=torch.float64)
    with DepthArithmetic() as counter:
        a, b = combine((zero, zero), (zero, zero))
    assert (a.item(), b.item(), counter.work) == (1, 2, 3)


def test_unknown_arithmetic_is_refused() -> None:
    x = torch.zeros(3)
    for refused, name in ((torch.exp, "exp"), (torch.sum, "sum"), (torch.cumprod, "cumprod"), (torch.div, "div")):
        arguments = {"cumprod": (x, 0), "div": (x, x)}.get(name, (x,))
        with DepthArithmetic(), pytest.raises(NotImplementedError, match=rf"aten\.{name}\S* is not known"):
            refused(*arguments)


def test_unknown_mode_is_named() -> None:
    with pytest.raises(ValueError, match="mode is 'parallel', expected one of"):
        scan_cost(4, "parallel")
