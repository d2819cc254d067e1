"""Listing 1 in our words is the recurrence, as the paper's is; a peer that were wrong would have no speed."""

import math

import pytest
import torch
from benchmark_examples import loop
from torch import Tensor

from statedual.benchmarks.listing import listing_1, segsum

TIME = 24
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5}
NAMES = ("y", "final state", "x", "log_a", "b", "c", "initial state")


def inputs(time: int, dtype: torch.dtype) -> list[Tensor]:
    """x, log_a, b, c and an initial state of two sequences with three heads."""
    sizes = ((3, 4), (3,), (3, 5), (3, 5))
    x, log_a, b, c = (torch.randn(2, time, *size, dtype=dtype) for size in sizes)
    return [x, -log_a.exp(), b, c, torch.randn(2, 3, 4, 5, dtype=dtype)]


def outputs_and_gradients(layer, tensors: list[Tensor], weights: list[Tensor], *options: int) -> dict[str, Tensor]:
    leaves = [tensor.to(weights[0].dtype).requires_grad_() for tensor in tensors]
    results = layer(*leaves[:4], *options, *leaves[4:])
    return dict(zip(NAMES, (*results, *torch.autograd.grad(results, leaves, weights)), strict=False))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("block_len", [1, 3, 8, TIME])
def test_listing_1_is_the_recurrence(block_len: int, initial: bool, dtype: torch.dtype) -> None:
    tensors = inputs(TIME, dtype)[: 5 if initial else 4]
    weights = [torch.randn(2, TIME, 3, 4, dtype=dtype), torch.randn(2, 3, 4, 5, dtype=dtype)]
    got = outputs_and_gradients(listing_1, tensors, weights, block_len)
    wanted = outputs_and_gradients(loop, tensors, [weight.double() for weight in weights])
    assert len(got) == len(wanted) == 6 + initial
    for name, true in wanted.items():
        assert ((got[name] - true).norm() / true.norm()).item() < BOUNDS[dtype], name


def test_blocks_are_of_64_where_nothing_else_is_said() -> None:
    *layer, _ = inputs(128, torch.float64)
    for got, wanted, of_32 in zip(listing_1(*layer), listing_1(*layer, 64), listing_1(*layer, 32), strict=True):
        assert torch.equal(got, wanted)
        assert not torch.equal(got, of_32)  # so that the line above says something


def test_segsum_is_the_sum_of_every_segment() -> None:
    log_a = torch.randn(2, 3, 7, dtype=torch.float64)
    wanted = torch.full((2, 3, 7, 7), -math.inf, dtype=torch.float64)
    for target in range(7):
        for source in range(target + 1):
            wanted[..., target, source] = log_a[..., source + 1 : target + 1].sum(-1)
    torch.testing.assert_close(segsum(log_a), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("time", "block_len"), [(25, 8), (7, 8)])
def test_a_time_that_is_no_multiple_is_an_error(time: int, block_len: int) -> None:
    *layer, _ = inputs(time, torch.float64)
    with pytest.raises(ValueError, match=f"^time is {time}, expected a multiple of block_len {block_len}$"):
        listing_1(*layer, block_len)
