"""Masks that are autoregressive of bounded order are semiseparable masks (thm:ss-sma, thm:ss-sma-formal)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statedual.masked_attention import Dense, Semiseparable, structured_attention
from statedual.semiseparable import autoregressive, semiseparable_rank


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def written_out(mu: Tensor, ell: Tensor) -> Tensor:
    """L by its definition, y_t = mu_t x_t + sum_i ell_ti y_{t-i}, on the columns of the identity."""
    time, lags = ell.shape
    rows: list[Tensor] = []
    for t in range(time):
        row = mu[t] * torch.eye(time, dtype=mu.dtype)[t]
        for i in range(1, min(t, lags) + 1):
            row = row + ell[t, i - 1] * rows[t - i]
        rows.append(row)
    return torch.stack(rows)


@settings(deadline=None, max_examples=25)
@given(time=st.integers(1, 12), order=st.integers(1, 4), seed=st.integers(0, 999))
def test_attention_with_an_autoregressive_mask_is_attention_with_a_semiseparable_one(
    time: int, order: int, seed: int
) -> None:
    torch.manual_seed(seed)
    mu, ell = double(time), double(time, order) / order
    L = written_out(mu, ell)
    assert semiseparable_rank(L) <= order + 1
    found = autoregressive(mu, ell)
    mask = Semiseparable(found.a, found.b, found.c)
    assert mask.b.shape[-1] == order
    q, k, v = double(time, 3), double(time, 3), double(time, 2)
    expected = structured_attention(q, k, v, Dense(L), form="quadratic")
    for form in ("linear", "quadratic"):
        torch.testing.assert_close(structured_attention(q, k, v, mask, form=form), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_its_outputs_come_one_after_another_from_a_bounded_memory(order: int) -> None:
    """What a step keeps is a state of order * N * P numbers, however many steps there were."""
    time = 15
    mu, ell = double(time), double(time, order) / order
    found = autoregressive(mu, ell)
    q, k, v = double(time, 3), double(time, 3), double(time, 2)
    state, rows = torch.zeros(order, 3, 2, dtype=torch.float64), []
    for t in range(time):
        moved = found.a[t] * state if found.a.ndim == 1 else torch.einsum("ij,jnp->inp", found.a[t], state)
        state = moved + torch.einsum("i,n,p->inp", found.b[t], k[t], v[t])
        rows.append(torch.einsum("i,n,inp->p", found.c[t], q[t], state))
    expected = structured_attention(q, k, v, Dense(written_out(mu, ell)), form="quadratic")
    torch.testing.assert_close(torch.stack(rows), expected)
