"""What is asked of ``generate`` and ``stream``: the arguments, checked, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from statedual.checks import require_positive
from statedual.generation.blocks import Progress
from statedual.generation.ending import Ending, Reason, Stop, Watch, read_ending
from statedual.generation.prompts import Prompts, read_prompts
from statedual.generation.random_rows import row_generators
from statedual.generation.sampling import Sampling
from statedual.generation.text import Tokenizer
from statedual.models import LanguageModel


class Token(NamedTuple):
    """A new token of a row; ``reason``: why it is the last one."""

    row: int
    token: int
    logprob: float
    reason: Reason | None


class Row:
    """A row that is being written."""

    def __init__(self, index: int, prompt: Sequence[int], ending: Ending, generator: torch.Generator) -> None:
        self.index = index
        self.position = len(prompt)
        """Of the next token."""
        self.generator = generator
        self._watch = Watch(ending)

    def take(self, token: int, logprob: float) -> Token:
        """The row goes on with ``token``."""
        self.position += 1
        return Token(self.index, token, logprob, self._watch.push(token))


@dataclass(frozen=True)
class Request:
    """Everything that generation needs beside the models."""

    prompts: list[list[int]]
    sampling: Sampling
    ending: Ending
    generators: list[torch.Generator]
    vocab_size: int
    block: int
    progress: Progress | None
    draft_tokens: int

    def rows(self) -> list[Row]:
        """One for every prompt."""
        return [
            Row(index, prompt, self.ending, generator)
            for index, (prompt, generator) in enumerate(zip(self.prompts, self.generators, strict=True))
        ]

    def seen(self, device: torch.device) -> Tensor | None:
        """(rows, vocab) True at the tokens of the prompts, for the repetition penalty; None where there is none."""
        if self.sampling.repetition_penalty == 1:
            return None
        seen = torch.zeros(len(self.prompts), self.vocab_size, dtype=torch.bool, device=device)
        for row, prompt in enumerate(self.prompts):
            seen[row, prompt] = True
        return seen


def read_request(
    model: LanguageModel,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float,
    stop: Stop,
    eos: int | Iterable[int] | None,
    seed: int | Sequence[int] | None,
    mask: Tensor | None,
    tokenizer: Tokenizer | None,
    draft: LanguageModel | None,
    draft_tokens: int,
    block: int,
    progress: Progress | None,
) -> Request:
    """The arguments of ``generate``, which says what they mean."""
    vocab_size = model.config.vocab_size
    require_positive("block", block)
    require_positive("draft_tokens", draft_tokens)
    if draft is not None and draft.config.vocab_size != vocab_size:
        raise ValueError(
            f"draft has vocab_size {draft.config.vocab_size}, expected {vocab_size} as model; "
            f"a draft must have been trained with the same tokenizer"
        )
    if draft is not None and draft.embedding.weight.device != model.embedding.weight.device:
        raise ValueError(
            f"draft is on {draft.embedding.weight.device}, expected {model.embedding.weight.device} where model is"
        )
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
    )
    ending = read_ending(max_new_tokens, eos, stop, tokenizer, vocab_size)
    rows = read_prompts(prompts, mask, vocab_size)
    generators = row_generators(seed, len(rows))
    return Request(rows, sampling, ending, generators, vocab_size, block, progress, draft_tokens)
