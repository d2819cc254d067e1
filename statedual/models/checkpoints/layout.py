"""What every layout gives to ``load`` and ``save``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from statedual.models.checkpoints.names import Rename
from statedual.models.config import ModelConfig


class Reading(NamedTuple):
    """A configuration, the name in the files of each of our parameters, and what the user should know: warnings."""

    config: ModelConfig
    rename: Rename
    remarks: tuple[str, ...] = ()


class Writing(NamedTuple):
    """The content of config.json, and the name in the files of each of our parameters.

    pickled: the weights go into pytorch_model.bin, where a tied head has its name as well, rather than to safetensors.
    """

    values: dict[str, Any]
    rename: Rename
    pickled: bool = False


def refuse(layout: str, obstacles: Sequence[str]) -> None:
    """Nothing that a layout cannot hold is dropped in silence."""
    if obstacles:
        told = "; ".join(dict.fromkeys(obstacles))
        raise ValueError(f"the layout {layout!r} cannot hold {told}; layout='statedual' holds every model")
