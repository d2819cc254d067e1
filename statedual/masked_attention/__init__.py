"""Structured masked attention (sec. 4): masks, two contraction orders, kernel feature maps."""

from statedual.masked_attention import feature_maps as feature_maps
from statedual.masked_attention.absorb import Absorbed as Absorbed
from statedual.masked_attention.absorb import absorb as absorb
from statedual.masked_attention.attention import kernel_attention as kernel_attention
from statedual.masked_attention.attention import normalised_attention as normalised_attention
from statedual.masked_attention.attention import structured_attention as structured_attention
from statedual.masked_attention.fourier import Fourier as Fourier
from statedual.masked_attention.mask import Mask as Mask
from statedual.masked_attention.masks import Causal as Causal
from statedual.masked_attention.masks import Decay as Decay
from statedual.masked_attention.masks import Dense as Dense
from statedual.masked_attention.masks import OneSemiseparable as OneSemiseparable
from statedual.masked_attention.masks import Semiseparable as Semiseparable
from statedual.masked_attention.toeplitz import Toeplitz as Toeplitz

__all__ = [
    "Absorbed",
    "Causal",
    "Decay",
    "Dense",
    "Fourier",
    "Mask",
    "OneSemiseparable",
    "Semiseparable",
    "Toeplitz",
    "absorb",
    "feature_maps",
    "kernel_attention",
    "normalised_attention",
    "structured_attention",
]
