"""What every public function asks of its tensors. Each message names the argument, what it was, what it should be."""

from collections.abc import Mapping

import torch
from torch import Tensor


def require_tensors(**tensors: Tensor | None) -> None:
    """Each is a tensor."""
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}, expected a tensor; make one with torch.as_tensor")


def require_floating(**tensors: Tensor | None) -> None:
    """Each tensor is float64, float32, bfloat16 or float16."""
    require_tensors(**tensors)
    wanted = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in wanted:
            raise ValueError(
                f"{name} has dtype {tensor.dtype}, expected float64, float32, bfloat16 or float16; "
                f"convert it with {name}.float()"
            )


def require_one_device(**tensors: Tensor | None) -> None:
    """All tensors are on the device of the first."""
    require_tensors(**tensors)
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(given.items()))
    for name, tensor in given.items():
        if tensor.device != first.device:
            raise ValueError(
                f"{name} is on {tensor.device}, expected {first.device} where {first_name} is; "
                f"move it with {name}.to({str(first.device)!r})"
            )


def require_ndim(name: str, tensor: Tensor, axes: str) -> None:
    """``tensor`` has one dimension for each word of ``axes``."""
    wanted = axes.split()
    if tensor.ndim != len(wanted):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {len(wanted)} axes ({', '.join(wanted)})")


def require_sizes(name: str, tensor: Tensor, wanted: Mapping[str, int | None], source: str) -> None:
    """``tensor`` has the sizes of ``wanted`` (axis -> size, None for any), which come from the argument ``source``."""
    require_ndim(name, tensor, " ".join(wanted))
    for axis, (got, (label, size)) in enumerate(zip(tensor.shape, wanted.items(), strict=True)):
        if size is not None and got != size:
            raise ValueError(
                f"{name} has {label} {got} (axis {axis} of {tuple(tensor.shape)}), expected {size} as in {source}"
            )


def require_divides(name: str, groups: int, heads: int) -> None:
    """The head rule of the package: heads_x, heads_b and heads_c each divide heads."""
    if groups <= 0 or heads % groups:
        raise ValueError(
            f"{name} has {groups} heads, which do not divide the {heads} heads of log_a; "
            f"head i reads group i // (heads / heads_{name}), so give {name} a divisor of {heads} heads"
        )


def require_positive(name: str, value: int) -> None:
    """``value`` is a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}, expected a positive integer")


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(repr(choice) for choice in choices)}")
