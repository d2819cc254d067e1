"""A minimal representation of any lower-triangular matrix: proposition prop:sss."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import KINDS, entries, error, example, examples, normal, truth
from rank_examples import exact, integer_matrices, rank_of_all_blocks
from torch import Tensor

from statedual.semiseparable import SemiseparableMatrix, semiseparable_rank
from statedual.semiseparable.realization import realize


@settings(deadline=None, derandomize=True, max_examples=60)
@given(integer_matrices())
def test_order_is_the_rank_and_entries_are_those_given(m: Tensor) -> None:
    kept = m.clone()
    a, b, c = realize(m)
    assert b.shape[1] == rank_of_all_blocks(exact(m))
    assert error(entries(a, b, c), m) < 1e-13
    assert torch.equal(m, kept)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(examples())
def test_any_representation_comes_back_at_its_rank(m: SemiseparableMatrix) -> None:
    dense = truth(m)
    got = realize(dense)
    assert got[1].shape[1] == semiseparable_rank(dense) <= m.order
    assert error(entries(*got), dense) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_say_the_same_twice_are_merged(kind: str) -> None:
    m = example(kind, 9, 2, seed=3)
    m.a[m.a == 0] = 0.5
    a, b, c = realize((m + m).dense())
    assert b.shape[1] == 2
    assert error(entries(a, b, c), 2 * truth(m)) < 1e-13


@pytest.mark.parametrize(("value", "order"), [(0.0, 0), (-3.0, 1)])
def test_one_step(value: float, order: int) -> None:
    a, b, c = realize(torch.tensor([[value]], dtype=torch.float64))
    assert (a.shape, b.shape, c.shape) == ((1, order, order), (1, order), (1, order))
    assert (b * c).sum() == value


@settings(deadline=None, derandomize=True, max_examples=15)
@given(integer_matrices())
def test_inputs_make_orthonormal_states(m: Tensor) -> None:
    """Input-normal form: the rows of R_t = [A_t R_{t-1}, b_t] are orthonormal, those that are not padding."""
    a, b, _ = realize(m)
    reached = torch.zeros(b.shape[1], 0, dtype=torch.float64)
    for t in range(len(m)):
        reached = torch.cat([a[t] @ reached, b[t, :, None]], dim=1)
        used = int(torch.linalg.matrix_rank(m[t:, : t + 1]))
        wanted = torch.diag((torch.arange(b.shape[1]) < used).double())
        torch.testing.assert_close(reached @ reached.mT, wanted, atol=1e-13, rtol=0)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(1, 12), st.floats(0, 0.9), st.integers(0, 9999))
def test_a_coarse_tolerance_bounds_order_and_error(time: int, tol: float, seed: int) -> None:
    m = normal(time, time, seed=seed).tril()
    a, b, c = realize(m, tol)
    assert b.shape[1] <= semiseparable_rank(m, tol)
    norm = torch.linalg.matrix_norm(m, ord=2)
    assert torch.linalg.matrix_norm(entries(a, b, c) - m, ord=2) <= (math.sqrt(time) * tol + 1e-13) * norm


def test_a_tolerance_above_the_noise_recovers_the_order() -> None:
    m = truth(example("diagonal", 12, 2, seed=3)) + 1e-9 * normal(12, 12, seed=5).tril()
    assert realize(m)[1].shape[1] > 2
    a, b, c = realize(m, 1e-7)
    assert b.shape[1] == 2
    assert error(entries(a, b, c), m) < 1e-8


def test_tolerance_of_one_keeps_nothing() -> None:
    a, b, c = realize(normal(5, 5, seed=1).tril(), 1.0)
    assert (a.shape, b.shape, c.shape) == ((5, 0, 0), (5, 0), (5, 0))


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_scale_does_not_matter(scale: float) -> None:
    m = truth(example("dense", 8, 3, seed=2))
    a, b, c = realize(scale * m)
    assert b.shape[1] == realize(m)[1].shape[1]
    assert error(entries(a, b, c) / scale, m) < 1e-12


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_every_precision(dtype: torch.dtype, bound: float) -> None:
    m = truth(example("diagonal", 8, 2, seed=2)).to(dtype)
    a, b, c = realize(m)
    assert {a.dtype, b.dtype, c.dtype} == {dtype}
    assert b.shape[1] == 2
    assert error(entries(a, b, c), m) < bound


def test_no_gradient_flows_through() -> None:
    assert not any(factor.requires_grad for factor in realize(torch.eye(3, requires_grad=True)))


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"m has shape \(3, 2\), expected a square matrix"):
        realize(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="m has 1 nonzero entries above the diagonal"):
        realize(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="tol is -1"):
        realize(torch.eye(3), -1.0)
