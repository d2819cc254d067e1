"""The sizes of a block as its tensors tell them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from statedual.models.checkpoints.names import EMBEDDING
from statedual.models.checkpoints.stored import StoredTensor


class Shapes:
    """Shapes by name in the spelling of mamba_ssm; a tensor that is absent or has other axes is an error."""

    def __init__(self, tensors: Mapping[str, StoredTensor], folder: Path) -> None:
        self._tensors, self.folder = tensors, folder

    def of(self, name: str, axes: int) -> tuple[int, ...]:
        """The shape of ``name``, which must have so many axes and no empty one."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ValueError(f"{self.folder} lacks the tensor {name!r}")
        if len(tensor.shape) != axes or 0 in tensor.shape:
            raise ValueError(f"{tensor} has shape {tensor.shape}, expected {axes} axes, none of them empty")
        return tensor.shape

    @property
    def embedding(self) -> tuple[int, int]:
        """Rows (the padded vocabulary) and d_model."""
        rows, d_model = self.of(EMBEDDING, 2)
        return rows, d_model

    @property
    def layers(self) -> int:
        """How many there are."""
        found = {name: re.match(r"backbone\.layers\.(\d+)\.", name) for name in self._tensors}
        indices = {int(match[1]): name for name, match in found.items() if match}
        if not indices:
            raise ValueError(f"{self.folder} lacks the tensors 'backbone.layers.*'")
        count = len(indices)
        if max(indices) >= count:  # before so many layers are built
            absent = next(layer for layer in range(count) if layer not in indices)
            last = self._tensors[indices[max(indices)]]
            raise ValueError(
                f"{self.folder} lacks the tensor 'backbone.layers.{absent}.norm.weight', but there is {last}"
            )
        return count

    def wrong(self, prefix: str, told: str) -> ValueError:
        """The error for tensors that contradict one another."""
        return ValueError(f"{self.folder}: the tensors {prefix}* contradict one another: {told}")


class Mamba2Sizes(NamedTuple):
    """``bc`` is groups times state, which no tensor tells apart."""

    expand: int
    heads: int
    head_dim: int
    d_ssm: int
    bc: int
    conv_width: int


class Mamba1Sizes(NamedTuple):
    """All sizes of a Mamba-1 block."""

    expand: int
    d_state: int
    dt_rank: int
    conv_width: int


def mamba2_sizes(shapes: Shapes, layer: int) -> Mamba2Sizes:
    """From in_proj (2 inner + 2 bc + heads rows), the convolution (d_ssm + 2 bc channels), A_log and out_proj."""
    prefix = f"backbone.layers.{layer}.mixer."
    rows, d_model = shapes.of(f"{prefix}in_proj.weight", 2)
    channels, _, width = shapes.of(f"{prefix}conv1d.weight", 3)
    (heads,) = shapes.of(f"{prefix}A_log", 1)
    inner = shapes.of(f"{prefix}out_proj.weight", 2)[1]
    bc, odd = divmod(rows - 2 * inner - heads, 2)
    d_ssm = channels - 2 * bc
    if odd or bc < 1 or not 0 < d_ssm <= inner or d_ssm % heads:
        raise shapes.wrong(
            prefix,
            f"in_proj has {rows} rows, conv1d {channels} channels, A_log {heads} heads, out_proj {inner} columns",
        )
    return Mamba2Sizes(_expand(shapes, prefix, inner, d_model), heads, d_ssm // heads, d_ssm, bc, width)


def mamba1_sizes(shapes: Shapes, layer: int) -> Mamba1Sizes:
    """From A_log (channels, state), dt_proj (channels, rank) and the convolution."""
    prefix = f"backbone.layers.{layer}.mixer."
    d_model = shapes.of(f"{prefix}in_proj.weight", 2)[1]
    inner, state = shapes.of(f"{prefix}A_log", 2)
    rank = shapes.of(f"{prefix}dt_proj.weight", 2)[1]
    width = shapes.of(f"{prefix}conv1d.weight", 3)[2]
    return Mamba1Sizes(_expand(shapes, prefix, inner, d_model), state, rank, width)


def _expand(shapes: Shapes, prefix: str, inner: int, d_model: int) -> int:
    if inner % d_model:
        raise shapes.wrong(prefix, f"{inner} inner channels are no multiple of d_model {d_model}")
    return inner // d_model
