"""Sections 7 and 9: language models of any mixture of blocks, their states, named sizes, and checkpoints."""

from statedual.models.config import BlockConfig as BlockConfig
from statedual.models.config import ModelConfig as ModelConfig
from statedual.models.language_model import LanguageModel as LanguageModel
from statedual.models.language_model import LMOutput as LMOutput
from statedual.models.state import ModelState as ModelState

__all__ = ["BlockConfig", "LMOutput", "LanguageModel", "ModelConfig", "ModelState"]
