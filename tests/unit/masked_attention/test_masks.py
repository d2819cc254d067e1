"""What is particular to the causal, decay, 1-semiseparable, semiseparable and dense masks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statedual.masked_attention import Causal, Decay, Dense, OneSemiseparable, Semiseparable, Toeplitz

LENGTHS = st.sampled_from([0, 1, 2, 3, 7, 12])


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@settings(deadline=None, max_examples=10)
@given(time=LENGTHS)
def test_the_causal_product_is_the_cumulative_sum(time: int) -> None:
    """Sec. 4.2: y_0 = x_0 and y_t = y_{t-1} + x_t."""
    x = double(time, 2)
    rows, total = [], torch.zeros(2, dtype=torch.float64)
    for t in range(time):
        total = total + x[t]
        rows.append(total)
    torch.testing.assert_close(Causal().matmul(x), torch.stack(rows) if rows else x)


def test_decay_of_one_is_causal_and_decay_of_zero_is_the_identity() -> None:
    z, g = double(6, 3), double(6, 6)
    one, zero = Decay(torch.ones(())), Decay(torch.zeros(()))
    torch.testing.assert_close(one.matmul(z), Causal().matmul(z))
    assert torch.equal(one.hadamard(g), Causal().hadamard(g))
    assert torch.equal(zero.matmul(z), z)
    assert torch.equal(zero.dense(6), torch.eye(6))


@pytest.mark.parametrize("form", ["matmul", "hadamard"])
def test_the_gradient_of_a_decay_of_zero(form: str) -> None:
    gamma = torch.zeros((), dtype=torch.float64, requires_grad=True)
    x = double(4, 4)
    getattr(Decay(gamma), form)(x).sum().backward()
    # Only the first subdiagonal is linear in gamma at zero.
    expected = x[:-1].sum() if form == "matmul" else x.diagonal(-1).sum()
    torch.testing.assert_close(gamma.grad, expected)


@pytest.mark.parametrize("name", ["decay", "one_semiseparable", "semiseparable"])
@pytest.mark.parametrize("log_a", [-1.0, -1e-2, -1e-4])
def test_decays_over_long_sequences_in_float32(name: str, log_a: float) -> None:
    """Neither overflow (exp(s) is infinite from s = 89 on) nor the rounding of many equal factors, up to 1e-4 here."""
    time = 20000
    a, ones = torch.tensor(log_a).exp().expand(time), torch.ones(time, 1)
    z = torch.ones(time, 1)
    if name == "one_semiseparable":
        mask, exact = OneSemiseparable(torch.full((time,), log_a)), math.exp(torch.tensor(log_a))
    else:
        mask, exact = (Decay(a[0]) if name == "decay" else Semiseparable(a, ones, ones)), float(a[0])
    state, states = 0.0, []
    for _ in range(time):
        state = exact * state + 1
        states.append([state])
    truth = torch.tensor(states, dtype=torch.float64)
    assert (mask.matmul(z) - truth).norm() <= 1e-7 * truth.norm()


@settings(deadline=None, max_examples=10)
@given(time=LENGTHS, seed=st.integers(0, 99))
def test_each_mask_is_a_special_case_of_the_next(time: int, seed: int) -> None:
    """Sec. 4.3 and 5.2: causal, decay, 1-semiseparable, semiseparable; and decay is also Toeplitz."""
    torch.manual_seed(seed)
    gamma = torch.rand((), dtype=torch.float64)
    ones = torch.ones(time, 1, dtype=torch.float64)

    def matrix(mask):
        return mask.dense(time, dtype=torch.float64)

    torch.testing.assert_close(matrix(OneSemiseparable(torch.zeros(time))), matrix(Causal()))
    torch.testing.assert_close(matrix(Decay(gamma)), matrix(OneSemiseparable(gamma.log().expand(time))))
    torch.testing.assert_close(matrix(Decay(gamma)), matrix(Toeplitz(gamma ** torch.arange(time))))
    a = torch.rand(time, dtype=torch.float64)
    torch.testing.assert_close(matrix(OneSemiseparable(a.log())), matrix(Semiseparable(a, ones, ones)))


def test_decays_of_minus_infinity_forget_with_finite_gradients() -> None:
    log_a = torch.tensor([-math.inf, -0.5, -math.inf, -math.inf, -0.25], dtype=torch.float64, requires_grad=True)
    mask = OneSemiseparable(log_a)
    zero, r, s = (torch.tensor(value, dtype=torch.float64).exp() for value in (-math.inf, -0.5, -0.25))
    truth = torch.tensor(
        [[1, 0, 0, 0, 0], [r, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, s, 1]], dtype=torch.float64
    )
    torch.testing.assert_close(mask.dense(5, dtype=torch.float64), truth)
    x = double(5, 5)
    torch.testing.assert_close(mask.matmul(x), truth @ x)
    # log_a_1 scales L_10 only and log_a_4 scales L_43 only; the others meet a zero or nothing.
    in_matmul = torch.stack([zero, r * x[0].sum(), zero, zero, s * x[3].sum()])
    in_hadamard = torch.stack([zero, r * x[1, 0], zero, zero, s * x[4, 3]])
    torch.testing.assert_close(torch.autograd.grad(mask.matmul(x).sum(), log_a)[0], in_matmul)
    torch.testing.assert_close(torch.autograd.grad(mask.hadamard(x).sum(), log_a)[0], in_hadamard)


@pytest.mark.parametrize("form", ["matmul", "hadamard"])
def test_small_decays_keep_their_digits_after_a_large_one(form: str) -> None:
    """In float32 a cumulative sum that has passed -1e4 cannot hold steps of -1e-4."""
    time = 600
    log_a = torch.full((time,), -1e-4)
    log_a[::97] = -1e4
    L = torch.zeros(time, time, dtype=torch.float64)
    for t in range(time):
        total = 0.0
        for s in range(t, -1, -1):
            L[t, s] = math.exp(total)
            total += float(log_a[s])
    mask = OneSemiseparable(log_a)
    if form == "matmul":
        z = torch.randn(time, 3)
        result, truth = mask.matmul(z), L @ z.double()
    else:
        result, truth = mask.hadamard(torch.ones(time, time)), L
    assert (result - truth).norm() <= 1e-6 * truth.norm()


def test_a_dense_mask_may_be_rectangular() -> None:
    matrix, z = double(2, 3, 5), double(5, 4)
    torch.testing.assert_close(Dense(matrix).matmul(z), matrix @ z)
    torch.testing.assert_close(Dense(matrix).hadamard(matrix), matrix**2)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("a", "b", "c", "message"),
    [
        ((4,), (4, 2), (4, 3), r"b has shape \(4, 2\) and c \(4, 3\)"),
        ((4,), (4,), (4,), r"expected both \(\*batch, time, order\)"),
        ((3,), (4, 2), (4, 2), r"a has shape \(3,\), expected one of \[\(4,\), \(4, 2\), \(4, 2, 2\)\]"),
        ((4, 2), (5, 4, 2), (5, 4, 2), r"a has shape \(4, 2\)"),
    ],
)
def test_semiseparable_parameters_that_do_not_fit(a, b, c, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Semiseparable(torch.randn(a), torch.randn(b), torch.randn(c))
