"""Sections 7 and 9: language models of any mixture of blocks, their states, named sizes, and checkpoints."""

from statedual.models.checkpoints import convert as convert
from statedual.models.checkpoints import load as load
from statedual.models.checkpoints import save as save
from statedual.models.config import BlockConfig as BlockConfig
from statedual.models.config import ModelConfig as ModelConfig
from statedual.models.cost import flops_per_token as flops_per_token
from statedual.models.cost import parameters as parameters
from statedual.models.cost import state_bytes as state_bytes
from statedual.models.language_model import LanguageModel as LanguageModel
from statedual.models.language_model import LMOutput as LMOutput
from statedual.models.sizes import named as named
from statedual.models.state import ModelState as ModelState
from statedual.models.weight_decay import weight_decay_groups as weight_decay_groups

__all__ = [
    "BlockConfig",
    "LMOutput",
    "LanguageModel",
    "ModelConfig",
    "ModelState",
    "convert",
    "flops_per_token",
    "load",
    "named",
    "parameters",
    "save",
    "state_bytes",
    "weight_decay_groups",
]
