"""A model into a folder, in one of the layouts; the folder appears when it is whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from statedual.checks import require_choice
from statedual.files import unfinished_name
from statedual.models.checkpoints import layout_state_spaces, layout_statedual, layout_transformers
from statedual.models.checkpoints.layout import Writing
from statedual.models.language_model import LanguageModel

WRITERS: dict[str, Callable[[LanguageModel], Writing]] = {
    "statedual": layout_statedual.write,
    "transformers": layout_transformers.write,
    "state-spaces": layout_state_spaces.write,
}
SHARD_BYTES = 5 * 10**9
"""Safetensors files are no larger, unless one tensor is."""


def save(model: LanguageModel, path: str | Path, *, layout: str = "statedual") -> None:
    """Write config.json and the weights into the folder ``path``, which must be new or empty.

    layout: "statedual" holds every model; "transformers" is what Mamba2ForCausalLM and MambaForCausalLM load;
    "state-spaces" is what mamba_ssm loads. What a layout cannot hold is an error, before anything is written.
    """
    writing = describe(model, layout)
    with new_folder(Path(path)) as folder:
        write_files(model, writing, folder)


def describe(model: LanguageModel, layout: str) -> Writing:
    """What ``layout`` says of ``model``, or an error that names what it cannot say."""
    if not isinstance(model, LanguageModel):
        raise ValueError(f"model is a {type(model).__name__}, expected a LanguageModel")
    require_choice("layout", layout, tuple(WRITERS))
    return WRITERS[layout](model)


def require_new(target: Path) -> None:
    """Nothing is overwritten."""
    if target.name in ("", ".."):
        raise ValueError(f"path is {str(target)!r}, expected the name of a new folder")
    there = target.exists() or target.is_symlink()
    if there and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is not empty, expected a new folder; remove it, or choose another")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` that takes its name at the end, or vanishes if there is an error."""
    require_new(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(unfinished_name())
    unfinished.mkdir()
    try:
        yield unfinished
        if target.is_dir():
            target.rmdir()  # not every system renames onto a folder, even an empty one
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def write_files(model: LanguageModel, writing: Writing, folder: Path) -> None:
    """The configuration and the weights into ``folder``."""
    try:
        _write(model, writing, folder)
    except (SafetensorError, RuntimeError) as error:  # what their libraries make of a disk that is full
        raise OSError(f"the weights could not be written, is the disk full? {error}") from error


def _write(model: LanguageModel, writing: Writing, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(writing.values, indent=2) + "\n")
    tensors = {writing.rename(name): tensor for name, tensor in model.state_dict().items()}
    if writing.pickled:
        own = _in_own_memory(tensors)
        if model.head is None:
            own[writing.rename("head.weight")] = own[writing.rename("embedding.weight")]
        torch.save(own, folder / "pytorch_model.bin")
    else:
        _write_safetensors(tensors, folder)


def _write_safetensors(tensors: dict[str, Tensor], folder: Path) -> None:
    """One file, or shards and their index."""
    shards: list[dict[str, Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in tensors.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = tensor
        room -= tensor.nbytes
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        many = f"model-{number:05}-of-{len(shards):05}.safetensors"
        file = folder / (many if len(shards) > 1 else "model.safetensors")
        save_file(_in_own_memory(shard), file, metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", file)  # safetensors lets nobody else read its files
        weight_map |= dict.fromkeys(shard, file.name)
    if len(shards) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _in_own_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, and each alone in its storage: a file would hold all of a storage of which a tensor is a part."""
    own, taken = {}, set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.untyped_storage().nbytes() > tensor.nbytes or tensor.data_ptr() in taken:
            tensor = tensor.clone()
        taken.add(tensor.data_ptr())
        own[name] = tensor
    return own
