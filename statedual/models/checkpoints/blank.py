"""A model of which only names, shapes and dtypes exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from statedual.models.config import ModelConfig
from statedual.models.language_model import LanguageModel


def blank(config: ModelConfig) -> LanguageModel:
    """On the meta device, without memory and without initialisation."""
    with torch.device("meta"), _WithoutInitialisation():
        return LanguageModel(config)


class _WithoutInitialisation(TorchFunctionMode):
    """Leaves out what would be drawn into meta tensors, which have no values.

    PyTorch's Python versions of normal_, log_ or clamp_ for them take a second to import.
    """

    names = ("uniform_", "normal_", "fill_", "zero_", "copy_", "log_", "exp_", "clamp_", "div_")

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", None) in self.names:
            changed = args[0] if args else kwargs["tensor"]  # as torch.nn.init calls it
            if isinstance(changed, Tensor) and changed.is_meta:
                return changed
        return func(*args, **kwargs)
