"""Tensors of a checkpoint, found by name and read one by one: from safetensors and PyTorch files, whole or sharded."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from statedual.models.checkpoints.config_file import read_json

WEIGHTS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "consolidated.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
"""The first of these in a folder is its checkpoint."""

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: what is known before its values are read. They are mapped into memory, not copied."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    def __str__(self) -> str:
        return f"tensor {self.name!r} in {self.file}"


def find_weights(folder: Path) -> Path:
    """The file with the tensors of ``folder``, or the index of its shards."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"{folder} holds no weights, expected one of {', '.join(WEIGHTS)}")


def open_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint in ``folder``."""
    weights = find_weights(folder)
    if weights.suffix != ".json":
        return _open_file(weights)
    mapped = read_json(weights).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise ValueError(f"{weights}: weight_map is {mapped!r}, expected an object from names of tensors to files")
    if not all(isinstance(file, str) for file in mapped.values()):
        raise ValueError(f"{weights}: weight_map has values that are no names of files")
    found: dict[str, StoredTensor] = {}
    for name in sorted(set(mapped.values())):
        if not name or Path(name).name != name:
            raise ValueError(f"{weights}: weight_map names {name!r}, expected a file beside it")
        if not (folder / name).is_file():
            raise ValueError(f"{folder} lacks the shard {name}, which {weights.name} names; download it again")
        for tensor in _open_file(folder / name).values():
            if tensor.name in found:
                raise ValueError(f"{tensor} stands in {found[tensor.name].file} too")
            found[tensor.name] = tensor
    for name, file in mapped.items():
        if name not in found or found[name].file.name != file:
            raise ValueError(f"{folder / str(file)} lacks the tensor {name!r}, which {weights.name} expects there")
    return found


def _open_file(path: Path) -> dict[str, StoredTensor]:
    return _open_safetensors(path) if path.suffix == ".safetensors" else _open_pickle(path)


def _open_safetensors(path: Path) -> dict[str, StoredTensor]:
    try:
        file: Any = safe_open(path, framework="pt", device="cpu")
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}; download or copy it again") from error
    found = {}
    for name in file.keys():  # noqa: SIM118 - not a dict
        header = file.get_slice(name)
        dtype = DTYPES.get(header.get_dtype())
        if dtype is None:
            raise _wrong_dtype(name, path, header.get_dtype())
        found[name] = StoredTensor(path, name, tuple(header.get_shape()), dtype, partial(file.get_tensor, name))
    return found


def _open_pickle(path: Path) -> dict[str, StoredTensor]:
    try:
        # Files from before PyTorch 1.6 are no zip archives, and cannot be mapped into memory.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is broken, or holds objects other than tensors, whose unpickling would run code from the file; "
            "nothing was run"
        ) from error
    except (RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a whole file of torch.save: {error!r}; download or copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected names and their tensors, a state dict")
    found = {}
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(
                f"{path} holds a {type(tensor).__name__} at {name!r}, expected names and their tensors, a state dict"
            )
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_nested
        if tensor.dtype not in DTYPES.values() or not plain:
            raise _wrong_dtype(name, path, f"{tensor.dtype}, {tensor.layout} on {tensor.device}")
        found[name] = StoredTensor(path, name, tuple(tensor.shape), tensor.dtype, tensor.detach)
    return found


def _wrong_dtype(name: str, path: Path, dtype: str) -> ValueError:
    return ValueError(
        f"tensor {name!r} in {path} has dtype {dtype}, expected float64, float32, bfloat16 or float16; "
        "quantised files are not read"
    )
