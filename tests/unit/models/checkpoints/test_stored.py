"""Tensors in files: every container there is, and every way in which one can be broken."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_examples import told, write_shards
from safetensors.torch import save_file

from statedual.models.checkpoints.stored import open_tensors

TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "b": torch.ones(4, dtype=torch.bfloat16),
    "c": torch.zeros(2, 1, dtype=torch.float16),
    "d": torch.full((2,), 0.1, dtype=torch.float64),
}


def refused(folder: Path, *words: Any) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        open_tensors(folder)
    told(raised.value, *words)


def put(folder: Path, name: str, tensors: dict[str, Any] = TENSORS, **options: Any) -> Path:
    """``tensors`` in a file of the kind that its name says."""
    folder.mkdir(exist_ok=True)
    if name.endswith(".bin"):
        torch.save(tensors, folder / name, **options)
    else:
        save_file(tensors, folder / name)
    return folder / name


def are_all_there(folder: Path) -> bool:
    found = open_tensors(folder)
    for name, tensor in TENSORS.items():
        assert found[name].shape == tuple(tensor.shape)
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].read(), tensor)
    return list(found) == sorted(found) == list(TENSORS)


@pytest.mark.parametrize("name", ["model.safetensors", "consolidated.safetensors", "pytorch_model.bin"])
def test_one_file(name: str, tmp_path: Path) -> None:
    put(tmp_path, name)
    assert are_all_there(tmp_path)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards(suffix: str, tmp_path: Path) -> None:
    write_shards(tmp_path, {}, TENSORS, suffix)
    assert set(open_tensors(tmp_path)) == set(TENSORS)
    for name, tensor in open_tensors(tmp_path).items():
        assert torch.equal(tensor.read(), TENSORS[name])


def test_files_from_before_zip_archives(tmp_path: Path) -> None:
    put(tmp_path, "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert are_all_there(tmp_path)


def test_parameters_are_tensors(tmp_path: Path) -> None:
    put(tmp_path, "pytorch_model.bin", {"a": torch.nn.Parameter(TENSORS["a"])})
    assert type(open_tensors(tmp_path)["a"].read()) is torch.Tensor


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_values_are_mapped_from_the_file_and_writing_leaves_it_as_it_is(name: str, tmp_path: Path) -> None:
    """Memory is that of the file: a change of a tensor is private, and one of the file is seen."""
    file = put(tmp_path, name, {"a": torch.zeros(5000)})
    before = file.read_bytes()
    tensor = open_tensors(tmp_path)["a"].read()
    with file.open("r+b") as raw:
        at = len(before) - 20000 if name == "model.safetensors" else before.index(bytes(20000))
        raw.seek(at + 4 * 4000)
        raw.write(np.float32(7).tobytes())
    assert tensor[4000] == 7
    tensor += 1
    assert file.read_bytes()[at : at + 16000] == bytes(16000)


def test_safetensors_come_first(tmp_path: Path) -> None:
    """A folder may hold the same model in several kinds of file."""
    put(tmp_path, "pytorch_model.bin", {"bin": torch.zeros(1)})
    put(tmp_path, "consolidated.safetensors", {"consolidated": torch.zeros(1)})
    assert set(open_tensors(tmp_path)) == {"consolidated"}
    put(tmp_path, "model.safetensors", {"model": torch.zeros(1)})
    assert set(open_tensors(tmp_path)) == {"model"}
    write_shards(tmp_path, {}, TENSORS, "safetensors")
    assert set(open_tensors(tmp_path)) == set(TENSORS)


def test_an_empty_folder(tmp_path: Path) -> None:
    refused(tmp_path, tmp_path, "no weights", "model.safetensors", "pytorch_model.bin")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kept", [0, 1, 7, 100, -100, -1])
def test_a_truncated_file(name: str, kept: int, tmp_path: Path) -> None:
    file = put(tmp_path, name)
    file.write_bytes(file.read_bytes()[:kept])
    refused(tmp_path, file)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_noise(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(np.random.default_rng(0).bytes(10_000))
    refused(tmp_path, tmp_path / name)


@pytest.mark.parametrize("at", range(0, 1200, 40))
def test_a_flipped_byte_is_no_other_error(at: int, tmp_path: Path) -> None:
    """Where it is seen at all: nobody keeps a sum of the values."""
    file = put(tmp_path, "pytorch_model.bin")
    content = bytearray(file.read_bytes())
    content[at] ^= 0xFF
    file.write_bytes(bytes(content))
    try:
        open_tensors(tmp_path)
    except ValueError as error:
        told(error, file)


class Malice:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._trace),)


@pytest.mark.parametrize("modern", [True, False])
def test_a_pickle_cannot_run_code(modern: bool, tmp_path: Path) -> None:
    harm = {"a": torch.zeros(2), "b": Malice(tmp_path / "trace")}
    file = put(tmp_path, "pytorch_model.bin", harm, _use_new_zipfile_serialization=modern)
    refused(tmp_path, file, "run code", "nothing was run")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([torch.zeros(1)], ["holds a list"]),
        ({"model": {"a": torch.zeros(1)}}, ["holds a dict at 'model'"]),
        ({"a": torch.zeros(1), "step": 3}, ["holds a int at 'step'"]),
        ({1: torch.zeros(1)}, ["at 1"]),
        ({"a": torch.zeros(1, dtype=torch.int8)}, ["'a'", "torch.int8", "quantised"]),
        ({"a": torch.zeros(2, 2).to_sparse()}, ["'a'", "sparse"]),
    ],
)
def test_other_things_in_a_pickle(content: Any, words: list[str], tmp_path: Path) -> None:
    file = put(tmp_path, "pytorch_model.bin", content)
    refused(tmp_path, file, *words)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float8_e4m3fn])
def test_other_dtypes_in_safetensors(dtype: torch.dtype, tmp_path: Path) -> None:
    file = put(tmp_path, "model.safetensors", {"a": torch.zeros(2).to(dtype)})
    refused(tmp_path, file, "'a'", "quantised")


def change_index(folder: Path, **weight_map: Any) -> Path:
    """The index of three shards with other entries; None takes one away."""
    write_shards(folder, {}, TENSORS, "safetensors")
    index = folder / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    mapped = values["weight_map"] | weight_map
    values["weight_map"] = {name: file for name, file in mapped.items() if file is not None}
    index.write_text(json.dumps(values))
    return index


def test_a_missing_shard(tmp_path: Path) -> None:
    write_shards(tmp_path, {}, TENSORS, "safetensors")
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    refused(tmp_path, tmp_path, "lacks the shard model-00002-of-00003.safetensors", "model.safetensors.index.json")


def test_a_tensor_that_the_index_expects(tmp_path: Path) -> None:
    change_index(tmp_path, more="model-00001-of-00003.safetensors")
    refused(tmp_path, "model-00001-of-00003.safetensors lacks the tensor 'more'")


def test_a_tensor_in_another_shard(tmp_path: Path) -> None:
    change_index(tmp_path, a="model-00003-of-00003.safetensors")
    refused(tmp_path, "model-00003-of-00003.safetensors lacks the tensor 'a'")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    change_index(tmp_path)
    put(tmp_path, "model-00002-of-00003.safetensors", {"a": TENSORS["a"], "b": TENSORS["b"]})
    refused(tmp_path, "'a'", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "too")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/outside.safetensors", "sub/inside.safetensors", ""])
def test_an_index_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    put(tmp_path, "outside.safetensors")
    index = change_index(tmp_path / "inside", a=name)
    refused(tmp_path / "inside", index, repr(name), "beside it")


@pytest.mark.parametrize("weight_map", [None, [], {}, "model.safetensors"])
def test_an_index_without_a_map(weight_map: Any, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    refused(tmp_path, index, "weight_map")


@pytest.mark.parametrize("content", ["", "{", '{"weight_map": {}', "\x00"])
def test_a_broken_index(content: str, tmp_path: Path) -> None:
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(content)
    refused(tmp_path, index, "not whole JSON")
