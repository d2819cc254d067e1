"""Checkpoints: models read from and written to files, in this package's layout and in those of others."""

from statedual.models.checkpoints.convert import convert as convert
from statedual.models.checkpoints.load import load as load
from statedual.models.checkpoints.save import save as save

__all__ = ["convert", "load", "save"]
