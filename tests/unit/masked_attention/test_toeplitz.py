"""What is particular to the Toeplitz mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statedual.masked_attention import Toeplitz


@settings(deadline=None, max_examples=20)
@given(time=st.integers(0, 33), seed=st.integers(0, 99))
def test_the_product_is_a_causal_convolution_that_does_not_wrap(time: int, seed: int) -> None:
    torch.manual_seed(seed)
    alpha, z = torch.randn(time, dtype=torch.float64), torch.randn(time, 2, dtype=torch.float64)
    truth = torch.zeros_like(z)
    for t in range(time):
        for s in range(t + 1):
            truth[t] += alpha[t - s] * z[s]
    torch.testing.assert_close(Toeplitz(alpha).matmul(z), truth, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("time", [1000, 1021, 1024])
def test_float32_accuracy(time: int) -> None:
    alpha, z = torch.randn(time), torch.randn(time, 3)
    truth = Toeplitz(alpha).dense(time, dtype=torch.float64) @ z.double()
    assert (Toeplitz(alpha).matmul(z) - truth).norm() <= 1e-6 * truth.norm()


def test_later_inputs_reach_earlier_outputs_by_rounding_only() -> None:
    alpha, z = torch.randn(50, dtype=torch.float64), torch.randn(50, 1, dtype=torch.float64)
    changed = z.clone()
    changed[25:] += 1
    difference = Toeplitz(alpha).matmul(changed) - Toeplitz(alpha).matmul(z)
    assert difference[:25].abs().max() <= 1e-12
    assert difference[25].abs() > 1e-3
