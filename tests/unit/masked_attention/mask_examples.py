"""Masks for tests, and the truth about them: every entry of L by itself, in plain Python floats."""

import cmath
import itertools
import math

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statedual.masked_attention import Causal, Decay, Dense, Fourier, Mask, OneSemiseparable, Semiseparable, Toeplitz

NAMES = [
    "causal",
    "decay",
    "one_semiseparable",
    "forgetting",
    "scalar_semiseparable",
    "diagonal_semiseparable",
    "dense_semiseparable",
    "toeplitz",
    "fourier",
    "turned_fourier",
    "dense",
]
REAL_NAMES = [name for name in NAMES if "fourier" not in name]
STRUCTURED_NAMES = [name for name in NAMES if name != "dense"]


def parameters(name: str, time: int, batch: tuple[int, ...] = (), order: int = 2) -> list[Tensor]:
    """Random parameters of the mask called ``name``, in float64."""

    def normal(*shape: int) -> Tensor:
        return torch.randn((*batch, *shape), dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand((*batch, *shape), dtype=torch.float64)

    sequences = [normal(time, order), normal(time, order)]
    match name:
        case "causal" | "fourier":
            return []
        case "decay":
            return [uniform()]
        case "one_semiseparable":
            return [-2 * uniform(time)]
        case "forgetting":
            return [torch.where(uniform(time) < 0.3, -math.inf, -2 * uniform(time))]
        case "scalar_semiseparable":
            return [normal(time), *sequences]
        case "diagonal_semiseparable":
            return [normal(time, order), *sequences]
        case "dense_semiseparable":
            return [normal(time, order, order) / 2, *sequences]
        case "toeplitz":
            return [normal(time)]
        case "turned_fourier":
            return [3 * normal()]
        case _:
            return [normal(time, time)]


def build(name: str, given: list[Tensor]) -> Mask:
    kinds = {"forgetting": OneSemiseparable, "one_semiseparable": OneSemiseparable, "causal": Causal, "decay": Decay}
    kinds |= {"toeplitz": Toeplitz, "fourier": Fourier, "turned_fourier": Fourier, "dense": Dense}
    return kinds.get(name, Semiseparable)(*given)


def example(name: str, time: int, batch: tuple[int, ...] = ()) -> tuple[Mask, Tensor]:
    """A random mask and its matrix, (*batch, time, time)."""
    given = parameters(name, time, batch)
    return build(name, given), matrix(name, given, time)


def matrix(name: str, given: list[Tensor], time: int) -> Tensor:
    """L of the mask called ``name``, entry by entry in float64 or complex128."""
    batch = given[0].shape[: given[0].ndim - _own_axes(name)] if given else ()
    dtype = torch.complex128 if "fourier" in name else torch.float64
    L = torch.zeros(*batch, time, time, dtype=dtype)
    for index in itertools.product(*map(range, batch)):
        numbers = [tensor[index].tolist() for tensor in given]
        for t, s in itertools.product(range(time), repeat=2):
            L[(*index, t, s)] = _entry(name, numbers, t, s, time)
    return L


def _own_axes(name: str) -> int:
    axes = {"decay": 0, "turned_fourier": 0, "diagonal_semiseparable": 2, "dense_semiseparable": 3, "dense": 2}
    return axes.get(name, 1)


def _entry(name: str, numbers: list, t: int, s: int, time: int) -> complex:
    match name:
        case "fourier":
            return cmath.exp(-2j * math.pi * t * s / time)
        case "turned_fourier":
            return cmath.exp(-2j * math.pi * numbers[0] * t * s / time)
        case "dense":
            return numbers[0][t][s]
    if t < s:
        return 0
    match name:
        case "causal":
            return 1
        case "decay":
            return math.prod([numbers[0]] * (t - s))
        case "one_semiseparable" | "forgetting":
            return math.exp(sum(numbers[0][s + 1 : t + 1]))
        case "toeplitz":
            return numbers[0][t - s]
    a, b, c = numbers
    state = b[s]
    for r in range(s + 1, t + 1):
        match name:
            case "scalar_semiseparable":
                state = [a[r] * x for x in state]
            case "diagonal_semiseparable":
                state = [factor * x for factor, x in zip(a[r], state, strict=True)]
            case _:
                state = [sum(factor * x for factor, x in zip(row, state, strict=True)) for row in a[r]]
    return sum(x * y for x, y in zip(c[t], state, strict=True))


class Written(TorchDispatchMode):
    """Counts the elements that operations write: all of them, and those of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.total += tensor.numel()
                self.largest = max(self.largest, tensor.numel())
        return result
