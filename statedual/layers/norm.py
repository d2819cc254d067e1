"""RMS norms: the plain one before every block, and Mamba-2's extra one beside the gate (sec. 7.1)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from statedual.ssd.inputs import compute_dtype


def require_eps(name: str, eps: float) -> None:
    """What keeps the norm of zeros finite."""
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < math.inf:
        raise ValueError(f"{name} is {eps!r}, expected a small positive number such as 1e-5")


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight, computed in float32, in the dtype of the weight."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones."""
        nn.init.ones_(self.weight)

    def forward(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        """Over the last axis."""
        dtype = compute_dtype(x)
        wide = functional.rms_norm(x.to(dtype), x.shape[-1:], self.weight.to(dtype), self.eps)
        return wide.to(self.weight.dtype)


class GatedRMSNorm(nn.Module):
    """The extra norm: rms(y * silu(z)), or rms(y) * silu(z) if ``before_gate``; each of ``groups`` parts by itself.

    In float32 inside, whatever the dtype of y.
    """

    def __init__(self, size: int, groups: int = 1, eps: float = 1e-5, before_gate: bool = False) -> None:
        super().__init__()
        self.groups, self.eps, self.before_gate = groups, eps, before_gate
        self.weight = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones."""
        nn.init.ones_(self.weight)

    def forward(self, y: Float[Tensor, "*batch size"], z: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        """In the dtype of z."""
        dtype = compute_dtype(y, z)
        gate = functional.silu(z.to(dtype))
        wide = y.to(dtype) if self.before_gate else y.to(dtype) * gate
        parts = wide.unflatten(-1, (self.groups, -1))
        normed = functional.rms_norm(parts, parts.shape[-1:], None, self.eps).flatten(-2) * self.weight.to(dtype)
        return (normed * gate if self.before_gate else normed).to(z.dtype)
