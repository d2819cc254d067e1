"""One token a row at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from statedual.generation.logprobs import require_finite, token_logprobs
from statedual.generation.prefill import prefill_rows
from statedual.generation.random_rows import uniform
from statedual.generation.request import Request, Row, Token
from statedual.generation.sampling import Sampling, draw
from statedual.models import LanguageModel


def decode(model: LanguageModel, request: Request) -> Iterator[Token]:
    """The tokens of all rows, as they come. Rows that are over leave the batch."""
    rows, seen = request.rows(), request.seen(model.embedding.weight.device)
    logits, state = prefill_rows(model, request.prompts, request.block, request.progress)
    while True:
        ids = choose(logits[:, : request.vocab_size], rows, seen, request.sampling)
        logprobs = token_logprobs(logits[:, : request.vocab_size], ids).tolist()
        tokens = [row.take(*new) for row, *new in zip(rows, ids.tolist(), logprobs, strict=True)]
        yield from tokens
        going = [index for index, token in enumerate(tokens) if token.reason is None]
        if not going:
            return
        if seen is not None:
            seen = seen.scatter(1, ids[:, None], True)[going]
        if len(going) < len(rows):
            rows, ids, state = [rows[index] for index in going], ids[going], state.select(going)
        logits, state = model.step(ids, state)


def choose(logits: Tensor, rows: Sequence[Row], seen: Tensor | None, sampling: Sampling) -> Tensor:
    """The next token (rows,) of every row, from logits (rows, vocab)."""
    require_finite(logits, [row.index for row in rows], [row.position for row in rows], "the model")
    if sampling.greedy:
        return sampling.penalised(logits, seen).argmax(-1)
    return draw(sampling.probabilities(logits, seen), uniforms(rows, 1, logits.device)[:, 0])


def uniforms(rows: Sequence[Row], count: int, device: torch.device) -> Tensor:
    """(rows, count) numbers in float64, at least 0 and below 1, each row's from its own generator."""
    numbers = [[uniform(row.generator) for _ in range(count)] for row in rows]
    return torch.tensor(numbers, dtype=torch.float64, device=device)
