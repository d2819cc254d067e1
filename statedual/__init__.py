"""statedual: state space duality for PyTorch. Every construct of "Transformers are SSMs" as a small exact function."""

from statedual.masked_attention import Causal as Causal
from statedual.masked_attention import Decay as Decay
from statedual.masked_attention import Dense as Dense
from statedual.masked_attention import Fourier as Fourier
from statedual.masked_attention import OneSemiseparable as OneSemiseparable
from statedual.masked_attention import Semiseparable as Semiseparable
from statedual.masked_attention import Toeplitz as Toeplitz
from statedual.masked_attention import feature_maps as feature_maps
from statedual.masked_attention import normalised_attention as normalised_attention
from statedual.masked_attention import structured_attention as structured_attention
from statedual.selective_scan import diagonal_ssm as diagonal_ssm
from statedual.selective_scan import diagonal_ssm_step as diagonal_ssm_step
from statedual.semiseparable import SemiseparableMatrix as SemiseparableMatrix
from statedual.semiseparable import scan as scan
from statedual.semiseparable import scan_factors as scan_factors
from statedual.semiseparable import semiseparable_rank as semiseparable_rank
from statedual.ssd import SSDOutput as SSDOutput
from statedual.ssd import choose_backend as choose_backend
from statedual.ssd import gateloop as gateloop
from statedual.ssd import linear_attention as linear_attention
from statedual.ssd import retention as retention
from statedual.ssd import ssd as ssd
from statedual.ssd import ssd_step as ssd_step

__all__ = [
    "Causal",
    "Decay",
    "Dense",
    "Fourier",
    "OneSemiseparable",
    "SSDOutput",
    "Semiseparable",
    "SemiseparableMatrix",
    "Toeplitz",
    "choose_backend",
    "diagonal_ssm",
    "diagonal_ssm_step",
    "feature_maps",
    "gateloop",
    "linear_attention",
    "normalised_attention",
    "retention",
    "scan",
    "scan_factors",
    "semiseparable_rank",
    "ssd",
    "ssd_step",
    "structured_attention",
]
