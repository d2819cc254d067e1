"""What every kind of block must do, whatever it computes: one function over sequences, cut, packed, or step by step."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn

OFFSETS = (0, 0, 5, 6, 8, 20, 37, 37)


def difference(got: Tensor, truth: Tensor) -> float:
    """||got - truth|| / ||truth||, or ||got|| where the truth is zero."""
    size = truth.double().norm().item()
    return (got.double() - truth.double()).norm().item() / (size or 1.0)


def state_difference(got: Any, truth: Any) -> float:
    """The largest over the tensors of two states of the same block."""
    assert type(got) is type(truth)
    pairs = [(g, t) for g, t in zip(got, truth, strict=True) if t is not None]
    assert all(g.shape == t.shape for g, t in pairs)
    return max((difference(g, t) for g, t in pairs), default=0.0)


def copied(state: Any) -> Any:
    return type(state)(*(None if tensor is None else tensor.clone() for tensor in state))


def disturb(module: nn.Module) -> None:
    """Give parameters that begin as zeros or ones values of their own, so that forgetting one shows."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim and (parameter == parameter.flatten()[0]).all():
                parameter.add_(0.3 * torch.randn_like(parameter))


def worst_of_ways(module: Any, u: Tensor) -> dict[str, float]:
    """How far every other way is from one pass over ``u`` (2, 37, model): outputs and states."""
    y, state = module(u)
    found = {}

    cut, before = [], None
    for start, stop in ((0, 1), (1, 3), (3, 3), (3, 20), (20, 37)):
        piece, before = module(u[:, start:stop], before)
        cut.append(piece)
    found["cut"] = max(difference(torch.cat(cut, 1), y), state_difference(before, state))

    walked = module.init_state(2)
    steps = []
    if hasattr(walked, "with_room"):
        walked = walked.with_room(37)
    for t in range(37):
        steps.append(module.step(u[:, t], walked))
    found["step"] = difference(torch.stack(steps, 1), y)

    y_half, half = module(u[:, :18])
    kept = copied(half)
    continued, after = module(u[:, 18:], half)
    assert state_difference(half, kept) == 0.0  # a state that is given is not changed
    found["prefill"] = max(difference(torch.cat([y_half, continued], 1), y), state_difference(after, state))

    offsets = torch.tensor(OFFSETS)
    packed, states = module(u[:1], None, offsets)
    again, states_again = module(u[1:], states, offsets)
    worst = 0.0
    for row, (start, stop) in enumerate(itertools.pairwise(OFFSETS)):
        alone, _ = module(torch.cat([u[:1, start:stop], u[1:, start:stop]], 1))
        together = torch.cat([packed[:, start:stop], again[:, start:stop]], 1)
        worst = max(worst, difference(together, alone))
        next_alone, _ = module(u[:1, :4], module(torch.cat([u[:1, start:stop], u[1:, start:stop]], 1))[1])
        one = type(states_again)(*(None if t is None else t[row : row + 1] for t in states_again))
        worst = max(worst, difference(module(u[:1, :4], one)[0], next_alone))
    found["packed"] = worst
    return found
