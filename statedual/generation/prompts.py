"""Prompts: ragged lists of token ids, or a padded tensor with its mask. Inside there is only the ragged list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import TypeAlias

import torch
from torch import Tensor

Prompts: TypeAlias = Sequence[Sequence[int] | Tensor] | Tensor
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def read_prompts(prompts: Prompts, mask: Tensor | None, vocab_size: int, name: str = "prompts") -> list[list[int]]:
    """The tokens of every row, without padding.

    Args:
        prompts: a list of lists (or of 1-d integer tensors) of token ids, or a (batch, time) integer tensor.
        mask: (batch, time), True or 1 at tokens and False or 0 at padding, which may stand to the left, to the right,
            or on both sides of the tokens of a row; only with a tensor. None: no padding.
        vocab_size: every id is at least 0 and below it.
        name: of the argument, for messages.

    """
    if isinstance(prompts, Tensor):
        rows = _unpadded(prompts, mask, name)
    elif mask is not None:
        raise ValueError(f"mask was given with a list, expected none: a list of {name} is ragged and has no padding")
    elif isinstance(prompts, str) or not isinstance(prompts, Iterable):
        raise ValueError(f"{name} is a {type(prompts).__name__}, expected a list of lists of token ids; {TOKENISE}")
    else:
        rows = [_ids(row, index, name) for index, row in enumerate(prompts)]
    if not rows:
        raise ValueError(f"{name} is empty, expected at least one row of token ids")
    for index, row in enumerate(rows):
        if not row:
            raise ValueError(f"{name}[{index}] is empty, expected at least one token; begin with the model's first one")
        if min(row) < 0 or max(row) >= vocab_size:
            position, wrong = next((at, token) for at, token in enumerate(row) if not 0 <= token < vocab_size)
            raise ValueError(
                f"{name}[{index}] has id {wrong} at position {position}, expected 0 <= id < vocab_size = {vocab_size}"
            )
    return rows


TOKENISE = "text becomes ids with a tokenizer: tokenizers.Tokenizer.from_file(path).encode(text).ids"


def _ids(row: Sequence[int] | Tensor, index: int, name: str) -> list[int]:
    if isinstance(row, Tensor):
        if row.ndim != 1 or row.dtype not in INTEGERS:
            raise ValueError(
                f"{name}[{index}] is a {row.dtype} tensor of shape {tuple(row.shape)}, expected 1-d integer token ids"
            )
        return [int(token) for token in row.tolist()]
    if isinstance(row, str) or not isinstance(row, Iterable):
        raise ValueError(
            f"{name}[{index}] is {row!r}, expected a list of token ids, one list for every row; {TOKENISE}"
        )
    ids: list[int] = []
    for position, token in enumerate(row):
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise ValueError(f"{name}[{index}] has {token!r} at position {position}, expected an integer token id")
        ids.append(int(token))
    return ids


def _unpadded(prompts: Tensor, mask: Tensor | None, name: str) -> list[list[int]]:
    if prompts.ndim != 2 or prompts.dtype not in INTEGERS:
        raise ValueError(
            f"{name} is a {prompts.dtype} tensor of shape {tuple(prompts.shape)}, expected integer (batch, time)"
        )
    if mask is None:
        return [[int(token) for token in row] for row in prompts.tolist()]
    if not isinstance(mask, Tensor) or mask.shape != prompts.shape:
        given = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask is {given}, expected a tensor of shape {tuple(prompts.shape)} as {name}")
    rows = []
    for index, (ids, marks) in enumerate(zip(prompts.tolist(), mask.tolist(), strict=True)):
        if any(mark not in (0, 1) for mark in marks):
            raise ValueError(f"mask[{index}] has values other than 0 and 1, expected 1 at tokens and 0 at padding")
        tokens = [int(token) for token, mark in zip(ids, marks, strict=True) if mark]
        if not tokens:
            raise ValueError(f"mask[{index}] is all padding, expected at least one token in every row of {name}")
        first = marks.index(1)
        if not all(marks[first : first + len(tokens)]):
            raise ValueError(f"mask[{index}] has padding between tokens, expected it to the left or to the right only")
        rows.append(tokens)
    return rows
