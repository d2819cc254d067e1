"""A configuration in JSON, read with the type each key must have; every message names the file and the key."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any


class ConfigFile:
    """The keys of one JSON object. A key that is absent or null has its default; without a default it is an error.

    Sections are objects inside it: their keys are spelled "ssm_cfg.d_state" in messages. ``spelling`` gives keys that
    were translated their names in the file.
    """

    def __init__(
        self, path: Path, values: dict[str, Any], section: str = "", spelling: Mapping[str, str] | None = None
    ) -> None:
        self.path, self.values, self._section, self._spelling = path, values, section, spelling or {}

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """The object in ``path``."""
        return cls(path, read_json(path))

    def spelled(self, key: str) -> str:
        """``key`` as messages name it."""
        whole = f"{self._section}.{key}" if self._section else key
        return self._spelling.get(whole, whole)

    def has(self, key: str) -> bool:
        """It is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, least: int = 0) -> int:
        """A whole number from ``least`` on."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"an integer, at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number, infinity in all its spellings."""
        return self._number(key, self._get(key, default))

    def pair(self, key: str, default: tuple[float, float] | None = None) -> tuple[float, float]:
        """Two numbers."""
        value = self._get(key, default)
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise self.wrong(key, "two numbers")
        return self._number(key, value[0]), self._number(key, value[1])

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers; absent is empty."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.wrong(key, "a list of indices")
        return value

    def section(self, key: str) -> ConfigFile:
        """The object at ``key``; absent is empty."""
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return ConfigFile(self.path, value, self.spelled(key), self._spelling)

    def require_known(self, known: Collection[str], source: str) -> None:
        """No key means something that would be passed over in silence."""
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                meant = f"did you mean {near[0]!r}?" if near else "remove it if the model does not depend on it"
                raise ValueError(f"{self.path}: {source} has no key {self.spelled(key)!r}; {meant}")

    def wrong(self, key: str, wanted: str) -> ValueError:
        """The error that says what ``key`` is and what was wanted."""
        return ValueError(f"{self.path}: {self.spelled(key)} is {self.values.get(key)!r}, expected {wanted}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise ValueError(f"{self.path}: {self.spelled(key)} is missing")
        return default

    def _number(self, key: str, value: Any) -> float:
        if isinstance(value, dict) and set(value) == {"__float__"}:
            value = {"Infinity": math.inf, "-Infinity": -math.inf}.get(value["__float__"])
        if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
            raise self.wrong(key, "a number")
        return float(value)


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``."""
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested without end
        raise ValueError(f"{path} is not whole JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a JSON {type(values).__name__}, expected an object")
    return values
