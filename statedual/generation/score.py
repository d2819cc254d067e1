"""How probable given texts are, token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from statedual.checks import require_positive
from statedual.generation.blocks import walk
from statedual.generation.logprobs import require_finite, token_logprobs
from statedual.generation.prompts import Prompts, read_prompts
from statedual.models import LanguageModel


def score(model: LanguageModel, sequences: Prompts, *, block: int = 2048) -> list[Tensor]:
    """log p(token_t | tokens before it) for every t >= 1 of every sequence, with which perplexities are made.

    Ragged sequences are packed and walked in blocks of at most ``block`` tokens, so that there are never more logits
    than those of one block.

    Args:
        model: the language model.
        sequences: a ragged list of lists of token ids (or of 1-d integer tensors), or a (batch, time) tensor.
        block: tokens in work at a time.

    Returns:
        A (length - 1,) float32 tensor for every sequence: log softmax over the vocabulary.

    """
    require_positive("block", block)
    given = read_prompts(sequences, None, model.config.vocab_size, "sequences")
    # Cloned, so that they are plain tensors outside of inference mode.
    return [found.clone() for found in _score(model, given, block)]


@torch.inference_mode()
def _score(model: LanguageModel, sequences: list[list[int]], block: int) -> list[Tensor]:
    device = model.embedding.weight.device
    found: list[list[Tensor]] = [[torch.empty(0, device=device)] for _ in sequences]
    # The last token of a sequence predicts nothing that is known.
    for pieces, (logits, _) in walk(model, [sequence[:-1] for sequence in sequences], block, last_only=False):
        targets = [token for row, start, stop, _ in pieces for token in sequences[row][start + 1 : stop + 1]]
        logprobs = token_logprobs(logits[:, : model.config.vocab_size], torch.tensor(targets, device=device))
        positions = [at for _, start, stop, _ in pieces for at in range(start + 1, stop + 1)]
        rows = [row for row, start, stop, _ in pieces for _ in range(start, stop)]
        require_finite(logits[:, : model.config.vocab_size], rows, positions, "the model")
        for piece, values in zip(pieces, logprobs.split([stop - start for _, start, stop, _ in pieces]), strict=True):
            found[piece.row].append(values)
    return [torch.cat(values) for values in found]
