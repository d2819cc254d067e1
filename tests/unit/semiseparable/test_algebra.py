"""Proposition prop:ss-closure: sums, products and inverses against dense matrices, and the orders it allows."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import KINDS, entries, error, example, examples, leaves, normal, truth
from rank_examples import exact, exact_inverse, integer_example, integers, rank_of_all_blocks
from torch import Tensor

from statedual.semiseparable import SemiseparableMatrix, one_semiseparable
from statedual.semiseparable.algebra import Representation, add, invert, multiply
from statedual.semiseparable.multiply import dense, recurrent

PAIRS = list(itertools.product(KINDS, repeat=2))
every_pair = pytest.mark.parametrize(("first_kind", "second_kind"), PAIRS)


def parts(m: SemiseparableMatrix) -> Representation:
    return m.a, m.b, m.c


def invertible(m: SemiseparableMatrix) -> SemiseparableMatrix:
    """The same ``a`` and ``b``, and ``c`` changed so that c_t . b_t is between 1 and 2, of either sign."""
    wanted = (m.c * m.b).sum(-1, keepdim=True)
    wanted = wanted.sign() * (1 + wanted.abs().clamp(max=1))
    square = m.b.square().sum(-1, keepdim=True)
    return SemiseparableMatrix(m.a, m.b, m.c + (wanted - (m.c * m.b).sum(-1, keepdim=True)) / square * m.b)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[SemiseparableMatrix, SemiseparableMatrix]:
    """Two of one size, each with its own structure and order."""
    time = draw(st.sampled_from([0, 1, 2, 3, 7, 10]))
    one, other = (draw(examples(times=st.just(time))) for _ in range(2))
    return one, other


@settings(deadline=None, derandomize=True, max_examples=40)
@given(pairs())
def test_sum(pair: tuple[SemiseparableMatrix, SemiseparableMatrix]) -> None:
    first, second = pair
    a, b, c = add(parts(first), parts(second))
    assert b.shape[1] == first.order + second.order
    assert a.ndim == (3 if 3 in (first.a.ndim, second.a.ndim) else 2)
    assert error(entries(a, b, c), truth(first) + truth(second)) < 1e-13


@settings(deadline=None, derandomize=True, max_examples=40)
@given(pairs())
def test_product(pair: tuple[SemiseparableMatrix, SemiseparableMatrix]) -> None:
    first, second = pair
    a, b, c = multiply(parts(first), parts(second))
    assert b.shape[1] == first.order + second.order
    assert error(entries(a, b, c), truth(first) @ truth(second)) < 1e-12


@settings(deadline=None, derandomize=True, max_examples=40)
@given(examples(min_order=1))
def test_inverse(m: SemiseparableMatrix) -> None:
    m = invertible(m)
    a, b, c = invert(parts(m))
    assert b.shape[1] == m.order + 1
    matrix = truth(m)
    wanted = torch.linalg.solve_triangular(matrix, torch.eye(len(matrix), dtype=torch.float64), upper=False)
    condition = torch.linalg.cond(matrix).item() if len(matrix) else 1.0
    assert error(entries(a, b, c), wanted) < 1e-14 * condition


@every_pair
@pytest.mark.parametrize(("time", "orders"), [(1, (1, 1)), (2, (2, 1)), (7, (1, 1)), (7, (1, 2)), (7, (2, 0))])
def test_orders_of_sum_and_product_bound_their_ranks(
    first_kind: str, second_kind: str, time: int, orders: tuple[int, int]
) -> None:
    """Exactly: integers, and the dense matrix of each operand from its definition."""
    first, second = (
        exact(truth(integer_example(kind, time, order, seed=order + 7 * place)))
        for place, (kind, order) in enumerate(zip((first_kind, second_kind), orders, strict=True))
    )
    added = [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(first, second, strict=True)]
    columns = list(zip(*second, strict=True))
    product = [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in first]
    assert rank_of_all_blocks(added) <= sum(orders)
    assert rank_of_all_blocks(product) <= sum(orders)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("time", "order"), [(1, 1), (2, 2), (6, 1), (7, 2)])
def test_order_of_the_inverse_bounds_its_rank(kind: str, time: int, order: int) -> None:
    m = integer_example(kind, time, order, seed=4)
    m.b[:, 0], m.c[:, 0], m.c[:, 1:] = 1, torch.where(m.b[:, 1:].sum(-1) < 0, 2, 5), 0
    rows = exact(truth(m))
    inverse = exact_inverse(rows)
    identity = [[sum(x * y[i] for x, y in zip(row, inverse, strict=True)) for i in range(time)] for row in rows]
    assert identity == exact(torch.eye(time))
    assert rank_of_all_blocks(inverse) <= order + 1
    got = entries(*invert(parts(m)))
    assert error(got, torch.tensor([[float(x) for x in row] for row in inverse], dtype=torch.float64)) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_generic_operands_reach_the_bounds(kind: str) -> None:
    """None of the orders could be smaller: on generic operands they are the ranks."""
    first, second = integer_example(kind, 9, 2, seed=1), integer_example(kind, 9, 1, seed=5)
    for m in (first, second):
        m.a[m.a == 0], m.b[m.b == 0], m.c[m.c == 0] = 3, 1, 1
    one, other = truth(first), truth(second)
    assert rank_of_all_blocks(exact(one + other)) == 3
    assert rank_of_all_blocks(exact(one @ other)) == 3
    assert rank_of_all_blocks(exact_inverse(exact(other))) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_product_is_one_system_after_the_other(kind: str) -> None:
    """Chaining two SSMs is an SSM: the outputs of the second are the inputs of the first."""
    first, second, x = example(kind, 9, 2, seed=1), example(kind, 9, 3, seed=2), normal(9, 2, seed=3)
    chained = recurrent(*parts(first), recurrent(*parts(second), x))
    assert error(recurrent(*multiply(parts(first), parts(second)), x), chained) < 1e-13


@pytest.mark.parametrize("kind", KINDS)
def test_inverse_recovers_inputs_from_outputs(kind: str) -> None:
    m, x = invertible(example(kind, 9, 2, seed=1)), normal(9, 2, seed=3)
    assert error(recurrent(*invert(parts(m)), recurrent(*parts(m), x)), x) < 1e-11


@pytest.mark.parametrize("time", [1, 2, 9])
def test_inverse_of_a_1_ss_matrix_is_two_banded(time: int) -> None:
    """The remark after prop:ss-closure: ones on the diagonal, -a_t below it, exact zeros elsewhere."""
    a, ones = normal(time, seed=2), torch.ones(time, 1, dtype=torch.float64)
    wanted = torch.eye(time, dtype=torch.float64) - torch.diag(a[1:], -1)
    assert torch.equal(entries(*invert((a, ones, ones))), wanted)
    assert error(entries(*invert(invert((a, ones, ones)))), one_semiseparable(a)) < 1e-14


def test_inverse_of_a_banded_matrix() -> None:
    """Banded matrices are semiseparable, so their inverses are, of an order that does not grow with the size."""
    bands = normal(12, 12, seed=6).tril().triu(-2) + 4 * torch.eye(12, dtype=torch.float64)
    m = SemiseparableMatrix.from_dense(bands)
    assert m.order == 3
    a, b, c = invert(parts(m))
    assert b.shape[1] == 4
    assert error(entries(a, b, c), torch.linalg.inv(bands)) < 1e-13


@every_pair
def test_gradients_of_sum_and_product(first_kind: str, second_kind: str) -> None:
    arguments = (*leaves(example(first_kind, 3, 1, seed=8)), *leaves(example(second_kind, 3, 2, seed=9)))
    for combine in (add, multiply):
        assert torch.autograd.gradcheck(
            lambda *tensors, combine=combine: dense(*combine(tensors[:3], tensors[3:])), arguments
        )


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_inverse(kind: str) -> None:
    m = invertible(example(kind, 4, 2, seed=8))
    m.a[2] = 0
    assert torch.autograd.gradcheck(lambda *tensors: dense(*invert(tensors)), leaves(m))


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_factor_is_never_read(kind: str) -> None:
    first, second = invertible(example(kind, 5, 2, seed=1)), example(kind, 5, 3, seed=4)
    unread = [SemiseparableMatrix(m.a.clone(), m.b, m.c) for m in (first, second)]
    for m in unread:
        m.a[0] = torch.inf
    for combine in (add, multiply):
        assert torch.equal(dense(*combine(*map(parts, unread))), dense(*combine(parts(first), parts(second))))
    assert torch.equal(dense(*invert(parts(unread[0]))), dense(*invert(parts(first))))


def test_a_zero_on_the_diagonal_has_no_inverse() -> None:
    b, c = torch.ones(4, 2), torch.ones(4, 2)
    c[1, 0], c[3] = -1, 0
    with pytest.raises(ValueError, match=r"c_t \. b_t = 0 at positions \[1, 3\]"):
        invert((torch.ones(4), b, c))
    with pytest.raises(ValueError, match=r"at positions \[0, 1, 2\]"):
        invert((torch.ones(3), torch.zeros(3, 0), torch.zeros(3, 0)))


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(0, 6), st.integers(0, 999))
def test_exact_inverse_is_the_inverse(time: int, seed: int) -> None:
    """The helper itself, against LAPACK."""
    m = integers(time, time, seed=seed).tril(-1) + 2 * torch.eye(time, dtype=torch.float64)
    got: Tensor = torch.tensor([[float(x) for x in row] for row in exact_inverse(exact(m))], dtype=torch.float64)
    assert error(got.reshape(time, time), torch.linalg.inv(m)) < 1e-13
