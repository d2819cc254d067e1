"""Segment sums against sums of every segment by itself, where a difference of cumulative sums would fail."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statedual.semiseparable import one_semiseparable
from statedual.semiseparable.segment_sums import segment_sums

LENGTHS = st.one_of(st.sampled_from([0, 1, 2, 3, 4, 5, 8]), st.integers(0, 20))


def every_sum(log_a: Tensor) -> Tensor:
    """For one sequence, each entry by itself, correctly rounded to float64."""
    values, time = log_a.double().tolist(), len(log_a)
    rows = [[math.fsum(values[s + 1 : t + 1]) if t >= s else -math.inf for s in range(time)] for t in range(time)]
    return torch.tensor(rows, dtype=torch.float64).reshape(time, time)


def exp_of_sums(log_a: Tensor) -> Tensor:
    return segment_sums(log_a).exp()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(LENGTHS, st.sampled_from([(), (1,), (2, 3), (0,)]), st.booleans(), st.integers(0, 999))
def test_entries_are_sums_of_segments(time: int, batch: tuple[int, ...], forgetting: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_a = torch.randn(*batch, time, generator=generator, dtype=torch.float64)
    if forgetting:
        log_a[torch.rand(log_a.shape, generator=generator) < 0.3] = -math.inf
    sums = segment_sums(log_a)
    assert sums.shape == (*batch, time, time)
    count = math.prod(batch)
    for got, one in zip(sums.reshape(count, time, time), log_a.reshape(count, time), strict=True):
        torch.testing.assert_close(got, every_sum(one), atol=1e-14, rtol=1e-13)


@pytest.mark.parametrize("time", [0, 1, 2, 3, 11])
def test_exponential_is_the_1_ss_matrix(time: int) -> None:
    log_a = torch.randn(2, time, dtype=torch.float64)
    torch.testing.assert_close(exp_of_sums(log_a), one_semiseparable(log_a.exp()), atol=0, rtol=1e-13)


@pytest.mark.parametrize("time", [129, 300])
def test_float32_keeps_small_decays_after_large_ones(time: int) -> None:
    """Relative accuracy of each single entry, though the sums span nine orders of magnitude."""
    log_a = -torch.rand(time) * torch.where(torch.arange(time) % 16 < 3, 1e4, 1e-5)
    lower = torch.ones(time, time).tril(-1).bool()
    wanted = every_sum(log_a)
    relative = (segment_sums(log_a) - wanted)[lower].abs() / wanted[lower].abs()
    assert relative.max() < 1e-6
    total = log_a.cumsum(0)
    naive = (total[:, None] - total - wanted)[lower].abs() / wanted[lower].abs()
    assert naive.max() > 0.9, "the example should defeat cumulative sums"


def test_gradient_counts_the_segments() -> None:
    """log_a[k] is in the sum of every t >= k and s < k; log_a[0] in none."""
    log_a = torch.randn(6, dtype=torch.float64, requires_grad=True)
    segment_sums(log_a).tril().nan_to_num(neginf=0).sum().backward()
    assert log_a.grad.tolist() == [k * (6 - k) for k in range(6)]


@pytest.mark.parametrize("time", [1, 2, 3, 7])
def test_gradients_of_the_exponential(time: int) -> None:
    log_a = torch.randn(2, time, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(exp_of_sums, log_a)
    if time == 3:
        assert torch.autograd.gradgradcheck(exp_of_sums, log_a)


def test_forgetting_leaves_every_gradient_finite() -> None:
    """The gradient of each other decay is the one that a cut sequence would give; that of -inf is zero."""
    log_a = torch.randn(9, dtype=torch.float64)
    log_a[4] = -math.inf
    weights = torch.randn(9, 9, dtype=torch.float64)
    log_a.requires_grad_()
    (got,) = torch.autograd.grad((weights * exp_of_sums(log_a)).sum(), log_a)
    left, right = (part.detach().clone().requires_grad_() for part in (log_a[:4], log_a[4:].nan_to_num(neginf=0)))
    apart = (weights[:4, :4] * exp_of_sums(left)).sum() + (weights[4:, 4:] * exp_of_sums(right)).sum()
    torch.testing.assert_close(got, torch.cat(torch.autograd.grad(apart, (left, right))))
    assert got[4] == 0


@pytest.mark.parametrize("first", [-math.inf, math.nan, math.inf])
def test_first_decay_is_never_read(first: float) -> None:
    log_a = torch.randn(7)
    wanted = segment_sums(log_a)
    log_a[0] = first
    assert torch.equal(segment_sums(log_a), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("time", [0, 3])
def test_dtype_is_kept(dtype: torch.dtype, time: int) -> None:
    assert segment_sums(torch.zeros(time, dtype=dtype)).dtype == dtype
