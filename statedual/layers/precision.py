"""Parameters that never have fewer bits than float32: decays are sensitive to their last digits (DESIGN 6)."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Float32Parameters(nn.Module):
    """A module whose parameters named in ``float32_parameters`` stay float32 under ``.to(torch.bfloat16)``.

    They follow to other devices and to float64.
    """

    float32_parameters: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = {name: self._parameters.get(name) for name in self.float32_parameters}
        before = {name: parameter.data for name, parameter in kept.items() if parameter is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, data in before.items():
            parameter = self._parameters[name]
            assert parameter is not None
            if parameter.dtype not in (torch.float32, torch.float64):
                parameter.data = data.to(parameter.device, torch.float32)
                if parameter.grad is not None:
                    parameter.grad.data = parameter.grad.data.float()
        return self
