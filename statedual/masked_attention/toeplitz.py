"""The Toeplitz mask: a relative position encoding that multiplies (sec. 4.3)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.masked_attention.mask import Mask, require_axes


@dataclass(frozen=True, eq=False)
class Toeplitz(Mask):
    """The causal Toeplitz mask: L_ts = alpha_{t-s} for t >= s and zero above the diagonal, alpha (*batch, time).

    Its product is a causal convolution: O(T log T) a feature by FFT. The decay mask is alpha_n = gamma^n. The FFT mixes
    all positions, so an output depends on later inputs by rounding error, and an inf or nan in one spreads to all.
    """

    alpha: Float[Tensor, "*batch time"]

    def __post_init__(self) -> None:
        require_axes("alpha", self.alpha, "time")

    @property
    def batch(self) -> torch.Size:
        """One alpha for each of these."""
        return self.alpha.shape[:-1]

    @property
    def lengths(self) -> tuple[int, int]:
        """One row and one column for each distance."""
        return self.alpha.shape[-1], self.alpha.shape[-1]

    def _dense(self, time: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:
        alpha = self.alpha.to(dtype=dtype, device=device)
        position = torch.arange(time, device=alpha.device)
        distance = (position[:, None] - position).clamp(min=0)
        return alpha[..., distance].tril()

    def _matmul(self, z: Tensor) -> Tensor:
        time = z.shape[-2]
        # Zeros up to twice the length keep the circular convolution from wrapping around.
        kernel = torch.fft.rfft(self.alpha.to(z.dtype), n=2 * time)
        product = kernel[..., None] * torch.fft.rfft(z, n=2 * time, dim=-2)
        convolved: Tensor = torch.fft.irfft(product, n=2 * time, dim=-2)
        return convolved[..., :time, :]
