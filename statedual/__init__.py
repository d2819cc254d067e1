"""statedual: state space duality for PyTorch. Every construct of "Transformers are SSMs" as a small exact function."""

from statedual.generation import generate as generate
from statedual.generation import stream as stream
from statedual.layers import Mamba1 as Mamba1
from statedual.layers import Mamba1Config as Mamba1Config
from statedual.layers import Mamba2 as Mamba2
from statedual.layers import Mamba2Config as Mamba2Config
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
from statedual.models import LanguageModel as LanguageModel
from statedual.models import ModelConfig as ModelConfig
from statedual.models import ModelState as ModelState
from statedual.models import load as load
from statedual.models import named as named
from statedual.models import save as save
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
    "LanguageModel",
    "Mamba1",
    "Mamba1Config",
    "Mamba2",
    "Mamba2Config",
    "ModelConfig",
    "ModelState",
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
    "generate",
    "linear_attention",
    "load",
    "named",
    "normalised_attention",
    "retention",
    "save",
    "scan",
    "scan_factors",
    "semiseparable_rank",
    "ssd",
    "ssd_step",
    "stream",
    "structured_attention",
]
