"""The diagonal SSM of sec. 2: S6, the selective scan of Mamba-1, and gated linear attention."""

from statedual.selective_scan.op import diagonal_ssm as diagonal_ssm
from statedual.selective_scan.step import diagonal_ssm_step as diagonal_ssm_step

__all__ = ["diagonal_ssm", "diagonal_ssm_step"]
