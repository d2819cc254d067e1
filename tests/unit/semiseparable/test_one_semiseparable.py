import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statedual.semiseparable import one_semiseparable

LENGTHS = st.one_of(st.sampled_from([0, 1, 2, 3, 4, 7, 8]), st.integers(0, 20))


def entry_by_entry(a: Tensor) -> Tensor:
    """eq:1ss for one sequence, as it is written."""
    values, time = a.double().tolist(), len(a)
    rows = [[math.prod(values[s + 1 : t + 1]) if t >= s else 0.0 for s in range(time)] for t in range(time)]
    return torch.tensor(rows, dtype=torch.float64).reshape(time, time)


@settings(deadline=None, max_examples=25)
@given(time=LENGTHS, batch=st.sampled_from([(), (1,), (2, 3), (0,)]), zeros=st.booleans(), seed=st.integers(0, 99))
def test_entries_are_products_of_decays(time: int, batch: tuple[int, ...], zeros: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(*batch, time, generator=generator, dtype=torch.float64) * 2 - 1
    if zeros:
        a = a * (torch.rand(a.shape, generator=generator) < 0.5)
    dense = one_semiseparable(a)
    assert dense.shape == (*batch, time, time)
    count = math.prod(batch)
    for got, one in zip(dense.reshape(count, time, time), a.reshape(count, time), strict=True):
        torch.testing.assert_close(got, entry_by_entry(one), atol=0, rtol=1e-14)


@pytest.mark.parametrize("time", [1, 2, 3, 9])
def test_multiplication_is_the_recurrence(time: int) -> None:
    """eq:1ss-recurrence: the sum of its first line and the recurrence of its last."""
    a, x = torch.randn(2, time, dtype=torch.float64)
    y, previous = one_semiseparable(a) @ x, 0.0
    for t in range(time):
        torch.testing.assert_close(y[t], sum(torch.prod(a[s + 1 : t + 1]) * x[s] for s in range(t + 1)))
        previous = a[t] * previous + x[t]
        torch.testing.assert_close(y[t], previous)


@pytest.mark.parametrize("time", [1, 2, 3, 9])
def test_inverse_is_two_banded(time: int) -> None:
    a = torch.randn(time, dtype=torch.float64)
    banded = torch.eye(time, dtype=torch.float64)
    for t in range(1, time):
        banded[t, t - 1] = -a[t]
    torch.testing.assert_close(one_semiseparable(a) @ banded, torch.eye(time, dtype=torch.float64))


@pytest.mark.parametrize("time", [1, 2, 5, 8])
def test_every_lower_block_has_rank_one(time: int) -> None:
    dense = one_semiseparable(torch.rand(time, dtype=torch.float64) + 0.5)
    for first_row in range(time):
        for last_column in range(first_row + 1):
            block = dense[first_row:, : last_column + 1]
            assert torch.linalg.matrix_rank(block, rtol=1e-12) == 1


def test_principal_submatrices_are_one_semiseparable() -> None:
    """Self-similarity, for any kept indices: the decays between them multiply."""
    a = torch.randn(9, dtype=torch.float64)
    dense = one_semiseparable(a)
    torch.testing.assert_close(dense[3:7, 3:7], one_semiseparable(a[3:7]), atol=0, rtol=1e-14)
    kept = torch.tensor([0, 2, 3, 7])
    products = torch.stack([a[0], a[1] * a[2], a[3], a[4:8].prod()])
    torch.testing.assert_close(dense[kept][:, kept], one_semiseparable(products))


def test_only_the_last_decays_are_parameters() -> None:
    """M is defined by T - 1 parameters, a_1 ... a_{T-1}."""
    a = torch.randn(6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(one_semiseparable(a).sum(), a)
    assert gradient[0] == 0
    assert (gradient[1:] != 0).all()


def test_gradients() -> None:
    a = torch.randn(2, 5, dtype=torch.float64)
    a[0, 2] = 0
    assert torch.autograd.gradcheck(one_semiseparable, a.requires_grad_())


def test_half_precision_is_computed_in_float32() -> None:
    a = torch.rand(2, 12).bfloat16()
    dense = one_semiseparable(a)
    assert dense.dtype == torch.bfloat16
    torch.testing.assert_close(dense, one_semiseparable(a.float()).bfloat16(), atol=0, rtol=0)
