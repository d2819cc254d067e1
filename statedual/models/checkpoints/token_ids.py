"""The ids of the tokens with which texts begin, end and are padded, as the files beside a model tell them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statedual.models.checkpoints.config_file import read_json

KEYS = {role: f"{role}_token_id" for role in ("bos", "eos", "pad")}


def token_ids(folder: Path) -> dict[str, int | list[int] | None]:
    """bos_token_id, eos_token_id, pad_token_id: of config.json, else of generation_config.json, else of the tokenizer.

    None is unknown.
    """
    sources: list[dict[str, Any]] = [
        _read_ids(folder / "config.json"),
        _read_ids(folder / "generation_config.json"),
        _of_tokenizer(folder),
    ]
    return {key: next((found[key] for found in sources if found.get(key) is not None), None) for key in KEYS.values()}


def _read_ids(path: Path) -> dict[str, int | list[int]]:
    """The keys that ``path`` has; an id is a whole number, or a list of them."""
    values = _read(path)
    found = {key: values[key] for key in KEYS.values() if values.get(key) is not None}
    for key, value in found.items():
        ids = value if isinstance(value, list) else [value]
        if not ids or not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
            raise ValueError(f"{path}: {key} is {value!r}, expected a token id, or a list of them")
    return found


def _of_tokenizer(folder: Path) -> dict[str, int]:
    """By name: the tokens that the configurations name, in the vocabulary of tokenizer.json."""
    path = folder / "tokenizer.json"
    tokenizer = _read(path)
    ids: dict[str, int] = {}
    try:
        vocabulary = (tokenizer.get("model") or {}).get("vocab")
        ids |= vocabulary if isinstance(vocabulary, dict) else {}
        ids |= {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []}
    except (AttributeError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no tokenizer: it lacks a vocabulary or added tokens as they should be") from error
    found = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = _read(folder / name)
        for role, key in KEYS.items():
            token = values.get(f"{role}_token")
            content = token.get("content") if isinstance(token, dict) else token
            if content is not None and not isinstance(content, str):
                raise ValueError(f"{folder / name}: {role}_token is {token!r}, expected the text of a token")
            if content in ids:
                found[key] = ids[content]
    return found


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
