"""From prompts to states: everything that was given is read at once, as one packed sequence in bounded blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from statedual.checks import require_positive
from statedual.generation.blocks import Progress, walk
from statedual.generation.prompts import Prompts, read_prompts
from statedual.models import LanguageModel, ModelState


@torch.no_grad()
def prefill(
    model: LanguageModel, prompts: Prompts, *, block: int = 2048, progress: Progress | None = None
) -> tuple[Tensor, ModelState]:
    """Read ``prompts``, as ``generate`` takes them.

    Memory does not grow with their length, but for key and value caches: at most ``block`` tokens are in work at a
    time, and the only logits are those of last tokens.

    Returns:
        Logits (rows, vocabulary) behind the last token of every prompt, and the states there, one row each.

    """
    require_positive("block", block)
    return prefill_rows(model, read_prompts(prompts, None, model.config.vocab_size), block, progress)


def prefill_rows(
    model: LanguageModel, rows: Sequence[Sequence[int]], block: int, progress: Progress | None = None
) -> tuple[Tensor, ModelState]:
    """``prefill`` of rows that are known to be good."""
    logits: list[Tensor] = []
    states: list[ModelState] = []
    for pieces, output in walk(model, rows, block, last_only=True, progress=progress):
        done = [index for index, piece in enumerate(pieces) if piece.last]
        if done:
            logits.append(output.logits[done])
            states.append(output.state if len(done) == len(pieces) else output.state.select(done))
    return torch.cat(logits), states[0] if len(states) == 1 else ModelState.cat(states)
