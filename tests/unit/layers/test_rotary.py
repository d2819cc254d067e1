"""Rotary positions: GPT-NeoX's pairs, turned by angles that grow with the position."""

import pytest
import torch
from layer_examples import difference
from torch import Tensor

from statedual.layers.rotary import rotate


def as_complex(x: Tensor, where: Tensor, rotary_dim: int, base: float) -> Tensor:
    """The definition: the pair (x_i, x_{i + r/2}) is a complex number, and position t multiplies it with e^(i t w)."""
    half = rotary_dim // 2
    turned = x.clone().double()
    for i in range(half):
        frequency = base ** (-2 * i / rotary_dim)
        pair = torch.complex(x[..., i].double(), x[..., i + half].double())
        angle = where.double()[..., None] * frequency
        pair = pair * torch.polar(torch.ones_like(angle), angle)
        turned[..., i], turned[..., i + half] = pair.real, pair.imag
    return turned


@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize("rotary_dim", [2, 6, 10])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_pairs_are_turned_as_complex_numbers(dtype: torch.dtype, bound: float, rotary_dim: int, base: float) -> None:
    x = torch.randn(2, 7, 3, 10, dtype=torch.float64).to(dtype)
    where = torch.randint(0, 5000, (2, 7))
    got = rotate(x, where, rotary_dim, base)
    assert got.dtype == dtype
    assert difference(got, as_complex(x, where, rotary_dim, base)) < bound
    assert torch.equal(got[..., rotary_dim:], x[..., rotary_dim:])


def test_the_halves_of_gpt_neox() -> None:
    """x cos + rotate_half(x) sin, with the angles twice behind one another, as its implementations are written."""
    x, where = torch.randn(1, 9, 2, 8, dtype=torch.float64), torch.arange(9)[None]
    frequency = 1 / 10000 ** (torch.arange(0, 8, 2).double() / 8)
    angle = torch.cat([where[..., None] * frequency] * 2, -1)[:, :, None]
    half_turned = torch.cat([-x[..., 4:], x[..., :4]], -1)
    assert difference(rotate(x, where, 8), x * angle.cos() + half_turned * angle.sin()) < 1e-12


def test_only_distances_matter() -> None:
    """(R_t q) . (R_s k) depends on t - s alone, at any position, in float32 too."""
    q, k = torch.randn(1, 1, 2, 16), torch.randn(1, 1, 2, 16)
    for distance in (0, 3, 700):
        near, *far = (
            (rotate(q, torch.tensor([[s + distance]]), 16) * rotate(k, torch.tensor([[s]]), 16)).sum(-1)
            for s in (0, 1000, 1_000_000, 100_000_000)
        )
        for other in far:
            assert difference(other, near) < 1e-5


def test_one_row_of_positions_serves_all() -> None:
    x = torch.randn(3, 5, 2, 4)
    where = torch.arange(4, 9)
    assert torch.equal(rotate(x, where[None], 4), rotate(x, where.expand(3, -1), 4))


def test_no_pairs_and_no_positions() -> None:
    x = torch.randn(2, 5, 2, 4)
    assert torch.equal(rotate(x, torch.arange(5)[None], 0), x)
    assert rotate(x[:, :0], torch.arange(0)[None], 4).shape == (2, 0, 2, 4)
