"""Prompts to text: packed prefill, sampling, decoding with and without a draft, scores, states that can go back."""

from statedual.generation.generate import Generation as Generation
from statedual.generation.generate import generate as generate
from statedual.generation.generate import stream as stream
from statedual.generation.prefill import prefill as prefill
from statedual.generation.rollback import History as History
from statedual.generation.sampling import Sampling as Sampling
from statedual.generation.score import score as score
from statedual.generation.text import StoppingText as StoppingText
from statedual.generation.text import TextStream as TextStream

__all__ = [
    "Generation",
    "History",
    "Sampling",
    "StoppingText",
    "TextStream",
    "generate",
    "prefill",
    "score",
    "stream",
]
