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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("special_tokens_map.json", {"eos_token": ["a"]}, r"eos_token is \['a'\], expected the text of a token"),
        ("tokenizer_config.json", {"eos_token": {"content": []}}, "eos_token is .*, expected the text of a token"),
        ("tokenizer.json", {"model": [1]}, "is no tokenizer"),
        ("tokenizer.json", {"added_tokens": 5}, "is no tokenizer"),
        ("tokenizer.json", {"added_tokens": [{"id": 1}]}, "is no tokenizer"),
        ("generation_config.json", {"eos_token_id": "x"}, "eos_token_id is 'x', expected a token id"),
        ("config.json", {"eos_token_id": [1, -1]}, r"eos_token_id is \[1, -1\], expected a token id"),
    ],
)
def test_files_that_make_no_sense_are_named(name: str, content: object, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as raised:
        token_ids(tmp_path)
    assert name in str(raised.value)


def test_a_token_without_a_text_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {}}))
    assert token_ids(tmp_path)["eos_token_id"] is None
