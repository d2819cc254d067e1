"""Work and depth of each scan mode, counted by running it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statedual.semiseparable.scan import scan

aten = torch.ops.aten


class ScanCost(NamedTuple):
    """What one scan of one sequence of scalars takes."""

    work: int
    """Scalar multiplications and additions."""
    depth: int
    """The longest chain of them in which each needs the result of the one before: the span."""


def scan_cost(time: int, mode: str) -> ScanCost:
    """Work and depth of ``scan(a, b, mode=mode)`` with a and b of shape ``(time,)``, ``h_{-1} = 0``.

    Nothing is derived: ``scan`` itself runs, in ``DepthArithmetic``.
    """
    inputs = torch.zeros(time, dtype=torch.float64)
    with torch.no_grad(), DepthArithmetic() as counter:
        depths = scan(inputs, inputs, mode=mode)
    return ScanCost(counter.work, int(max(depths.tolist(), default=0)))


class DepthArithmetic(TorchDispatchMode):
    """Arithmetic in which a number is the length of the longest chain of operations behind it.

        x * y  and  x + y  become  max(x, y) + 1

    Inputs are zeros. ``work`` adds up the scalar operations. Operations that only move numbers run as they are and
    cost nothing; any other operation is refused, so that no arithmetic goes uncounted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch has not annotated it
        self.work = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace arithmetic, let moves through, refuse the rest."""
        if func in _ARITHMETIC:
            operations, depth_of = _ARITHMETIC[func]
            depth = depth_of(*args)
            self.work += operations * depth.numel()
            return depth
        if func.overloadpacket in _MOVES:
            return func(*args, **(kwargs or {}))
        raise NotImplementedError(f"{func} is not known to DepthArithmetic; say in scan_cost.py what it costs")


def _after(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x, y) + 1


_ARITHMETIC: dict[Any, tuple[int, Callable[..., Tensor]]] = {
    aten.mul.Tensor: (1, _after),
    aten.add.Tensor: (1, _after),
    aten.addcmul.default: (2, lambda addend, x, y: _after(addend, _after(x, y))),
}

_MOVES = {
    aten.alias,
    aten.cat,
    aten.clone,
    aten.expand,
    aten.permute,
    aten.promote_types,
    aten.select,
    aten.slice,
    aten.split,
    aten.squeeze,
    aten.stack,
    aten.transpose,
    aten.unbind,
    aten.unsqueeze,
    aten.view,
    aten._unsafe_view,
    aten.zeros_like,
}
