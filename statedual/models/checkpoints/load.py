"""A model from a checkpoint: every name and shape is checked before the first value is read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from statedual.models.checkpoints import (
    layout_codestral,
    layout_state_spaces,
    layout_statedual,
    layout_transformers,
)
from statedual.models.checkpoints.config_file import ConfigFile
from statedual.models.checkpoints.geometry import Shapes
from statedual.models.checkpoints.hub import CONFIGS, locate
from statedual.models.checkpoints.layout import Reading
from statedual.models.checkpoints.names import EMBEDDING, HEAD, backbone_tensors
from statedual.models.checkpoints.stored import DTYPES, StoredTensor, open_tensors
from statedual.models.language_model import LanguageModel


def load(
    path_or_hub_id: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> LanguageModel:
    """The model in a folder, or in a repository of the hub, ready for use: in eval mode.

    Layouts: this package's own, transformers (mamba2, mamba), state-spaces (Mamba-1, Mamba-2, hybrids), Codestral
    Mamba; safetensors or PyTorch files, whole or sharded. Code inside PyTorch files is never run.

    Args:
        path_or_hub_id: the folder; or owner/name, which is downloaded.
        dtype: of the matrices; None keeps theirs. A_log, D and dt_bias are float32 at least.
        device: where to; None is the CPU, where the weights are mapped from the files rather than copied.

    """
    if dtype is not None and dtype not in DTYPES.values():
        raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(map(str, DTYPES.values()))}")
    try:
        device = torch.empty(0, device=device or "cpu").device
    except (RuntimeError, AssertionError) as error:  # no such device, or PyTorch was built without it
        raise ValueError(f"device is {device!r}, expected one that PyTorch can use here: {error}") from error
    folder = locate(path_or_hub_id)
    config = read_config(folder)
    stored = open_tensors(folder)
    if config.values.get("model_type") != "statedual":
        stored = backbone_tensors(stored)
    try:
        reading = _read(config, Shapes(stored, folder))
        with torch.device("meta"):
            model = LanguageModel(reading.config)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        told = str(error)
        raise ValueError(told if str(folder) in told else f"{config.path}: {told}") from error
    sources = _sources(model, reading, stored, config)
    for remark in reading.remarks:
        warnings.warn(remark, UserWarning, stacklevel=2)
    model.to(dtype or _dtype_of_matrices(model, sources))
    values: dict[str, Tensor] = {}
    taken = set()
    for name, parameter in model.state_dict().items():
        value = sources[name].read().to(device, parameter.dtype)
        # Two names are two parameters, even if a file stores one tensor for both.
        values[name] = value.clone() if value.data_ptr() in taken else value.contiguous()
        taken.add(value.data_ptr())
    model.load_state_dict(values, assign=True)
    return model.eval()


def read_config(folder: Path) -> ConfigFile:
    """The configuration in ``folder``."""
    for name in CONFIGS:
        if (folder / name).is_file():
            return ConfigFile.read(folder / name)
    raise ValueError(f"{folder} holds no configuration, expected {' or '.join(CONFIGS)}")


def _read(config: ConfigFile, shapes: Shapes) -> Reading:
    """By the layout to which the keys belong."""
    keys, family = config.values, config.values.get("model_type")
    if family == "statedual":
        return layout_statedual.read(config)
    if {"dim", "n_layers"} <= set(keys):
        return layout_codestral.read(config, shapes)
    # Some files have the keys of both: a converter left the old ones, or a program added new ones with its defaults.
    # What names its layer is an original.
    original = "hidden_size" not in keys or config.section("ssm_cfg").has("layer")
    if {"d_model", "n_layer"} <= set(keys) and original and family in (None, *layout_transformers.MODEL_TYPES):
        return layout_state_spaces.read(config, shapes)
    if family is not None:
        return layout_transformers.read(config, shapes)
    raise ValueError(
        f"{config.path} is of no known layout, expected model_type 'statedual', 'mamba2' or 'mamba' (transformers), "
        "d_model and n_layer (state-spaces), or dim and n_layers (Codestral Mamba)"
    )


def _sources(
    model: LanguageModel, reading: Reading, stored: Mapping[str, StoredTensor], config: ConfigFile
) -> dict[str, StoredTensor]:
    """For each of the model's names the stored tensor, of the same shape; none may be absent and none left over."""
    sources = {}
    left = dict(stored)
    for name, parameter in model.state_dict().items():
        theirs = reading.rename(name)
        if theirs not in left:
            raise ValueError(f"{config.path.parent} lacks the tensor {theirs!r}, which {config.path.name} asks for")
        sources[name] = left.pop(theirs)
        if sources[name].shape != parameter.shape:
            raise ValueError(
                f"{sources[name]} has shape {sources[name].shape}, expected {tuple(parameter.shape)} by "
                f"{config.path.name} and the other tensors"
            )
    if model.head is None and HEAD in left and EMBEDDING in stored:
        head, embedding = left.pop(HEAD), stored[EMBEDDING]
        if not torch.equal(head.read(), embedding.read()):
            raise ValueError(
                f"{head} differs from {embedding}, but {config.path} ties them; if they are two, set "
                "tie_embeddings (tie_word_embeddings in transformers) to false"
            )
    if left:
        extra = next(iter(left.values()))
        raise ValueError(f"{extra} has no place in the model that {config.path.name} describes ({len(left)} such)")
    return sources


def _dtype_of_matrices(model: LanguageModel, sources: Mapping[str, StoredTensor]) -> torch.dtype:
    """One that holds them all, but for what has float32 anyhow."""
    narrow = model.to(torch.bfloat16).state_dict()
    matrices = [name for name, tensor in narrow.items() if tensor.ndim == 2 and tensor.dtype == torch.bfloat16]
    return reduce(torch.promote_types, (sources[name].dtype for name in matrices))
