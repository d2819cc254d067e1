"""The step size dt of a selective SSM: how it is drawn at the beginning."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def require_range(name: str, value: tuple[float, float]) -> None:
    """``value`` is (low, high) with 0 <= low <= high."""
    if not isinstance(value, tuple) or len(value) != 2 or not 0 <= value[0] <= value[1]:
        raise ValueError(f"{name} is {value!r}, expected (low, high) with 0 <= low <= high")


def require_draw(name: str, value: tuple[float, float]) -> None:
    """``value`` is (low, high) with 0 < low <= high < infinity, whose logarithms numbers are drawn between."""
    require_range(name, value)
    if value[0] == 0 or math.isinf(value[1]):
        raise ValueError(f"{name} is {value!r}, expected (low, high) with 0 < low <= high < infinity")


def require_floor(dt_floor: float) -> None:
    """The least step size that is drawn."""
    if not 0 <= dt_floor < math.inf:
        raise ValueError(f"dt_floor is {dt_floor!r}, expected a number of at least 0")


def draw_dt_bias(
    like: Float[Tensor, " channels"], dt_init: tuple[float, float], dt_floor: float
) -> Float[Tensor, " channels"]:
    """dt_bias with softplus(dt_bias) = dt, log dt ~ U(log low, log high), dt at least ``dt_floor``."""
    low, high = (math.log(bound) for bound in dt_init)
    dt = torch.empty_like(like).uniform_(low, high).exp_().clamp_(min=dt_floor)
    return dt + torch.log(-torch.expm1(-dt))
