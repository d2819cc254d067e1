"""Section 3 and appendices B, C: semiseparable matrices, and the scans that multiply by them."""

from statedual.semiseparable.autoregressive import autoregressive as autoregressive
from statedual.semiseparable.matrix import SemiseparableMatrix as SemiseparableMatrix
from statedual.semiseparable.multiply import diagonal_contraction as diagonal_contraction
from statedual.semiseparable.rank import semiseparable_rank as semiseparable_rank
from statedual.semiseparable.rotation import RotationSSM as RotationSSM
from statedual.semiseparable.rotation import preprocess as preprocess

__all__ = [
    "RotationSSM",
    "SemiseparableMatrix",
    "autoregressive",
    "diagonal_contraction",
    "preprocess",
    "semiseparable_rank",
]
