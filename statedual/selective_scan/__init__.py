"""The diagonal SSM of sec. 2: S6, the selective scan of Mamba-1, and gated linear attention."""

from statedual.selective_scan.op import diagonal_ssm as diagonal_ssm

__all__ = ["diagonal_ssm"]
