"""From every layout into every other, and what goes along."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import (
    MAMBA2,
    codestral_config,
    state_spaces_config,
    state_spaces_tensors,
    told,
    transformers_config,
    transformers_tensors,
    write,
)

from statedual.cli import main
from statedual.models import LanguageModel
from statedual.models.checkpoints import convert, load

MODULE = importlib.import_module("statedual.models.checkpoints.convert")  # the package has the function by that name
LAYOUTS = ("statedual", "transformers", "state-spaces")
SOURCES = ("transformers", "transformers mamba", "state-spaces", "state-spaces mamba", "codestral", "statedual")
TOKENIZER = {"added_tokens": [{"id": 3, "content": "<|endoftext|>"}]}


MAMBA1 = {"model_type": "mamba", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}


def source(kind: str, folder: Path) -> Path:
    """A checkpoint of that layout."""
    if kind == "transformers":
        return write(folder, transformers_config(), transformers_tensors())
    if kind == "transformers mamba":
        return write(folder, MAMBA1 | {"tie_word_embeddings": False}, transformers_tensors("mamba"))
    if kind == "statedual":
        convert(source("state-spaces", folder.with_name("first")), folder, layout="statedual")
        return folder
    config = state_spaces_config(ssm_cfg={} if kind.endswith(" mamba") else MAMBA2, tie_embeddings=kind != "codestral")
    tensors = state_spaces_tensors(config)
    if kind == "codestral":
        named = {f"model.{name}": tensor for name, tensor in tensors.items()}
        keys = codestral_config(n_groups=1, d_state=8, head_dim=8)
        return write(folder, keys, named, "consolidated.safetensors")
    return write(folder, config, tensors, "pytorch_model.bin")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", SOURCES)
def test_every_tensor_arrives_bit_by_bit(kind: str, layout: str, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = source(kind, tmp_path / "old")
    largest = convert(folder, tmp_path / "new", layout=layout, dtype=dtype, check=True)
    assert largest is not None
    assert largest < (1e-5 if dtype == torch.float32 else 0.05)
    before, after = load(folder, dtype=dtype), load(tmp_path / "new")
    assert before.config.blocks == after.config.blocks
    assert list(before.state_dict()) == list(after.state_dict())
    for name, tensor in before.state_dict().items():
        assert after.get_parameter(name).dtype == tensor.dtype
        assert torch.equal(after.get_parameter(name), tensor), name


def test_round_the_circle(tmp_path: Path) -> None:
    """statedual, transformers, state-spaces and back: the file of weights is the same bit by bit."""
    first = source("statedual", tmp_path / "a")
    convert(first, tmp_path / "b", layout="transformers")
    convert(tmp_path / "b", tmp_path / "c", layout="state-spaces")
    convert(tmp_path / "c", tmp_path / "d", layout="statedual")
    assert (first / "model.safetensors").read_bytes() == (tmp_path / "d" / "model.safetensors").read_bytes()


def test_without_a_check_nothing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguageModel, "forward", None)
    assert convert(source("transformers", tmp_path / "old"), tmp_path / "new", layout="statedual") is None


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    folder = source("state-spaces", tmp_path / "old")
    files = {
        "tokenizer.json": json.dumps(TOKENIZER),
        "tokenizer_config.json": '{"eos_token": "<|endoftext|>"}',
        "special_tokens_map.json": "{}",
        "generation_config.json": '{"pad_token_id": 2}',
        "merges.txt": "a b",
        "tokenizer.model": "\x00",
    }
    for name, content in (files | {"README.md": "no", "optimizer.bin": "no"}).items():
        (folder / name).write_text(content)
    convert(folder, tmp_path / "new", layout="transformers")
    written = {file.name: file for file in (tmp_path / "new").iterdir()}
    assert set(written) == {*files, "config.json", "model.safetensors"}
    assert all(written[name].read_text() == content for name, content in files.items())
    config = json.loads(written["config.json"].read_text())
    assert [config[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [None, 3, 2]


def test_the_ids_of_transformers_stay(tmp_path: Path) -> None:
    convert(source("transformers", tmp_path / "old"), tmp_path / "new", layout="transformers")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert [config[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [0, 2, 1]


def test_a_full_target_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "thesis.txt").touch()
    with pytest.raises(ValueError, match="expected a new folder"):
        convert(tmp_path / "absent", tmp_path / "new", layout="statedual")


def test_what_the_layout_cannot_hold(tmp_path: Path) -> None:
    config = state_spaces_config(d_intermediate=128)
    folder = write(tmp_path / "old", config, state_spaces_tensors(config), "pytorch_model.bin")
    with pytest.raises(ValueError, match="'transformers' cannot hold blocks of the kinds mamba2, mlp"):
        convert(folder, tmp_path / "new", layout="transformers")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_a_difference_is_an_error_and_leaves_nothing(
    wrong: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = source("transformers", tmp_path / "old")

    def spoilt(path: Path, **options: Any) -> LanguageModel:
        model = load(path, **options)
        if path != folder:
            with torch.no_grad():
                model.norm.weight[0] += wrong
        return model

    monkeypatch.setattr(MODULE, "load", spoilt)
    with pytest.raises(ValueError, match="the logits differ by"):
        convert(folder, tmp_path / "new", layout="statedual", check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = source("state-spaces", tmp_path / "old")
    arguments = ["convert", str(folder), str(tmp_path / "new"), "--layout", "transformers", "--dtype", "bfloat16"]
    assert main([*arguments, "--check"]) == 0
    shown, error = capsys.readouterr()
    told(shown, f"Wrote {tmp_path / 'new'}", "Largest difference of logits before and after: 0.0e+00")
    assert error == ""
    assert load(tmp_path / "new").embedding.weight.dtype == torch.bfloat16
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"statedual: {tmp_path / 'new'} is not empty")


def test_the_command_without_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = source("transformers", tmp_path / "old")
    assert main(["convert", str(folder), str(tmp_path / "new"), "--layout", "state-spaces"]) == 0
    assert "difference" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent"], ["absent does not exist"]),
        (["empty"], ["empty holds no configuration"]),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["convert", *arguments, "new", "--layout", "statedual"]) == 2
    told(capsys.readouterr().err, "statedual: ", *words)
    assert not (tmp_path / "new").exists()


def test_the_command_asks_for_a_layout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["convert", "a", "b"])
    assert stopped.value.code == 2
    assert "--layout" in capsys.readouterr().err


@pytest.mark.parametrize("layout", LAYOUTS)
def test_where_texts_end_is_known_in_every_layout(layout: str, tmp_path: Path) -> None:
    """transformers has it in config.json, which the others do not: ``statedual generate`` would never stop."""
    write(tmp_path / "source", transformers_config() | {"eos_token_id": [7, 9]}, transformers_tensors())
    convert(tmp_path / "source", tmp_path / "target", layout=layout)
    found = [
        json.loads((tmp_path / "target" / name).read_text()).get("eos_token_id")
        for name in ("generation_config.json", "config.json")
        if (tmp_path / "target" / name).is_file()
    ]
    assert [7, 9] in found


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_a_target_without_a_name(path: str, tmp_path: Path) -> None:
    write(tmp_path / "source", transformers_config(), transformers_tensors())
    with pytest.raises(ValueError, match=r"expected the name of a new folder"):
        convert(tmp_path / "source", path, layout="statedual")
