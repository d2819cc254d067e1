"""The layout of this package: every model there is. config.json is the ``ModelConfig``, and names are our own."""

from statedual.models.checkpoints.config_file import ConfigFile
from statedual.models.checkpoints.layout import Reading, Writing
from statedual.models.config import ModelConfig
from statedual.models.language_model import LanguageModel


def read(config: ConfigFile) -> Reading:
    """``config`` is what ``write`` gave."""
    values = {key: value for key, value in config.values.items() if key != "model_type"}
    return Reading(ModelConfig.from_dict(values), str)


def write(model: LanguageModel) -> Writing:
    """There is nothing that it cannot hold."""
    return Writing({"model_type": "statedual", **model.config.to_dict()}, str)
