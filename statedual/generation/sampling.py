"""From logits to one token: penalty, temperature, top-k, top-p, min-p, in that order, and one draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from statedual.checks import require_positive

SORTED_FIRST = 256
"""Tokens among which a nucleus is looked for before more are sorted."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Which distribution a token is drawn from. Each step works on what the one before it left.

    repetition_penalty: logits of tokens that stand in the prompt or were generated are divided by it where positive
        and multiplied where negative (CTRL's rule).
    temperature: logits / temperature; 0 is greedy, the likeliest token (the lowest id of equals).
    top_k: the k likeliest tokens, of equals the lowest ids.
    top_p: the smallest set of likeliest tokens whose probability reaches top_p, at least one (the nucleus).
    min_p: tokens at least min_p times as probable as the likeliest.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _require("temperature", self.temperature, "a finite number, at least 0", lambda value: value >= 0)
        # (Beyond these bounds a logit times or by it may be no number any more.)
        _require("repetition_penalty", self.repetition_penalty, "0.01 to 100", lambda value: 0.01 <= value <= 100)
        if self.top_k is not None:
            require_positive("top_k", self.top_k)
        if self.top_p is not None:
            _require("top_p", self.top_p, "a number above 0 and at most 1", lambda value: 0 < value <= 1)
        if self.min_p is not None:
            _require("min_p", self.min_p, "a number from 0 to 1", lambda value: 0 <= value <= 1)

    @property
    def greedy(self) -> bool:
        """The likeliest token, always."""
        return self.temperature == 0

    def penalised(
        self, logits: Float[Tensor, "*rows vocab"], seen: Bool[Tensor, "*rows vocab"] | None
    ) -> Float[Tensor, "*rows vocab"]:
        """Logits in float64 after the repetition penalty; ``seen`` marks the tokens of prompt and text."""
        logits = logits.double()
        if seen is None or self.repetition_penalty == 1:
            return logits
        penalty = self.repetition_penalty
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    def probabilities(
        self, logits: Float[Tensor, "*rows vocab"], seen: Bool[Tensor, "*rows vocab"] | None = None
    ) -> Float[Tensor, "*rows vocab"]:
        """The distribution that is drawn from, in float64; greedy has all of it on one token."""
        logits = self.penalised(logits, seen)
        if self.greedy:
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1)
        # The largest is 0 before the division, so that no temperature overflows.
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = logits.masked_fill(~_likeliest(logits, self.top_k), -math.inf)
        probabilities = logits.softmax(-1)
        if self.top_p is not None and self.top_p < 1:
            probabilities = _normalised(probabilities * _nucleus(probabilities, self.top_p))
        if self.min_p is not None:
            least = self.min_p * probabilities.amax(-1, keepdim=True)
            probabilities = _normalised(probabilities * (probabilities >= least))
        return probabilities


def draw(weights: Float[Tensor, "*rows vocab"], uniform: Float[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
    """The first token at which the running sum of ``weights`` passes ``uniform`` of all of it, 0 <= uniform < 1.

    The weights need not sum to 1. A token of weight 0 is never drawn.
    """
    mass = weights.cumsum(-1)
    passed = uniform[..., None] * mass[..., -1:]  # below all of it, in float64 too
    return torch.searchsorted(mass, passed, right=True)[..., 0]


def _require(name: str, value: float, wanted: str, holds: Callable[[float], bool]) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or not holds(value):
        raise ValueError(f"{name} is {value!r}, expected {wanted}")


def _likeliest(values: Tensor, k: int) -> Tensor:
    """True at the k largest, of equals at the lowest indices."""
    return _down_to(values, values.topk(k, dim=-1).values[..., -1:], k)


def _nucleus(probabilities: Tensor, mass: float) -> Tensor:
    """True at the smallest set of largest ones that sums to ``mass`` or more."""
    vocab = probabilities.shape[-1]
    size = min(SORTED_FIRST, vocab)
    while True:
        ordered = probabilities.topk(size, dim=-1).values
        sums = ordered.cumsum(-1)
        if size == vocab or bool((sums[..., -1] >= mass).all()):
            break
        size = min(16 * size, vocab)
    count = 1 + (sums[..., :-1] < mass).sum(-1, keepdim=True)
    return _down_to(probabilities, ordered.gather(-1, count - 1), count)


def _down_to(values: Tensor, least: Tensor, count: Tensor | int) -> Tensor:
    """True at the ``count`` largest, of which the smallest is ``least``; of equals at the lowest indices."""
    above, equal = values > least, values == least
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)
