"""The Fourier mask: positions as phases (sec. 4.3)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from statedual.checks import require_floating
from statedual.masked_attention.mask import Mask


@dataclass(frozen=True, eq=False)
class Fourier(Mask):
    """The Fourier mask: L_ts = omega^(ts / T) with omega = exp(-2 pi i turns); complex, and not causal.

    omega is given by its ``turns`` (*batch,) because its powers depend on more than its value: the omega of the
    discrete Fourier transform, exp(-2 pi i), is the number 1. ``turns=None`` is exactly that transform (one turn) by
    one FFT; any other real number takes three, as a chirp convolution: O(T log T) a feature either way. Phases are
    taken in float64, so that they stay exact at any length.
    """

    turns: Float[Tensor, "*batch"] | None = None

    def __post_init__(self) -> None:
        require_floating(turns=self.turns)

    @property
    def batch(self) -> torch.Size:
        """One omega for each of these."""
        return torch.Size() if self.turns is None else self.turns.shape

    @property
    def lengths(self) -> None:
        """Any length."""
        return None

    def _dense(self, time: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:
        turns = torch.ones((), device=device) if self.turns is None else self.turns.to(device=device)
        position = torch.arange(time, device=turns.device)
        return _phases(turns[..., None, None], position[:, None] * position, time).to(dtype.to_complex())

    def _matmul(self, z: Tensor) -> Tensor:
        if self.turns is None:
            spectrum: Tensor = torch.fft.fft(z, dim=-2)
            return spectrum
        return _chirp_transform(self.turns, z)


def _chirp_transform(turns: Float[Tensor, "*#batch"], z: Float[Tensor, "*#batch time features"]) -> Tensor:
    """sum_s omega^(ts / T) z_s by Bluestein's identity ts = (t^2 + s^2 - (t - s)^2) / 2.

    It turns the product into a convolution between two diagonal ones: with chirp_n = omega^(n^2 / 2T),
    y_t = chirp_t sum_s conj(chirp_{t-s}) chirp_s z_s.
    """
    time = z.shape[-2]
    position = torch.arange(time, device=z.device)
    chirp = _phases(turns[..., None], position**2, 2 * time).to(z.dtype.to_complex())
    # The kernel is even in t - s: its negative half sits at the end of the period, and one zero parts the halves.
    gap = torch.zeros_like(chirp[..., :1])
    kernel = torch.cat([chirp, gap, chirp[..., 1:].flip(-1)], dim=-1).conj()
    spectrum = torch.fft.fft(kernel)[..., None] * torch.fft.fft(chirp[..., None] * z, n=2 * time, dim=-2)
    convolved: Tensor = torch.fft.ifft(spectrum, dim=-2)
    return chirp[..., None] * convolved[..., :time, :]


def _phases(turns: Tensor, numerator: Tensor, denominator: int) -> Complex[Tensor, "..."]:
    """exp(-2 pi i turns numerator / denominator) in complex128."""
    # Only the fraction of a turn counts; in float32 the whole turns would have used up its digits.
    angle = -2 * math.pi * torch.frac(turns.double() * numerator / max(denominator, 1))
    return torch.polar(torch.ones_like(angle), angle)
