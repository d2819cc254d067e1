"""Keys of a configuration, each with its type."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from checkpoint_examples import told

from statedual.models.checkpoints.config_file import ConfigFile, read_json

PATH = Path("folder/config.json")


def config(**values: Any) -> ConfigFile:
    return ConfigFile(PATH, values)


def test_values() -> None:
    found = config(i=3, zero=0, x=0.5, whole=2, no=False, word="silu", pair=[0, 1.5], list=[1, 2], section={"deep": 4})
    assert found.integer("i") == 3
    assert found.integer("zero", 9) == 0
    assert found.number("x") == 0.5
    assert isinstance(found.number("whole"), float)
    assert found.boolean("no", True) is False
    assert found.text("word") == "silu"
    assert found.pair("pair") == (0.0, 1.5)
    assert found.integers("list") == [1, 2]
    assert found.section("section").integer("deep") == 4


@pytest.mark.parametrize("absent", [{}, {"key": None}])
def test_defaults(absent: dict[str, Any]) -> None:
    found = config(**absent)
    assert not found.has("key")
    assert found.integer("key", 3) == 3
    assert found.number("key", 0.5) == 0.5
    assert found.boolean("key", False) is False
    assert found.text("key", "a") == "a"
    assert found.pair("key", (0.0, 1.0)) == (0.0, 1.0)
    assert found.integers("key") == []
    assert found.section("key").values == {}
    for read in (found.integer, found.number, found.boolean, found.text, found.pair):
        with pytest.raises(ValueError, match="key is missing") as raised:
            read("key")
        told(raised.value, PATH)


@pytest.mark.parametrize("spelled", [math.inf, {"__float__": "Infinity"}])
def test_infinity(spelled: Any) -> None:
    assert config(limit=[0.0, spelled]).pair("limit") == (0.0, math.inf)
    assert config(x={"__float__": "-Infinity"}).number("x") == -math.inf


@pytest.mark.parametrize(
    ("read", "value", "wanted"),
    [
        ("integer", "3", "an integer, at least 0"),
        ("integer", 3.0, "an integer"),
        ("integer", True, "an integer"),
        ("integer", -1, "at least 0"),
        ("number", "0.5", "a number"),
        ("number", True, "a number"),
        ("number", math.nan, "a number"),
        ("number", {"__float__": "NaN"}, "a number"),
        ("number", {"__float__": "Infinity", "more": 1}, "a number"),
        ("boolean", 1, "true or false"),
        ("boolean", "false", "true or false"),
        ("text", 1, "a string"),
        ("pair", [0.0], "two numbers"),
        ("pair", 1.0, "two numbers"),
        ("pair", [0.0, "inf"], "a number"),
        ("integers", 3, "a list of indices"),
        ("integers", [1.0], "a list of indices"),
        ("integers", [True], "a list of indices"),
        ("integers", [-1], "a list of indices"),
        ("section", [1], "an object"),
    ],
)
def test_wrong_types(read: str, value: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match="key is") as raised:
        getattr(config(key=value), read)("key")
    told(raised.value, PATH, repr(value), wanted)


def test_least() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        config(key=0).integer("key", 1, 1)


def test_sections_and_translated_keys_are_spelled_as_in_the_file() -> None:
    found = ConfigFile(PATH, {"ssm_cfg": {"ngroups": "x", "bias": 1}}, spelling={"ssm_cfg.ngroups": "n_groups"})
    with pytest.raises(ValueError, match=r": n_groups is 'x'"):
        found.section("ssm_cfg").integer("ngroups")
    with pytest.raises(ValueError, match=r": ssm_cfg\.bias is 1"):
        found.section("ssm_cfg").boolean("bias")


def test_unknown_keys() -> None:
    found = config(d_model=1, d_stat=2)
    found.require_known({"d_model", "d_stat"}, "a file")
    with pytest.raises(ValueError, match="a file has no key 'd_stat'; did you mean 'd_state'") as raised:
        found.require_known({"d_model", "d_state"}, "a file")
    told(raised.value, PATH)
    with pytest.raises(ValueError, match="no key 'd_stat'; remove it"):
        found.require_known({"d_model"}, "a file")


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"{'a': 1}", b"[" * 100_000, b'{"a": 1} {"b": 2}']
)
def test_broken_json(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not whole JSON") as raised:
        read_json(path)
    told(raised.value, path)


@pytest.mark.parametrize("content", [[1], "word", 3, None])
def test_json_that_is_no_object(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="expected an object") as raised:
        read_json(path)
    told(raised.value, path)


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"limit": [0.0, Infinity]}')
    assert read_json(path) == {"limit": [0.0, math.inf]}
