"""The tree over a chunk by itself: its decays against direct sums, its pairs counted, its adjoint against autograd."""

import math

import pytest
import torch
from torch import Tensor

from statedual.selective_scan.halving import fill_border_decays, halves, pass_down, quadrants

SIZES = [1, 2, 4, 8, 16, 32, 64]
every_size = pytest.mark.parametrize("size", SIZES)
KINDS = {"usual": [-0.1, -0.5, -2.0], "wild": [0.0, -1e-4, -30.0, -1e4, -math.inf]}


def draw(kind: str, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Log decays (2 chunks, 3 heads, size, 4 channels)."""
    values = torch.tensor(KINDS[kind], dtype=dtype)
    return values[torch.randint(len(values), (2, 3, size, 4))]


def filled(log_a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    levels = log_a.new_full((log_a.shape[2].bit_length() - 1, *log_a.shape), math.nan)
    start, end = torch.full_like(log_a, math.nan), torch.full_like(log_a, math.nan)
    fill_border_decays(log_a, levels, start, end)
    return levels, start, end


def between(log_a: Tensor, s: int, t: int) -> Tensor:
    """exp(log_a[s] + ... + log_a[t - 1]), summed in float64."""
    return log_a[:, :, s:t].double().sum(2).exp()


@every_size
@pytest.mark.parametrize("kind", KINDS)
def test_decays_are_those_of_direct_sums(kind: str, size: int) -> None:
    """Each from the position to the border of its level, or to the ends of the chunk; nothing is left unwritten."""
    log_a = draw(kind, size)
    levels, start, end = filled(log_a)
    for t in range(size):
        torch.testing.assert_close(start[:, :, t].double(), between(log_a, 0, t + 1), rtol=1e-5, atol=1e-38)
        torch.testing.assert_close(end[:, :, t].double(), between(log_a, t + 1, size), rtol=1e-5, atol=1e-38)
        for k, level in enumerate(levels):
            first = t >> k << k  # of the half that t lies in
            on_the_right = t >> k & 1
            ends = (first, t + 1) if on_the_right else (t + 1, first + (1 << k))
            torch.testing.assert_close(level[:, :, t].double(), between(log_a, *ends), rtol=1e-5, atol=1e-38)


@pytest.mark.parametrize("kind", KINDS)
def test_no_decay_exceeds_one(kind: str) -> None:
    for decays in filled(draw(kind, 64)):
        assert (decays >= 0).all()
        assert (decays <= 1).all()


@every_size
def test_every_pair_of_a_source_and_a_later_target_meets_at_one_border(size: int) -> None:
    """Written level by level into quadrants: 1 below the diagonal, 0 elsewhere."""
    count = torch.zeros(2, 3, size, size)
    for k in range(size.bit_length() - 1):
        quadrants(count, 1 << k).add_(1)
    assert torch.equal(count, torch.ones(size, size).tril(-1).expand_as(count))


@every_size
def test_quadrants_are_where_right_targets_read_left_sources(size: int) -> None:
    """Both cut the chunk alike: a quadrant of S[t, s] = s + size t holds the positions of its two halves."""
    place = torch.arange(size, dtype=torch.float64)
    scores = (place + size * place.unsqueeze(1)).expand(2, 3, -1, -1).clone()
    held = place.view(1, 1, -1, 1).expand(2, 3, -1, 1)
    for k in range(size.bit_length() - 1):
        left, right = halves(held, 1 << k)
        assert torch.equal(quadrants(scores, 1 << k), left.mT + size * right)
        assert torch.equal(right, left + (1 << k))


@every_size
@pytest.mark.parametrize("kind", KINDS)
def test_the_two_factors_of_a_pair_are_its_decay(kind: str, size: int) -> None:
    """For each channel of the state, without a quotient: also where the decays on the way are -1e4 and -inf."""
    log_a = draw(kind, size)
    levels, _, _ = filled(log_a)
    pairs = torch.eye(size, dtype=torch.float64).expand(4, 2, 3, -1, -1).clone()
    for k, level in enumerate(levels.double()):
        left, right = halves(level, 1 << k)
        for channel in range(4):
            quadrants(pairs[channel], 1 << k).copy_(
                right[..., channel : channel + 1] @ left[..., channel : channel + 1].mT
            )
    for t in range(size):
        for s in range(t + 1):
            wanted = between(log_a, s + 1, t + 1).movedim(-1, 0)
            torch.testing.assert_close(pairs[..., t, s], wanted, rtol=1e-5, atol=1e-38)


def plain_logarithms(log_a: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """What ``fill_border_decays`` takes the exponentials of, by cumulative sums out of place."""
    size = log_a.shape[2]

    def from_start(block: Tensor) -> Tensor:
        return block.cumsum(-2)

    def to_end(block: Tensor) -> Tensor:
        return block.sum(-2, keepdim=True) - block.cumsum(-2)

    levels = []
    for k in range(size.bit_length() - 1):
        left, right = halves(log_a, 1 << k)
        levels.append(torch.stack([to_end(left), from_start(right)], -3).reshape(log_a.shape))
    return levels, from_start(log_a), to_end(log_a)


@every_size
def test_passing_down_is_the_adjoint_of_filling(size: int) -> None:
    log_a = draw("usual", size, torch.float64).requires_grad_()
    levels, start, end = plain_logarithms(log_a)
    for got, wanted in zip(filled(log_a.detach()), (torch.stack(levels) if levels else None, start, end), strict=True):
        if wanted is not None:
            torch.testing.assert_close(got, wanted.exp())
    grads = [torch.randn_like(log_a) for _ in (*levels, start, end)]
    (wanted,) = torch.autograd.grad([*levels, start, end], log_a, grads)
    *grad_levels, grad_start, grad_end = (grad.clone() for grad in grads)
    for k in reversed(range(len(levels))):
        pass_down(grad_start, grad_end, grad_levels[k], 1 << k)
    torch.testing.assert_close(grad_start, wanted)


def test_halves_are_views_of_wider_tensors_too() -> None:
    """The products write through them."""
    held = torch.zeros(2, 3, 8, 4)
    left, right = halves(held, 2)
    left += 1
    right += 2
    assert torch.equal(held[0, 0, :, 0], torch.tensor([1.0, 1, 2, 2, 1, 1, 2, 2]))
