"""Where the ids of bos, eos and pad stand."""

import json
from pathlib import Path
from typing import Any

import pytest

from statedual.models.checkpoints.token_ids import token_ids

TOKENIZER = {
    "model": {"vocab": {"<s>": 1, "a": 7}},
    "added_tokens": [{"id": 50, "content": "<|endoftext|>"}, {"id": 51, "content": "<|pad|>"}],
}


def put(folder: Path, **files: Any) -> None:
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))


def ids(folder: Path) -> tuple[Any, ...]:
    return tuple(token_ids(folder).values())


def test_nothing_is_known(tmp_path: Path) -> None:
    put(tmp_path, config={})
    assert token_ids(tmp_path) == {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def test_config_before_generation_config_before_the_tokenizer(tmp_path: Path) -> None:
    put(
        tmp_path,
        config={"bos_token_id": 0, "eos_token_id": None},
        generation_config={"bos_token_id": 8, "eos_token_id": [2, 3]},
        tokenizer=TOKENIZER,
        tokenizer_config={"bos_token": "<s>", "eos_token": "<s>", "pad_token": "<|pad|>"},
    )
    assert ids(tmp_path) == (0, [2, 3], 51)


@pytest.mark.parametrize("name", ["tokenizer_config", "special_tokens_map"])
def test_a_tokenizer_names_them(name: str, tmp_path: Path) -> None:
    special = {"bos_token": "<s>", "eos_token": {"content": "<|endoftext|>", "lstrip": False}, "pad_token": None}
    put(tmp_path, tokenizer=TOKENIZER, **{name: special})
    assert ids(tmp_path) == (1, 50, None)


@pytest.mark.parametrize("tokenizer", [{}, {"model": {"vocab": [["a", 0.1]]}}, {"model": None, "added_tokens": None}])
def test_tokenizers_of_another_kind_tell_nothing(tokenizer: dict[str, Any], tmp_path: Path) -> None:
    put(tmp_path, tokenizer=tokenizer, tokenizer_config={"eos_token": "a"})
    assert ids(tmp_path) == (None, None, None)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config\.json is not whole JSON"):
        token_ids(tmp_path)
