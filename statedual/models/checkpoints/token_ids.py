"""The ids of the tokens with which texts begin, end and are padded, as the files beside a model tell them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statedual.models.checkpoints.config_file import read_json

ROLES = ("bos", "eos", "pad")


def token_ids(folder: Path) -> dict[str, int | list[int] | None]:
    """bos_token_id, eos_token_id, pad_token_id: of config.json, else of generation_config.json, else of the tokenizer.

    None is unknown.
    """
    sources = [_read(folder / "config.json"), _read(folder / "generation_config.json"), _of_tokenizer(folder)]
    keys = [f"{role}_token_id" for role in ROLES]
    return {key: next((source[key] for source in sources if source.get(key) is not None), None) for key in keys}


def _of_tokenizer(folder: Path) -> dict[str, Any]:
    named = _read(folder / "special_tokens_map.json") | _read(folder / "tokenizer_config.json")
    tokenizer = _read(folder / "tokenizer.json")
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    ids |= {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []}
    found = {}
    for role in ROLES:
        token = named.get(f"{role}_token")
        found[f"{role}_token_id"] = ids.get(token["content"] if isinstance(token, dict) else token)
    return found


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
