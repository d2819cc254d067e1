"""The seven scan modes against one recurrence, and their pieces: the associative operator, increments, chunks."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import error, normal
from torch import Tensor

from statedual.semiseparable import one_semiseparable, scan
from statedual.semiseparable.scan_modes import (
    MODES,
    combine,
    default_chunk,
    increment,
    recurrent,
    sequential,
    state_passing,
)


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def matrix(pair: tuple[Tensor, Tensor]) -> Tensor:
    """[[a, b], [0, 1]]: one step of the scan as a matrix on the state (h, 1)."""
    a, b = (float(x) for x in pair)
    return torch.tensor([[a, b], [0, 1]], dtype=torch.float64)


def pairs(count: int) -> list[tuple[Tensor, Tensor]]:
    return [(double(), double()) for _ in range(count)]


def test_the_operator_is_the_product_of_matrices() -> None:
    """(a_t, b_t) * (a_s, b_s) = (a_t a_s, a_t b_s + b_t), the top row of the product of two by two matrices."""
    later, earlier = pairs(2)
    combined = combine(later, earlier)
    torch.testing.assert_close(combined, (later[0] * earlier[0], later[0] * earlier[1] + later[1]))
    torch.testing.assert_close(matrix(combined), matrix(later) @ matrix(earlier))


def test_the_operator_is_associative_and_not_commutative() -> None:
    first, second, third = pairs(3)
    torch.testing.assert_close(combine(combine(third, second), first), combine(third, combine(second, first)))
    assert not torch.allclose(combine(first, second)[1], combine(second, first)[1])


def test_cumulative_products_of_the_matrices_are_the_states() -> None:
    steps = pairs(7)
    a, b = (torch.stack(column) for column in zip(*steps, strict=True))
    states = sequential(a, b)
    products = itertools.accumulate((matrix(step) for step in steps), lambda before, step: step @ before)
    folded = itertools.accumulate(steps, lambda before, step: combine(step, before))
    for h, product, (_, top_right) in zip(states, products, folded, strict=True):
        torch.testing.assert_close(
            product @ torch.tensor([0, 1], dtype=torch.float64), torch.stack([h, torch.ones_like(h)])
        )
        torch.testing.assert_close(top_right, h)


@pytest.mark.parametrize("split", range(1, 7))
def test_an_incremented_right_half_is_the_right_half(split: int) -> None:
    """M_R b_R + M_C b_L = M_R (b_R with a_k h_{k-1} + b_k in place of b_k)."""
    a, b = double(7), double(7)
    M = one_semiseparable(a)
    left = M[:split, :split] @ b[:split]
    incremented = increment(a[split:], b[split:], left[-1])
    torch.testing.assert_close(incremented[0], a[split] * left[-1] + b[split])
    assert torch.equal(incremented[1:], b[split + 1 :])
    right = M[split:, split:] @ b[split:] + M[split:, :split] @ b[:split]
    torch.testing.assert_close(M[split:, split:] @ incremented, right)
    torch.testing.assert_close(torch.cat([left, right]), M @ b)


@settings(deadline=None, max_examples=30)
@given(time=st.integers(1, 30), chunk=st.integers(1, 40), seed=st.integers(0, 999))
def test_state_passing_takes_chunks_of_any_length(time: int, chunk: int, seed: int) -> None:
    torch.manual_seed(seed)
    a, b = double(time, 1), double(time, 2)
    torch.testing.assert_close(state_passing(a, b, chunk), sequential(a, b), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("time", [1, 2, 9])
def test_the_recurrent_mode_is_state_passing_with_chunks_of_one(time: int) -> None:
    a, b = double(time), double(time)
    assert torch.equal(recurrent(a, b), state_passing(a, b, chunk=1))
    torch.testing.assert_close(recurrent(a, b), sequential(a, b))


@pytest.mark.parametrize("time", range(20))
def test_the_default_chunk_is_the_square_root_rounded_up(time: int) -> None:
    assert default_chunk(time) == max(1, math.ceil(math.sqrt(time)))


def states_and_gradients(a: Tensor, b: Tensor, initial: Tensor, weights: Tensor) -> list[Tensor]:
    """h, and the gradients of sum(weights * h), by two loops.

    The adjoint runs backwards: G_t = w_t + a_{t+1} G_{t+1}; then db_t = G_t and da_t = G_t h_{t-1}.
    """
    before, states = [], [initial]
    for t in range(len(b)):
        before.append(states[-1])
        states.append(a[t] * states[-1] + b[t])
    carried, adjoints = torch.zeros_like(initial), []
    for t in reversed(range(len(b))):
        adjoints.insert(0, weights[t] + carried)
        carried = a[t] * adjoints[0]
    grad_b = torch.stack(adjoints)
    grad_a = (grad_b * torch.stack(before)).sum_to_size(a.shape)
    return [torch.stack(states[1:]), grad_a, grad_b, carried]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("time", [1, 2, 3, 4, 8, 15, 16, 17, 32, 50, 64])
@pytest.mark.parametrize(("batch", "shared"), [((), False), ((3,), True), ((2, 1, 3), False)])
def test_every_mode_and_its_gradients_are_those_of_the_recurrence(
    mode: str, time: int, batch: tuple[int, ...], shared: bool
) -> None:
    """Negative decays and zeros; lengths that are powers of two, next to one, and neither."""
    a = 0.9 * normal(time, *([1] * len(batch) if shared else batch), seed=1)
    a[normal(*a.shape, seed=2) > 1] = 0
    b, weights, initial = normal(time, *batch, seed=3), normal(time, *batch, seed=4), normal(*batch, seed=5)
    leaves = [tensor.clone().requires_grad_() for tensor in (a, b, initial)]
    h = scan(*leaves[:2], initial=leaves[2], dim=0, mode=mode)
    got = [h, *torch.autograd.grad(h, leaves, weights)]
    for one, wanted in zip(got, states_and_gradients(a, b, initial, weights), strict=True):
        assert error(one, wanted) < 1e-12
