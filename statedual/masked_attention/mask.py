"""What every mask of structured masked attention offers: its matrix, and its share in either contraction order."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from statedual.checks import require_floating, require_one_device


def widen(tensor: Tensor) -> Tensor:
    """``tensor`` in the precision this package computes in: float32 for half precision, unchanged otherwise."""
    require_floating(x=tensor)
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def narrow(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``tensor`` in the ``dtype`` its caller gave; a complex result stays complex."""
    return tensor if tensor.is_complex() else tensor.to(dtype)


def require_axes(name: str, tensor: Tensor, axes: str) -> None:
    """``tensor`` is floating and has at least one dimension for each word of ``axes``, batch axes before them."""
    require_floating(**{name: tensor})
    wanted = axes.split()
    if tensor.ndim < len(wanted):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected (*batch, {', '.join(wanted)})")


class Mask(ABC):
    """A matrix L of shape (time, source) that is cheap to multiply with: the L of `def:sma`.

    A mask takes part in exactly one step of each algorithm: ``hadamard`` is `eq:sha-quad:2`, ``matmul`` is
    `eq:sha-lin:2`. Its tensors may have leading batch axes (one mask a sequence or a head), which broadcast against
    those of q, k and v as in ``torch.matmul``. They are used in the precision of what they act on, at least float32.
    """

    @property
    @abstractmethod
    def batch(self) -> torch.Size:
        """The leading axes of L."""

    @property
    @abstractmethod
    def lengths(self) -> tuple[int, int] | None:
        """The (time, source) of L, or None where the mask is defined for every time = source."""

    @abstractmethod
    def _dense(self, time: int, dtype: torch.dtype, device: torch.device | None) -> Tensor: ...

    @abstractmethod
    def _matmul(self, z: Tensor) -> Tensor: ...

    def tensors(self) -> dict[str, Tensor]:
        """What L is made of, by name."""
        fields = {f"mask.{name}": value for name, value in vars(self).items()}
        return {name: value for name, value in fields.items() if isinstance(value, Tensor)}

    def require_lengths(self, time: int, source: int) -> None:
        """L is defined for ``time`` targets and ``source`` sources."""
        wanted = self.lengths or (time, time)
        if (time, source) != wanted:
            raise ValueError(
                f"mask {type(self).__name__} is asked for (time, source) = {(time, source)}, expected {wanted}; "
                "structured masks are square and as long as their parameters, "
                "for anything else use Dense(matrix) or mask=None"
            )

    def dense(
        self, time: int | None = None, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Inexact[Tensor, "*batch time source"]:
        """L itself, (*batch, time, source), for reading and checking.

        ``time`` is needed where the mask is defined for any. ``dtype`` is torch's default unless given; a complex mask
        comes in its complex counterpart.
        """
        if time is None:
            if self.lengths is None:
                raise ValueError(f"time is None, expected a length: mask {type(self).__name__} is defined for any")
            time = self.lengths[0]
        self.require_lengths(time, self.lengths[1] if self.lengths else time)
        dtype = dtype or torch.get_default_dtype()
        return narrow(self._dense(time, torch.promote_types(dtype, torch.float32), device), dtype)

    def hadamard(self, g: Float[Tensor, "*#batch time source"]) -> Inexact[Tensor, "*#batch time source"]:
        """G ∘ L, in time * source: the mask's step of the quadratic form (`eq:sha-quad:2`)."""
        require_axes("g", g, "time source")
        require_one_device(g=g, **self.tensors())
        self.require_lengths(*g.shape[-2:])
        wide = widen(g)
        return narrow(wide * self._dense(g.shape[-2], wide.dtype, g.device), g.dtype)

    def matmul(self, z: Float[Tensor, "*#batch source features"]) -> Inexact[Tensor, "*#batch time features"]:
        """L z, at this structure's own cost: the mask's step of the linear form (`eq:sha-lin:2`)."""
        require_axes("z", z, "source features")
        require_one_device(z=z, **self.tensors())
        self.require_lengths(self.lengths[0] if self.lengths else z.shape[-2], z.shape[-2])
        wide = widen(z)
        if 0 in (*z.shape, *self.batch):
            # Nothing to compute, and FFT libraries refuse empty tensors: the plain product only finds the shape.
            L = self._dense(z.shape[-2], wide.dtype, z.device)
            return narrow(L @ wide.to(L.dtype), z.dtype)
        return narrow(self._matmul(wide), z.dtype)
