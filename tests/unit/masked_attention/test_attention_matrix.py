"""Masked attention as a matrix: V goes in, M V comes out, and M is made of Q, K and L alone (rmk:attention-input)."""

import pytest
import torch
from mask_examples import NAMES, example

from statedual.masked_attention import Causal, kernel_attention, structured_attention


def double(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("form", ["linear", "quadratic"])
@pytest.mark.parametrize("name", NAMES)
def test_attention_of_the_identity_is_the_matrix(name: str, form) -> None:
    """Y = M V with M = L ∘ Q K^T, whatever the number of channels of V."""
    mask, L = example(name, 7)
    q, k, v = double(7, 3), double(7, 3), double(7, 5)
    M = structured_attention(q, k, torch.eye(7, dtype=torch.float64), mask, form=form)
    torch.testing.assert_close(M, L * (q @ k.mT))
    torch.testing.assert_close(structured_attention(q, k, v, mask, form=form), M @ v.to(M.dtype))


@pytest.mark.parametrize("form", ["linear", "quadratic"])
@pytest.mark.parametrize("name", NAMES)
def test_attention_is_causal_where_the_mask_is_lower_triangular(name: str, form) -> None:
    """App. C.2: no output changes with a later value; under masks that are not triangular, the first one does."""
    mask, L = example(name, 7)
    q, k, v = double(7, 3), double(7, 3), double(7, 2)
    changed = v.clone()
    changed[4:] += 1
    y, other = (structured_attention(q, k, values, mask, form=form) for values in (v, changed))
    triangular = not L.triu(1).any()
    assert triangular == (name not in ("fourier", "turned_fourier", "dense"))
    if triangular:
        torch.testing.assert_close(other[:4], y[:4], rtol=1e-12, atol=1e-12)
    else:
        assert (other[0] - y[0]).abs().max() > 1e-3


@pytest.mark.parametrize("form", ["linear", "quadratic"])
def test_channels_of_the_values_do_not_meet(form) -> None:
    q, k, v = double(7, 3), double(7, 3), double(7, 5)
    y = structured_attention(q, k, v, Causal(), form=form)
    for channel in range(5):
        own = slice(channel, channel + 1)
        torch.testing.assert_close(structured_attention(q, k, v[:, own], Causal(), form=form), y[:, own])


def test_the_feature_dimension_is_not_that_of_the_output() -> None:
    """N = 3 features, P = 5 channels, S = 6 sources for T = 4 targets; softmax attention is linear in V too."""
    q, k, v, w = double(4, 3), double(6, 3), double(6, 5), double(6, 5)

    def attend(values: torch.Tensor) -> torch.Tensor:
        return kernel_attention(q, k, values, lambda gram: gram.softmax(-1))

    assert attend(v).shape == (4, 5)
    torch.testing.assert_close(attend(2 * v - w), 2 * attend(v) - attend(w))
