"""Writing as a whole: a folder is there when it is whole, shards, memory that is shared, permissions."""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import VOCABULARY, told
from safetensors import SafetensorError
from safetensors.torch import load_file

from statedual.layers import Mamba2Config, MLPConfig
from statedual.models import LanguageModel, ModelConfig
from statedual.models.checkpoints import load, save

MODULE = importlib.import_module("statedual.models.checkpoints.save")  # the package has the function by that name
LAYOUTS = ("statedual", "transformers", "state-spaces")


def example(**options: Any) -> LanguageModel:
    block = Mamba2Config(d_state=8, head_dim=8)
    return LanguageModel(ModelConfig(d_model=32, vocab_size=VOCABULARY, blocks=(block, block), **options)).eval()


def same(one: LanguageModel, other: LanguageModel) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("exists", [True, False])
def test_the_folder_is_made(layout: str, exists: bool, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "new"
    if exists:
        target.mkdir(parents=True)
    model = example()
    save(model, str(target), layout=layout)
    assert [path.name for path in target.parent.iterdir()] == ["new"]
    assert same(load(target), model)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_overwritten(layout: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("words")
    (tmp_path / "file").write_text("words")
    for target in (tmp_path / "full", tmp_path / "file"):
        with pytest.raises(ValueError, match="expected a new folder") as raised:
            save(example(), target, layout=layout)
        told(raised.value, target)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "thesis.txt"]


def test_an_unknown_layout(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="layout is 'gguf', expected one of 'statedual', 'transformers'"):
        save(example(), tmp_path / "new", layout="gguf")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(
    layout: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **_: Any) -> None:
        Path(arguments[1]).write_bytes(b"half")
        raise error

    monkeypatch.setattr(MODULE, "save_file", fail)
    monkeypatch.setattr(torch, "save", fail)
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with pytest.raises(type(error)):
            save(example(), tmp_path / name, layout=layout)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize("layout", ["statedual", "transformers"])
@pytest.mark.parametrize("limit", [1, 20_000, 30_000])
def test_shards(layout: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "SHARD_BYTES", limit)
    model = example()
    save(model, tmp_path / "new", layout=layout)
    files = sorted((tmp_path / "new").glob("*.safetensors"))
    assert len(files) > 1
    assert [file.name for file in files] == [
        f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)
    ]
    index = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_text())
    for file in files:
        shard = load_file(file)
        assert len(shard) == 1 or sum(tensor.nbytes for tensor in shard.values()) <= limit
        assert {name for name, where in index["weight_map"].items() if where == file.name} == set(shard)
    assert index["metadata"]["total_size"] == sum(parameter.nbytes for parameter in model.parameters())
    assert same(load(tmp_path / "new"), model)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_may_read_the_folder_may_read_its_files(layout: str, tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode & 0o777
    save(example(), tmp_path / "new", layout=layout)
    for file in (tmp_path / "new").iterdir():
        assert file.stat().st_mode & 0o777 == usual, file


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_names_of_one_parameter(layout: str, tmp_path: Path) -> None:
    model = example(tie_embeddings=False)
    assert model.head is not None
    model.head.weight = model.embedding.weight
    save(model, tmp_path / "new", layout=layout)
    assert same(load(tmp_path / "new"), model)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameters_that_are_views_of_one_tensor(layout: str, tmp_path: Path) -> None:
    model = example(tie_embeddings=False)
    large = torch.randn(10**6)
    with torch.no_grad():
        at = 1
        for parameter in model.parameters():
            parameter.data = large[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
    save(model, tmp_path / "new", layout=layout)
    assert sum(file.stat().st_size for file in (tmp_path / "new").iterdir()) < large.nbytes / 4
    again = load(tmp_path / "new")
    assert same(again, model)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_transposed_parameter(layout: str, tmp_path: Path) -> None:
    model = example()
    weight = model.embedding.weight
    weight.data = weight.data.T.contiguous().T
    save(model, tmp_path / "new", layout=layout)
    assert same(load(tmp_path / "new"), model)


def test_a_loaded_model_can_be_written_beside_its_files(tmp_path: Path) -> None:
    """Its weights are those of the files."""
    save(example(), tmp_path / "one")
    save(load(tmp_path / "one"), tmp_path / "two", layout="state-spaces")
    assert same(load(tmp_path / "one"), load(tmp_path / "two"))
    assert (tmp_path / "two" / "pytorch_model.bin").stat().st_size < 2 * (
        tmp_path / "one" / "model.safetensors"
    ).stat().st_size


@pytest.mark.parametrize("kind", ["symlink", "dangling", "fifo"])
def test_what_is_no_folder_is_refused_before_anything_is_written(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if kind == "fifo":
        os.mkfifo(target)
    else:
        (tmp_path / "folder").mkdir()
        target.symlink_to(tmp_path / ("folder" if kind == "symlink" else "nowhere"))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match="is not empty, expected a new folder"):
        save(LanguageModel(ModelConfig(d_model=32, vocab_size=9, blocks=(MLPConfig(),))), target)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("layout", ["statedual", "state-spaces"])
def test_a_full_disk_is_told(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise (
            SafetensorError("No space left on device")
            if layout == "statedual"
            else RuntimeError("unexpected pos 43200")
        )

    monkeypatch.setattr(MODULE, "save_file", full)
    monkeypatch.setattr("torch.save", full)
    block = Mamba2Config(head_dim=16)
    with pytest.raises(OSError, match="could not be written, is the disk full"):
        save(LanguageModel(ModelConfig(d_model=32, vocab_size=9, blocks=(block,))), tmp_path / "new", layout=layout)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model is a Linear, expected a LanguageModel"):
        save(torch.nn.Linear(2, 2), tmp_path / "new")
