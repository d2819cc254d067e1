"""Parameters that never have fewer bits than float32: decays are sensitive to their last digits (DESIGN 6)."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


def float32_parameter(*shape: int) -> nn.Parameter:
    """An empty one; float64 where that is the default."""
    return nn.Parameter(torch.empty(shape, dtype=torch.promote_types(torch.get_default_dtype(), torch.float32)))


class Float32Parameters(nn.Module):
    """A module whose parameters named in ``float32_parameters`` stay float32 under ``.to(torch.bfloat16)``.

    They follow to other devices and to float64, and so do their gradients.
    """

    float32_parameters: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = {name: self._parameters.get(name) for name in self.float32_parameters}
        before = {
            name: (parameter.data, None if parameter.grad is None else parameter.grad.data)
            for name, parameter in kept.items()
            if parameter is not None
        }
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, (data, gradient) in before.items():
            parameter = self._parameters[name]
            assert parameter is not None
            if parameter.dtype not in (torch.float32, torch.float64):
                parameter.grad = None
                parameter.data = data.to(parameter.device, torch.float32)
                if gradient is not None:
                    parameter.grad = gradient.to(parameter.device, torch.float32)
        return self
