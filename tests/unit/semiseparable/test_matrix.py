"""The matrix as an object: every operator and property against its entries, in every structure and precision."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import KINDS, entries, error, example, examples, leaves, normal, truth
from rank_examples import blocks
from torch import Tensor

from statedual.semiseparable import SemiseparableMatrix
from statedual.semiseparable.matrix import ALGORITHMS

every_kind = pytest.mark.parametrize("kind", KINDS)
COLUMNS = st.sampled_from([(), (1,), (3,), (0,), (2, 2)])


def invertible(kind: str, time: int, order: int, seed: int = 0) -> SemiseparableMatrix:
    """Ones on the diagonal, small entries below it."""
    m = example(kind, time, order, seed)
    return SemiseparableMatrix(m.a / 2, m.b, m.b / m.b.square().sum(-1, keepdim=True))


def times_columns(m: SemiseparableMatrix, x: Tensor) -> Tensor:
    return torch.einsum("ts,s...->t...", truth(m), x.double())


@settings(deadline=None, derandomize=True, max_examples=30)
@given(examples())
def test_dense_order_and_dtype(m: SemiseparableMatrix) -> None:
    assert error(m.dense(), truth(m)) < 1e-14
    assert m.order == m.b.shape[1]
    assert m.dense().dtype == m.dtype == torch.float64


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(deadline=None, derandomize=True, max_examples=20)
@given(examples(), COLUMNS, st.sampled_from([1, 3, 64]))
def test_matmul(algorithm: str, m: SemiseparableMatrix, columns: tuple[int, ...], chunk_size: int) -> None:
    if algorithm == "contraction" and m.a.ndim == 3:
        m = SemiseparableMatrix(m.a.diagonal(dim1=1, dim2=2), m.b, m.c)
    x = normal(len(m.b), *columns, seed=7)
    assert error(m.matmul(x, algorithm, chunk_size), times_columns(m, x)) < 1e-13


@settings(deadline=None, derandomize=True, max_examples=20)
@given(examples(), COLUMNS)
def test_at_a_tensor_is_matmul(m: SemiseparableMatrix, columns: tuple[int, ...]) -> None:
    x = normal(len(m.b), *columns, seed=7)
    assert error(m @ x, times_columns(m, x)) < 1e-13


@every_kind
@pytest.mark.parametrize("other_kind", KINDS)
@pytest.mark.parametrize(("time", "orders"), [(0, (1, 2)), (1, (1, 1)), (2, (0, 1)), (7, (2, 3)), (7, (1, 1))])
def test_sum_and_product(kind: str, other_kind: str, time: int, orders: tuple[int, int]) -> None:
    m, other = example(kind, time, orders[0], seed=1), example(other_kind, time, orders[1], seed=6)
    for got, wanted in ((m + other, truth(m) + truth(other)), (m @ other, truth(m) @ truth(other))):
        assert isinstance(got, SemiseparableMatrix)
        assert got.order == sum(orders)
        assert error(truth(got), wanted) < 1e-13


def test_sums_stay_diagonal_as_long_as_they_can() -> None:
    scalar, diagonal, full = (example(kind, 4, 2) for kind in KINDS)
    assert (scalar + scalar).a.ndim == (scalar + diagonal).a.ndim == (diagonal + diagonal).a.ndim == 2
    assert (full + scalar).a.ndim == (diagonal + full).a.ndim == 3


@every_kind
@pytest.mark.parametrize(("time", "order"), [(0, 1), (1, 1), (2, 2), (9, 3)])
def test_inverse(kind: str, time: int, order: int) -> None:
    m = invertible(kind, time, order)
    inverse = m.inverse()
    assert inverse.order == order + 1
    assert error(truth(inverse), torch.linalg.inv(truth(m))) < 1e-12
    assert error((m @ inverse).dense(), torch.eye(time, dtype=torch.float64)) < 1e-12


def test_a_singular_matrix_has_no_inverse() -> None:
    m = invertible("scalar", 3, 2)
    m.c[1] = 0
    with pytest.raises(ValueError, match=r"at positions \[1\], expected none: it is singular"):
        m.inverse()


@every_kind
@pytest.mark.parametrize("time", [0, 1, 2, 11])
def test_from_dense(kind: str, time: int) -> None:
    m = example(kind, time, 2, seed=3)
    wanted = truth(m)
    got = SemiseparableMatrix.from_dense(wanted)
    assert got.order <= 2
    assert error(truth(got), wanted) < 1e-13


@pytest.mark.parametrize(("tol", "order", "distance"), [(None, 2, 0.0), (0.09, 2, 0.0), (0.11, 1, 0.3), (1.0, 0, 3.0)])
def test_from_dense_drops_what_is_within_the_tolerance(tol: float | None, order: int, distance: float) -> None:
    m = torch.zeros(4, 4, dtype=torch.float64)
    m[2, 0], m[3, 1] = 3, 0.3
    got = SemiseparableMatrix.from_dense(m, tol)
    assert got.order == order
    assert abs(torch.linalg.matrix_norm(truth(got) - m, ord=2).item() - distance) < 1e-14


@every_kind
@pytest.mark.parametrize(("time", "order"), [(1, 1), (2, 0), (6, 3)])
def test_every_block_is_its_three_factors(kind: str, time: int, order: int) -> None:
    """eq:sss-rank-factor, and with it lmm:sss-rank-factor: the inner size of every block is the order."""
    m = example(kind, time, order, seed=5)
    wanted = truth(m)
    for first_row, last_row, first_column, last_column in blocks(time):
        left, center, right = m.block_factors((first_row, last_row), (first_column, last_column))
        assert center.shape == (order, order)
        block = wanted[first_row:last_row, first_column:last_column]
        torch.testing.assert_close(left @ center @ right, block, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize(
    ("rows", "columns"), [((0, 2), (0, 2)), ((2, 2), (0, 1)), ((2, 5), (0, 1)), ((2, 3), (1, 1)), ((2, 3), (-1, 1))]
)
def test_other_blocks_have_no_factors(rows: tuple[int, int], columns: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="are not a block on or below the diagonal of a matrix of size 4"):
        example("scalar", 4, 1).block_factors(rows, columns)


@every_kind
def test_gradients(kind: str) -> None:
    x = normal(3, 2, seed=4).requires_grad_()

    def every_result(a: Tensor, b: Tensor, c: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        m = SemiseparableMatrix(a, b, c)
        factors = m.block_factors((1, 3), (0, 2))
        return m.dense(), m @ x, (m + m).dense(), (m @ m) @ x, m.inverse() @ x, *factors

    assert torch.autograd.gradcheck(every_result, (*leaves(invertible(kind, 3, 2, seed=8)), x))


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(kind: str, dtype: torch.dtype) -> None:
    m, x = example(kind, 40, 3, seed=2), normal(40, 2, seed=3).to(dtype)
    half = SemiseparableMatrix(m.a.to(dtype), m.b.to(dtype), m.c.to(dtype))
    single = SemiseparableMatrix(half.a.float(), half.b.float(), half.c.float())
    assert torch.equal(half.dense(), single.dense().to(dtype))
    for algorithm in ALGORITHMS:
        if algorithm != "contraction" or kind != "dense":
            assert torch.equal(half.matmul(x, algorithm), single.matmul(x.float(), algorithm).to(dtype))
    assert {v.dtype for r in (half + half, half @ half) for v in (r.a, r.b, r.c)} == {dtype}
    assert half.block_factors((1, 3), (0, 2))[0].dtype == half.dtype == dtype


@every_kind
def test_inverse_in_half_precision_is_the_rounded_one(kind: str) -> None:
    m = invertible(kind, 6, 2)
    half = SemiseparableMatrix(m.a.bfloat16(), m.b.bfloat16(), m.c.bfloat16())
    single = SemiseparableMatrix(half.a.float(), half.b.float(), half.c.float()).inverse()
    for got, wanted in zip(dataclasses.astuple(half.inverse()), dataclasses.astuple(single), strict=True):
        assert torch.equal(got, wanted.bfloat16())


def test_mixed_precision_is_promoted() -> None:
    wide = example("diagonal", 6, 2, seed=1)
    single = SemiseparableMatrix(wide.a.float(), wide.b.float(), wide.c.float())
    mixed = SemiseparableMatrix(wide.a.bfloat16(), wide.b.float(), wide.c)
    assert mixed.dtype == mixed.dense().dtype == torch.float64
    assert (single + wide).dtype == (wide @ single).dtype == torch.float64
    x = normal(6, 2, seed=5)
    got = single @ x
    assert got.dtype == torch.float64
    assert error(got, entries(single.a, single.b, single.c) @ x) < 1e-14


def test_a_matrix_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        example("scalar", 3, 1).a = torch.zeros(3)  # type: ignore[misc]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": torch.zeros(5, dtype=torch.int64)}, "a has dtype torch.int64"),
        ({"b": torch.zeros(5, 2, dtype=torch.bool)}, "b has dtype torch.bool"),
        ({"c": torch.zeros(5, 2, dtype=torch.complex64)}, "c has dtype torch.complex64"),
        ({"b": torch.zeros(5)}, r"b has shape \(5,\), expected 2 axes \(time, state\)"),
        ({"c": torch.zeros(5, 3)}, r"c has state 3 \(axis 1 of \(5, 3\)\), expected 2 as in b"),
        ({"c": torch.zeros(4, 2)}, "c has time 4"),
        ({"a": torch.zeros(())}, r"a has shape \(\), expected \(5,\) for scalar, \(5, 2\) for diagonal"),
        ({"a": torch.zeros(4)}, r"a has shape \(4,\)"),
        ({"a": torch.zeros(5, 3)}, r"a has shape \(5, 3\)"),
        ({"a": torch.zeros(5, 2, 3)}, r"a has shape \(5, 2, 3\), .* \(5, 2, 2\) for dense factors"),
        ({"c": torch.zeros(5, 2, device="meta")}, "c is on meta, expected cpu where a is"),
    ],
)
def test_bad_factors_are_named(changes: dict[str, Tensor], message: str) -> None:
    factors = {"a": torch.zeros(5), "b": torch.zeros(5, 2), "c": torch.zeros(5, 2)} | changes
    with pytest.raises(ValueError, match=message):
        SemiseparableMatrix(**factors)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_operands_are_named() -> None:
    m = example("dense", 5, 2)
    with pytest.raises(ValueError, match=r"x has shape \(4, 2\), expected time 5"):
        m @ torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"x has dtype torch\.int64"):
        m @ torch.zeros(5, dtype=torch.int64)
    with pytest.raises(ValueError, match="x is on meta, expected cpu"):
        m @ torch.zeros(5, device="meta")
    with pytest.raises(ValueError, match="algorithm is 'fast', expected one of 'recurrent'"):
        m.matmul(torch.zeros(5), "fast")
    with pytest.raises(ValueError, match="chunk_size is 0, expected a positive integer"):
        m.matmul(torch.zeros(5), "chunked", 0)
    with pytest.raises(ValueError, match="algorithm is 'contraction' and a has shape"):
        m.matmul(torch.zeros(5), "contraction")
    for combine in (SemiseparableMatrix.__add__, SemiseparableMatrix.__matmul__):
        with pytest.raises(ValueError, match="other is a matrix of size 4, expected size 5"):
            combine(m, example("dense", 4, 2))
    with pytest.raises(ValueError, match="expected a square matrix"):
        SemiseparableMatrix.from_dense(torch.zeros(3, 2))


@pytest.mark.usefixtures("unchecked_shapes")
def test_operators_leave_other_types_to_python() -> None:
    m = example("scalar", 3, 1)
    with pytest.raises(TypeError, match="unsupported operand"):
        m + 1
    with pytest.raises(TypeError, match="unsupported operand"):
        m @ "x"
