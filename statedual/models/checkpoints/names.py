"""The names of parameters: ours, and those that mamba_ssm and transformers share but for a letter.

    ours                       theirs
    embedding.weight           backbone.embedding.weight   (transformers: backbone.embeddings.weight)
    blocks.{i}.norm.weight     backbone.layers.{i}.norm.weight
    blocks.{i}.mixer.*         backbone.layers.{i}.mixer.*
    norm.weight                backbone.norm_f.weight
    head.weight                lm_head.weight

Where layers have an MLP behind the mixer, their layer i is our blocks 2i and 2i + 1: norm and mixer, norm2 and mlp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from statedual.models.checkpoints.stored import StoredTensor

EMBEDDING, HEAD = "backbone.embedding.weight", "lm_head.weight"
Rename = Callable[[str], str]


def backbone_name(name: str, with_mlps: bool) -> str:
    """Their name of our parameter ``name``."""
    whole = {"embedding.weight": EMBEDDING, "norm.weight": "backbone.norm_f.weight", "head.weight": HEAD}
    if name in whole:
        return whole[name]
    _, index, part, rest = name.split(".", maxsplit=3)
    layer, second = divmod(int(index), 2) if with_mlps else (int(index), 0)
    part = {"norm": ("norm", "norm2"), "mixer": ("mixer", "mlp")}[part][second]
    return f"backbone.layers.{layer}.{part}.{rest}"


def backbone_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """``stored`` by the names of mamba_ssm; files may have "model." in front, "embeddings", or A instead of A_log."""
    found: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        spelled = re.sub(r"^model\.(?=backbone\.|lm_head\.)", "", name)
        spelled = spelled.replace("backbone.embeddings.", "backbone.embedding.")
        if spelled.endswith(".mixer.A"):
            spelled, tensor = f"{spelled}_log", replace(tensor, read=_LogOfMinus(tensor))
        if spelled in found:
            raise ValueError(f"{tensor} is the same parameter as {found[spelled]}, expected one of them")
        found[spelled] = tensor
    return found


class _LogOfMinus:
    """A_log from A = -exp(A_log), which some programs store instead."""

    def __init__(self, tensor: StoredTensor) -> None:
        self._tensor = tensor

    def __call__(self) -> Tensor:
        a = self._tensor.read()
        if not bool((a < 0).all()):
            raise ValueError(f"{self._tensor} is not below 0 everywhere, expected A = -exp(A_log)")
        return a.neg().to(torch.promote_types(a.dtype, torch.float32)).log()
