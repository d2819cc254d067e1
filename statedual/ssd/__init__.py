"""The state space dual layer, sec. 5 and 6 of the paper: one operation, three forms, and what they cost."""

from statedual.ssd.backend import BackendChoice as BackendChoice
from statedual.ssd.backend import choose_backend as choose_backend
from statedual.ssd.instances import gateloop as gateloop
from statedual.ssd.instances import linear_attention as linear_attention
from statedual.ssd.instances import retention as retention
from statedual.ssd.op import SSDOutput as SSDOutput
from statedual.ssd.op import ssd as ssd
from statedual.ssd.step import ssd_step as ssd_step

__all__ = [
    "BackendChoice",
    "SSDOutput",
    "choose_backend",
    "gateloop",
    "linear_attention",
    "retention",
    "ssd",
    "ssd_step",
]
