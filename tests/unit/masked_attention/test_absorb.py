"""A semiseparable mask absorbed into a larger problem (the closing remark of sec. 5.2)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_examples import matrix
from torch import Tensor

from statedual.masked_attention import OneSemiseparable, Semiseparable, absorb, structured_attention


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


SIZES = {
    "time": st.sampled_from([0, 1, 2, 3, 9]),
    "state": st.integers(1, 3),
    "order": st.integers(1, 3),
    "batch": st.sampled_from([(), (2,)]),
    "seed": st.integers(0, 99),
}


@settings(deadline=None, max_examples=25)
@given(**SIZES)
def test_scalar_decays_give_one_semiseparable_attention_with_more_features(
    time: int, state: int, order: int, batch: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    a = torch.rand((*batch, time), dtype=torch.float64)
    mask = Semiseparable(a, double(*batch, time, order), double(*batch, time, order))
    q, k, v = double(*batch, time, state), double(*batch, time, state), double(*batch, time, 2)
    L = matrix("scalar_semiseparable", [mask.a, mask.b, mask.c], time)
    truth = (L * (q @ k.mT)) @ v
    decays, larger_q, larger_k = absorb(mask, q, k)
    assert larger_q.shape == larger_k.shape == (*batch, time, state * order)
    for form in ("linear", "quadratic"):
        result = structured_attention(larger_q, larger_k, v, OneSemiseparable(decays.log()), form=form)
        torch.testing.assert_close(result, truth)


@settings(deadline=None, max_examples=25)
@given(**SIZES)
def test_diagonal_decays_give_a_diagonal_ssm_with_more_states(
    time: int, state: int, order: int, batch: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    mask = Semiseparable(*(double(*batch, time, order) for _ in range(3)))
    q, k, v = double(*batch, time, state), double(*batch, time, state), double(*batch, time, 2)
    L = matrix("diagonal_semiseparable", [mask.a, mask.b, mask.c], time)
    decays, C, B = absorb(mask, q, k)
    h, rows = torch.zeros(*batch, state * order, 2, dtype=torch.float64), []
    for t in range(time):
        h = decays[..., t, :, None] * h + B[..., t, :, None] * v[..., t, None, :]
        rows.append((C[..., t, :, None] * h).sum(-2))
    result = torch.stack(rows, dim=-2) if rows else v
    torch.testing.assert_close(result, (L * (q @ k.mT)) @ v)


def test_semiseparable_attention_is_more_expressive_than_one_semiseparable() -> None:
    """With one feature, 1-SS attention is a matrix of semiseparable rank one; a mask of order two reaches rank two."""
    time = 8
    ones = torch.ones(time, 1, dtype=torch.float64)
    one = OneSemiseparable(-torch.rand(time, dtype=torch.float64))
    two = Semiseparable(double(time, 2), double(time, 2), double(time, 2))

    def rank(mask) -> int:
        m = mask.hadamard(ones @ ones.mT)
        return max(int(torch.linalg.matrix_rank(m[t:, : t + 1])) for t in range(time))

    assert rank(one) == 1
    assert rank(two) == 2


def test_gradients_pass_through() -> None:
    mask = Semiseparable(*(double(4, 2).requires_grad_() for _ in range(3)))
    inputs = (double(4, 3).requires_grad_(), double(4, 3).requires_grad_(), mask.a, mask.b, mask.c)
    assert torch.autograd.gradcheck(lambda q, k, a, b, c: absorb(Semiseparable(a, b, c), q, k), inputs)


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_cannot_be_absorbed() -> None:
    dense = Semiseparable(torch.randn(4, 2, 2), torch.randn(4, 2), torch.randn(4, 2))
    scalar = Semiseparable(torch.randn(4), torch.randn(4, 2), torch.randn(4, 2))
    x = torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"mask.a has shape \(4, 2, 2\), expected scalar"):
        absorb(dense, x, x)
    with pytest.raises(ValueError, match="k has 2 features, expected 3 as in q"):
        absorb(scalar, x, x[:, :2])
    with pytest.raises(ValueError, match=r"\(5, 5\), expected \(4, 4\)"):
        absorb(scalar, torch.randn(5, 3), torch.randn(5, 3))
