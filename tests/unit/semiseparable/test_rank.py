"""The rank of definition def:semiseparable-rank, against every submatrix there is."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import KINDS, example, normal
from rank_examples import blocks, exact, exact_rank, integer_example, integer_matrices, integers, rank_of_all_blocks
from torch import Tensor

from statedual.semiseparable import one_semiseparable, semiseparable_rank


@settings(deadline=None, derandomize=True, max_examples=60)
@given(integer_matrices())
def test_rank_is_the_largest_of_all_blocks(m: Tensor) -> None:
    assert semiseparable_rank(m) == rank_of_all_blocks(exact(m))


@settings(deadline=None, derandomize=True, max_examples=10)
@given(integer_matrices(times=(3, 4, 5)))
def test_rank_is_the_largest_of_any_rows_and_columns(m: Tensor) -> None:
    rows, time, largest = exact(m), len(m), 0
    for size in range(1, time + 1):
        for kept_rows, kept_columns in itertools.product(itertools.combinations(range(time), size), repeat=2):
            if kept_columns[-1] <= kept_rows[0]:
                largest = max(largest, exact_rank([[rows[j][i] for i in kept_columns] for j in kept_rows]))
    assert semiseparable_rank(m) == largest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("time", "order"), [(1, 2), (5, 1), (7, 0), (7, 2), (8, 3)])
def test_a_representation_of_order_n_is_n_semiseparable(kind: str, time: int, order: int) -> None:
    """lmm:sss-rank-factor."""
    m = integer_example(kind, time, order, seed=5).dense()
    assert semiseparable_rank(m) == rank_of_all_blocks(exact(m)) <= order


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_generic_factors_reach_their_order(kind: str, order: int) -> None:
    m = example(kind, 2 * order + 3, order)
    m.a[m.a == 0] = 0.5  # a factor of zero would forget all
    assert semiseparable_rank(m.dense()) == order


@pytest.mark.parametrize("time", [1, 2, 3, 6, 9])
def test_known_ranks(time: int) -> None:
    eye, ones = torch.eye(time, dtype=torch.float64), torch.ones(time, time, dtype=torch.float64)
    assert semiseparable_rank(torch.zeros_like(eye)) == 0
    assert semiseparable_rank(eye) == 1
    assert semiseparable_rank(ones.tril()) == 1
    assert semiseparable_rank(one_semiseparable(normal(time, seed=3))) == 1
    assert semiseparable_rank(normal(time, time, seed=1).tril()) == (time + 1) // 2
    assert semiseparable_rank(ones.tril(-1)) == min(time - 1, 2)


@pytest.mark.parametrize("bands", [1, 2, 3, 4])
def test_banded_matrices_have_as_many_ranks_as_bands(bands: int) -> None:
    """In the proof of thm:ss-sma-formal: k + 1 bands are (k + 1)-semiseparable."""
    m = normal(9, 9, seed=2).tril().triu(1 - bands)
    assert semiseparable_rank(m) == bands


def test_no_submatrices() -> None:
    assert semiseparable_rank(torch.zeros(0, 0)) == 0


@pytest.mark.parametrize(("tol", "rank"), [(0.0, 2), (0.09, 2), (0.11, 1), (0.99, 1), (1.0, 0)])
def test_tolerance_is_relative_to_the_norm_of_the_matrix(tol: float, rank: int) -> None:
    m = torch.zeros(4, 4, dtype=torch.float64)
    m[2, 0], m[3, 1] = 3, 0.3
    for scale in (1.0, 1e-200, 1e200):
        assert semiseparable_rank(scale * m, tol) == rank


def test_default_tolerance_ignores_rounding_only() -> None:
    first, second = normal(2, 20, seed=1)
    m = torch.outer(first, second)
    noise = normal(20, 20, seed=2)
    for dtype, level in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        assert semiseparable_rank(m.tril().to(dtype)) == 1
        assert semiseparable_rank((m + level * noise).tril().to(dtype)) > 5


@pytest.mark.parametrize("time", [7, 64, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_default_tolerance_of_half_precision(dtype: torch.dtype, time: int) -> None:
    """What rounding to half precision adds counts for nothing; the matrix itself still counts at every size."""
    first, second = normal(2, time, seed=1)
    assert semiseparable_rank(torch.outer(first, second).tril().to(dtype)) == 1
    assert semiseparable_rank(torch.eye(time, dtype=dtype)) == 1


def test_blocks_of_the_truth_are_those_of_the_definition() -> None:
    """The helper itself: for each pair of a first row and a last column, all that lie on or below the diagonal."""
    found = set(blocks(4))
    spans = list(itertools.combinations(range(5), 2))
    assert found == {(*rows, *columns) for rows in spans for columns in spans if columns[1] - 1 <= rows[0]}


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(0, 5), st.integers(0, 4), st.integers(0, 3), st.integers(0, 999))
def test_exact_rank_is_the_rank(rows: int, columns: int, inner: int, seed: int) -> None:
    """The helper itself, against the singular values of a product."""
    m = integers(rows, inner, seed=seed) @ integers(inner, columns, seed=seed + 1)
    assert exact_rank(exact(m)) == (int(torch.linalg.matrix_rank(m)) if m.numel() else 0)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("m", "tol", "message"),
    [
        (torch.eye(3, dtype=torch.int64), None, "m has dtype torch.int64"),
        (torch.zeros(3), None, r"m has shape \(3,\), expected 2 axes \(time, time\)"),
        (torch.zeros(3, 2), None, r"m has shape \(3, 2\), expected a square matrix"),
        (torch.ones(3, 3), None, r"m has 3 nonzero entries above the diagonal, the first at \(0, 1\)"),
        (torch.eye(3), -1e-9, "tol is -1e-09, expected a number of at least 0"),
        (torch.eye(3), float("nan"), "tol is nan"),
    ],
)
def test_bad_input_is_named(m: Tensor, tol: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        semiseparable_rank(m, tol)
