"""What is particular to the Fourier mask."""

import cmath
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statedual.masked_attention import Fourier


def row(t: int, turns: float, time: int) -> torch.Tensor:
    """Row t of L, the whole turns taken off in exact arithmetic."""
    numerator, denominator = turns.as_integer_ratio()
    period = denominator * time
    phases = [numerator * t * s % period / period for s in range(time)]
    return torch.tensor([cmath.exp(-2j * math.pi * phase) for phase in phases], dtype=torch.complex128)


@settings(deadline=None, max_examples=15)
@given(time=st.integers(0, 20), seed=st.integers(0, 99))
def test_one_turn_is_the_discrete_fourier_transform(time: int, seed: int) -> None:
    torch.manual_seed(seed)
    z = torch.randn(time, 2, dtype=torch.float64)
    truth = torch.stack([row(t, 1.0, time) @ z.to(torch.complex128) for t in range(time)]) if time else z.cdouble()
    for mask in (Fourier(), Fourier(torch.ones(()))):
        torch.testing.assert_close(mask.matmul(z), truth, rtol=1e-11, atol=1e-11)


def test_minus_one_turn_is_the_inverse_transform() -> None:
    z = torch.randn(9, 2, dtype=torch.float64)
    spectrum, back = Fourier().matmul(z), Fourier(-torch.ones(()))
    returned = back.matmul(spectrum.real) + 1j * back.matmul(spectrum.imag)
    torch.testing.assert_close(returned / 9, z.cdouble())


@pytest.mark.parametrize("turns", [None, 1.0, 0.37, -2.75])
@pytest.mark.parametrize("time", [1000, 4096])
def test_phases_keep_their_accuracy_over_long_sequences(turns: float | None, time: int) -> None:
    mask = Fourier() if turns is None else Fourier(torch.tensor(turns))
    exact_turns = 1.0 if turns is None else float(torch.tensor(turns))
    z = torch.randn(time, 2)
    result, L = mask.matmul(z), mask.dense(time)
    assert result.dtype == L.dtype == torch.complex64
    for t in (1, time // 2 + 1, time - 1):
        truth = row(t, exact_turns, time)
        assert (L[t] - truth).abs().max() <= 1e-6
        # Beside the norm of z: a single output may be small by cancellation.
        assert (result[t] - truth @ z.cdouble()).abs().max() <= 2e-6 * z.norm() * math.sqrt(2)


@pytest.mark.parametrize("turns", [1.0, 0.37])
def test_the_whole_product_is_accurate_in_float32(turns: float) -> None:
    mask, z = Fourier(torch.tensor(turns, dtype=torch.float64)), torch.randn(600, 3)
    truth = mask.dense(600, dtype=torch.float64) @ z.cdouble()
    assert (mask.matmul(z) - truth).norm() <= 1e-6 * truth.norm()


def test_omega_is_more_than_its_value() -> None:
    """exp(-2 pi i) = 1 = exp(0) as numbers, but omega^(ts / T) is the Fourier matrix for one and ones for the other."""
    assert cmath.isclose(cmath.exp(-2j * math.pi), 1)
    torch.testing.assert_close(Fourier(torch.zeros(())).dense(5), torch.ones(5, 5, dtype=torch.complex64))
    assert (Fourier(torch.ones(())).dense(5) - torch.ones(5, 5)).abs().max() > 1
