"""When a row is over: an end-of-sequence token, a stop string or sequence, or its length."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypeAlias

from torch import Tensor

from statedual.generation.text import StoppingText, Tokenizer

Reason: TypeAlias = Literal["eos", "stop", "length"]
Stop: TypeAlias = str | Iterable[str | Sequence[int]]


@dataclass(frozen=True)
class Ending:
    """What ends a row. ``strings`` need the tokenizer."""

    max_new_tokens: int
    eos: frozenset[int]
    sequences: tuple[tuple[int, ...], ...]
    strings: tuple[str, ...]
    tokenizer: Tokenizer | None


class Watch:
    """The new tokens of one row, looked at one by one."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._count = 0
        self._tail: deque[int] = deque(maxlen=max((len(stop) for stop in ending.sequences), default=0))
        self._text = (
            StoppingText(ending.tokenizer, ending.strings) if ending.strings and ending.tokenizer is not None else None
        )

    def push(self, token: int) -> Reason | None:
        """Why the row is over with this token, or None."""
        self._count += 1
        self._tail.append(token)
        if self._text is not None:
            self._text.push(token)
        if token in self._ending.eos:
            return "eos"
        tail = tuple(self._tail)
        if any(tail[-len(stop) :] == stop for stop in self._ending.sequences):
            return "stop"
        if self._text is not None and self._text.stopped:
            return "stop"
        return "length" if self._count >= self._ending.max_new_tokens else None


def read_ending(
    max_new_tokens: int,
    eos: int | Iterable[int] | Tensor | None,
    stop: Stop,
    tokenizer: Tokenizer | None,
    vocab_size: int,
) -> Ending:
    """The arguments of ``generate``, checked."""
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, Integral) or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens is {max_new_tokens!r}, expected an integer, at least 0")
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        raise ValueError(f"tokenizer is a {type(tokenizer).__name__}, expected an object with decode(ids) -> str")
    if isinstance(eos, Tensor):
        eos = [int(token) for token in eos.flatten().tolist()]
    if eos is not None and not isinstance(eos, Integral | Iterable):
        raise ValueError(f"eos is {eos!r}, expected a token id or a collection of them")
    if not isinstance(stop, Iterable):
        raise ValueError(f"stop is {stop!r}, expected strings or lists of token ids")
    ids = () if eos is None else (eos,) if isinstance(eos, Integral) else tuple(eos)
    ends = [_read_id("eos", token, vocab_size) for token in ids]
    strings, sequences = [], []
    for index, given in enumerate([stop] if isinstance(stop, str) else stop):
        name = f"stop[{index}]"
        if not isinstance(given, str | Sequence):
            raise ValueError(f"{name} is {given!r}, expected a string or a list of token ids (a single id is for eos)")
        if len(given) == 0:
            raise ValueError(f"{name} is empty, expected a string or a list of token ids")
        if isinstance(given, str):
            strings.append(given)
        else:
            sequences.append(tuple(_read_id(name, token, vocab_size) for token in given))
    if strings and tokenizer is None:
        raise ValueError(f"stop has the string {strings[0]!r} without a tokenizer, expected one; tokenizer= takes it")
    return Ending(max_new_tokens, frozenset(ends), tuple(sequences), tuple(strings), tokenizer)


def _read_id(name: str, token: int, vocab_size: int) -> int:
    if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= token < vocab_size:
        raise ValueError(f"{name} has {token!r}, expected a token id, 0 <= id < vocab_size = {vocab_size}")
    return int(token)
