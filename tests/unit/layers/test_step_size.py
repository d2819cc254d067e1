"""dt at the beginning: log-uniform between its bounds, behind a softplus."""

import math
import re

import pytest
import torch
from torch.nn import functional

from statedual.layers.step_size import draw_dt_bias, require_draw, require_floor, require_range


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [(1e-3, 1e-1), (1e-7, 1e-5), (0.5, 60.0)])
def test_the_softplus_of_the_bias_is_log_uniform(bounds: tuple[float, float], dtype: torch.dtype) -> None:
    bias = draw_dt_bias(torch.empty(20_000, dtype=dtype), bounds, 0.0)
    assert (bias.shape, bias.dtype) == ((20_000,), dtype)
    dt = torch.log1p(torch.exp(bias.double()))  # softplus as it is defined
    low, high = bounds
    assert dt.min() >= low * (1 - 1e-5)
    assert dt.max() <= high * (1 + 1e-5)
    # Five standard errors of a quantile of 20,000 uniform numbers.
    uniform = ((dt / low).log() / math.log(high / low)).sort().values
    assert (uniform - torch.linspace(0, 1, 20_000)).abs().max() < 5 * 0.5 / math.sqrt(20_000)


def test_no_step_is_below_the_floor() -> None:
    bias = draw_dt_bias(torch.empty(1000, dtype=torch.float64), (1e-6, 1e-2), 1e-4)
    dt = functional.softplus(bias)
    assert dt.min().item() == pytest.approx(1e-4, rel=1e-9)
    assert 0.4 < (dt < 1.0001e-4).double().mean() < 0.6  # half of log U(1e-6, 1e-2)
    assert dt.max() > 5e-3


@pytest.mark.parametrize("dt", [1e-9, 1e-4, 0.1, 1.0, 30.0])
def test_the_inverse_keeps_its_digits(dt: float) -> None:
    """log(expm1(dt)) written as dt + log(1 - exp(-dt)): neither tiny nor large steps lose any."""
    for dtype, bound in ((torch.float32, 2e-6), (torch.float64, 1e-14)):
        bias = draw_dt_bias(torch.empty(3, dtype=dtype), (dt, dt), 0.0)
        assert functional.softplus(bias.double()).tolist() == pytest.approx([dt] * 3, rel=bound)


def test_every_channel_draws_its_own() -> None:
    like = torch.zeros(50)
    bias = draw_dt_bias(like, (1e-3, 1e-1), 1e-4)
    assert len(set(bias.tolist())) == 50
    assert not like.any()  # a shape, not a place


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("value", [(0.0, math.inf), (0.0, 0.0), (1, 2), (0.5, 0.5)])
def test_ranges_that_may_be(value: tuple[float, float]) -> None:
    require_range("dt_limit", value)


@pytest.mark.parametrize(
    "value", [(2.0, 1.0), (-0.1, 1.0), (math.nan, 1.0), (0.0, math.nan), (1.0,), (1.0, 2.0, 3.0), 1.0, None, [0.0, 1.0]]
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_ranges_that_may_not(value: object) -> None:
    message = f"dt_limit is {value!r}, expected (low, high) with 0 <= low <= high"
    with pytest.raises(ValueError, match=re.escape(message)):
        require_range("dt_limit", value)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("value", [(0.0, 1.0), (1.0, math.inf), (2.0, 1.0), (0.0, 0.0)])
def test_what_is_drawn_has_a_logarithm(value: tuple[float, float]) -> None:
    require_draw("A_init", (1e-9, 1e9))
    with pytest.raises(ValueError, match=re.escape(f"A_init is {value!r}, expected (low, high) with 0 <")):
        require_draw("A_init", value)


@pytest.mark.parametrize("value", [-1e-4, math.inf, math.nan])
def test_floors_that_may_not(value: float) -> None:
    require_floor(0.0)
    with pytest.raises(ValueError, match="dt_floor is"):
        require_floor(value)
