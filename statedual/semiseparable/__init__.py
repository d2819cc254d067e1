"""Section 3 and appendices B, C: semiseparable matrices, and the scans that multiply by them."""

from statedual.semiseparable.autoregressive import autoregressive as autoregressive
from statedual.semiseparable.matrix import SemiseparableMatrix as SemiseparableMatrix
from statedual.semiseparable.one_semiseparable import one_semiseparable as one_semiseparable
from statedual.semiseparable.rank import semiseparable_rank as semiseparable_rank
from statedual.semiseparable.rotation import RotationSSM as RotationSSM
from statedual.semiseparable.rotation import preprocess as preprocess
from statedual.semiseparable.scan import scan as scan
from statedual.semiseparable.scan_cost import ScanCost as ScanCost
from statedual.semiseparable.scan_cost import scan_cost as scan_cost
from statedual.semiseparable.scan_factors import scan_factors as scan_factors

__all__ = [
    "RotationSSM",
    "ScanCost",
    "SemiseparableMatrix",
    "autoregressive",
    "one_semiseparable",
    "preprocess",
    "scan",
    "scan_cost",
    "scan_factors",
    "semiseparable_rank",
]
