"""Text from tokens, as they come: never half a character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

LONGEST_CHARACTER = 16
"""Tokens that one character may take (it has four bytes); what is broken for longer stays broken."""
BROKEN = "\ufffd"
"""What a decoder writes for bytes that are not yet, or never will be, a character."""


@runtime_checkable
class Tokenizer(Protocol):
    """All that is asked of a tokenizer; ``tokenizers.Tokenizer`` and those of transformers have it."""

    def decode(self, ids: list[int]) -> str:
        """The text of ``ids``."""
        ...


class TextStream:
    """The text of one row. A token may end inside a character, or begin with a space that only decoders can place.

    So a token is decoded together with the ones before it, back to a border of characters, and text is given out up
    to the last whole character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        self._since: list[int] = []
        self.started = ""
        """Text behind what was given out, whose last character is not whole."""

    def push(self, token: int) -> str:
        """The whole characters that are new with ``token``."""
        self._since.append(token)
        new = self._new_text()
        if new.endswith(BROKEN) and len(self._since) < LONGEST_CHARACTER:
            self.started = new.rstrip(BROKEN)
            return ""
        self.started = ""
        if new:
            self._before, self._since = self._since, []
        return new

    def flush(self) -> str:
        """What is left at the end, broken as it is."""
        new = self._new_text() if self._since else ""
        self._since, self.started = [], ""
        return new

    def _new_text(self) -> str:
        known = self._tokenizer.decode(self._before)
        return self._tokenizer.decode(self._before + self._since)[len(known) :]


class StoppingText:
    """The text of one row up to the first of some stop strings."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._stream = TextStream(tokenizer)
        self._stops = stops
        self._held = ""
        self.stopped = False
        """A stop string is complete."""

    def push(self, token: int) -> str:
        """The text that is new with ``token`` and cannot be part of a stop string any more."""
        text = self._held + self._stream.push(token)
        # A stop string can end in a token whose last character has only begun.
        found = [at for stop in self._stops if (at := (text + self._stream.started).find(stop)) >= 0]
        if found:
            self.stopped = True
            return (text + self._stream.started)[: min(found)]
        shown = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What is left at the end of a row that met no stop string."""
        text, self._held = self._held + self._stream.flush(), ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` with which ``stop`` begins."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
