"""eq:efficient-ar: transformations that read their own last outputs, and the matrices they are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import error, normal, truth
from rank_examples import exact, integers, rank_of_all_blocks
from torch import Tensor

from statedual.semiseparable import SemiseparableMatrix, autoregressive

TIMES = st.sampled_from([0, 1, 2, 3, 5, 8, 13])


def outputs(mu: Tensor, ell: Tensor, x: Tensor) -> Tensor:
    """y_t = mu_t x_t + ell_t1 y_{t-1} + ... + ell_tk y_{t-k}, for x of shape (T, P)."""
    y = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(len(mu)):
        y[t] = mu[t] * x[t]
        for lag in range(1, min(ell.shape[1], t) + 1):
            y[t] += ell[t, lag - 1] * y[t - lag]
    return y


def bands(ell: Tensor) -> Tensor:
    """The matrix that stands before y when its terms are moved to the left: 1, -ell_t1, ..., -ell_tk in row t."""
    m = torch.eye(len(ell), dtype=torch.float64)
    for t in range(len(ell)):
        for lag in range(1, min(ell.shape[1], t) + 1):
            m[t, t - lag] = -ell[t, lag - 1]
    return m


def example(time: int, lags: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return normal(time, seed=seed), normal(time, lags, seed=seed + 1) / max(lags, 1)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(TIMES, st.integers(0, 5), st.booleans(), st.integers(0, 999))
def test_matrix_gives_the_outputs(time: int, lags: int, silent: bool, seed: int) -> None:
    mu, ell = example(time, lags, seed)
    if silent:
        mu = torch.where(normal(time, seed=seed + 2) < 0, 0, mu)
    x = normal(time, 2, seed=seed + 3)
    L = autoregressive(mu, ell)
    wanted = outputs(mu, ell, x)
    for y in (L @ x, L.matmul(x, "quadratic"), L.matmul(x, "chunked", 3), truth(L) @ x):
        assert error(y, wanted) < 1e-13


@pytest.mark.parametrize(("lags", "order"), [(0, 1), (1, 1), (2, 2), (5, 5)])
def test_order(lags: int, order: int) -> None:
    """thm:ss-sma-formal, which allows k + 1."""
    L = autoregressive(*example(7, lags))
    assert L.order == order <= lags + 1


@settings(deadline=None, derandomize=True, max_examples=15)
@given(st.sampled_from([1, 2, 4, 7]), st.integers(0, 3), st.integers(0, 999))
def test_rank_is_within_the_theorem(time: int, lags: int, seed: int) -> None:
    """Exactly, over integers, on the matrix of the outputs rather than of the representation."""
    mu, ell = integers(time, seed=seed), integers(time, lags, seed=seed + 1)
    L = outputs(mu, ell, torch.eye(time, dtype=torch.float64))
    assert rank_of_all_blocks(exact(L)) <= lags + 1
    assert torch.equal(autoregressive(mu, ell).dense(), L)


@pytest.mark.parametrize(("time", "lags"), [(1, 1), (2, 3), (9, 0), (9, 1), (9, 3)])
def test_it_is_the_inverse_of_a_banded_matrix(time: int, lags: int) -> None:
    """As in the proof of thm:ss-sma-formal; and back, inverting the representation gives the bands."""
    mu, ell = example(time, lags, seed=4)
    L = autoregressive(mu, ell)
    assert error(L.dense(), torch.linalg.inv(bands(ell)) @ torch.diag(mu)) < 1e-12
    banded = L.inverse().dense()
    assert error(banded, bands(ell) / mu[:, None]) < 1e-12
    assert banded.tril(-lags - 1).abs().max() < 1e-11 * banded.abs().max()


@pytest.mark.parametrize("time", [0, 1, 2, 6])
def test_cumulative_sum_has_one_lag(time: int) -> None:
    """The special case of the definition: y_t = x_t + y_{t-1}."""
    L = autoregressive(torch.ones(time), torch.ones(time, 1))
    assert torch.equal(L.dense(), torch.ones(time, time).tril())


def test_two_lags_make_fibonacci() -> None:
    first_column = autoregressive(torch.ones(10), torch.ones(10, 2)).dense()[:, 0]
    assert first_column.tolist() == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]


@pytest.mark.parametrize("lags", [0, 1])
def test_at_most_one_lag_is_a_scalar_recurrence(lags: int) -> None:
    mu, ell = example(6, lags)
    L = autoregressive(mu, ell)
    assert L.a.shape == (6,)
    assert torch.equal(L.a, ell[:, 0] if lags else torch.zeros(6, dtype=torch.float64))


def test_weights_of_outputs_before_the_first_are_never_felt() -> None:
    mu, ell = example(6, 3)
    before = torch.arange(1, 4) > torch.arange(6)[:, None]
    other = autoregressive(mu, torch.where(before, 100.0, ell))
    assert torch.equal(other.dense(), autoregressive(mu, ell).dense())


@pytest.mark.parametrize("lags", [0, 1, 3])
def test_gradients(lags: int) -> None:
    mu, ell = (tensor.requires_grad_() for tensor in example(5, lags, seed=2))
    x = normal(5, 2, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda mu, ell, x: autoregressive(mu, ell) @ x, (mu, ell, x))


def test_precisions_are_promoted() -> None:
    mu, ell = example(6, 2)
    L = autoregressive(mu.bfloat16(), ell.float())
    assert L.dtype == torch.float32
    wanted = outputs(mu.bfloat16().double(), ell.float().double(), torch.eye(6, dtype=torch.float64))
    assert error(L.dense(), wanted) < 1e-6
    assert isinstance(autoregressive(mu.half(), ell.half()), SemiseparableMatrix)
    assert autoregressive(mu.half(), ell.half()).dense().dtype == torch.float16


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("mu", "ell", "message"),
    [
        (torch.zeros(4, dtype=torch.int64), torch.zeros(4, 2), "mu has dtype torch.int64"),
        (torch.zeros(4), torch.zeros(4, 2, dtype=torch.bool), "ell has dtype torch.bool"),
        (torch.zeros(4, 1), torch.zeros(4, 2), r"mu has shape \(4, 1\), expected 1 axes \(time\)"),
        (torch.zeros(4), torch.zeros(4), r"ell has shape \(4,\), expected 2 axes \(time, lags\)"),
        (torch.zeros(4), torch.zeros(3, 2), "ell has time 3 .* expected 4 as in mu"),
        (torch.zeros(4), torch.zeros(4, 2, device="meta"), "ell is on meta, expected cpu where mu is"),
    ],
)
def test_bad_input_is_named(mu: Tensor, ell: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        autoregressive(mu, ell)
