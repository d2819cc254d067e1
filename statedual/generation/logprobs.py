"""Logarithms of probabilities of given tokens, and logits that are no numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

ROWS_AT_ONCE = 256


def token_logprobs(logits: Float[Tensor, "tokens vocab"], ids: Int[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """log softmax(logits)[ids] in float32, over all logits given, a few rows at a time."""
    found = []
    for some, chosen in zip(logits.split(ROWS_AT_ONCE), ids.split(ROWS_AT_ONCE), strict=True):
        wide = some if some.dtype == torch.float64 else some.float()
        found.append((wide.gather(-1, chosen[:, None])[:, 0] - wide.logsumexp(-1)).float())
    return torch.cat(found)


def require_finite(
    logits: Float[Tensor, "rows vocab"], rows: Sequence[int], positions: Sequence[int], whose: str
) -> None:
    """No row of ``logits`` has a NaN, an infinity, or nothing but -infinity."""
    finite = logits.amax(-1).isfinite().tolist()
    for good, row, position in zip(finite, rows, positions, strict=True):
        if not good:
            raise ValueError(
                f"the logits of {whose} for position {position} of row {row} are not finite, expected numbers; "
                f"look for NaN or infinity among its parameters, or for a dtype too narrow for it"
            )
