"""Tiny models whose texts vary, and generation done the slow way: the whole text through the model for every token."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from statedual.layers import AttentionConfig, Mamba1Config, Mamba2Config, MLPConfig
from statedual.models import LanguageModel, ModelConfig

VOCAB = 11

BLOCKS = {
    "mamba2": (Mamba2Config(d_state=4, head_dim=8),) * 2,
    "mamba1": (Mamba1Config(d_state=4),) * 2,
    "hybrid": (
        Mamba2Config(d_state=4, head_dim=8),
        AttentionConfig(heads=2, conv_width=3),
        MLPConfig(hidden=16),
        AttentionConfig(heads=4, kv_heads=2, window=5),
    ),
    "bigram": (MLPConfig(hidden=16),),
}


def tiny(kind: str = "mamba2", seed: int = 0, vocab: int = VOCAB, padding: int = 16) -> LanguageModel:
    """In float64, with weights so large that every token before matters. Rows behind the vocabulary are loud."""
    torch.manual_seed(seed)
    config = ModelConfig(
        d_model=16, vocab_size=vocab, pad_vocab_size_multiple=padding, blocks=BLOCKS[kind], tie_embeddings=False
    )
    model = LanguageModel(config).double().eval()
    with torch.no_grad():
        model.embedding.weight.normal_()
        model.head.weight.normal_(std=0.5)
        model.head.weight[vocab:] *= 10
        for name, parameter in model.blocks.named_parameters():
            if name.endswith(("in_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight")):
                parameter.mul_(3)
    return model


def near(model: LanguageModel, distance: float) -> LanguageModel:
    """Changed in its head, so that it says something a little different."""
    with torch.no_grad():
        model.head.weight.add_(torch.randn_like(model.head.weight), alpha=distance)
    return model


class Letters:
    """A tokenizer whose token 0 is a."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + token) for token in ids)


def prompts_of(lengths: Sequence[int], seed: int = 1, vocab: int = VOCAB) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def logits_after(model: LanguageModel, tokens: Sequence[int]) -> Tensor:
    """(padded vocabulary,) float64, from nothing but one pass over ``tokens``."""
    return model(torch.tensor([list(tokens)])).logits[0, -1].double()


@torch.no_grad()
def logits_after_all(model: LanguageModel, texts: Sequence[Sequence[int]]) -> Tensor:
    """(texts, padded vocabulary) float64, from nothing but one pass over each, all in one call."""
    sizes = torch.tensor([0, *(len(text) for text in texts)])
    ids = torch.tensor([[token for text in texts for token in text]])
    return model(ids, cu_seqlens=sizes.cumsum(0), last_only=True).logits.double()


def slow_text(
    model: LanguageModel, prompt: Sequence[int], count: int, choose: Callable[[Tensor, list[int]], int] | None = None
) -> list[int]:
    """``count`` tokens after ``prompt``; ``choose`` takes logits over the vocabulary and all tokens before."""
    tokens = list(prompt)
    for _ in range(count):
        logits = logits_after(model, tokens)[: model.config.vocab_size]
        tokens.append(int(logits.argmax()) if choose is None else choose(logits, tokens))
    return tokens[len(prompt) :]


def reference_probabilities(
    logits: Sequence[float],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seen: Sequence[int] = (),
) -> list[float]:
    """What a token is drawn from, written down one number at a time."""
    scores = list(logits)
    for token in set(seen):
        scores[token] = scores[token] / repetition_penalty if scores[token] > 0 else scores[token] * repetition_penalty
    by_rank = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if temperature == 0:
        return [float(token == by_rank[0]) for token in range(len(scores))]
    kept = by_rank[:top_k]
    weights = {token: math.exp((scores[token] - scores[by_rank[0]]) / temperature) for token in kept}
    if top_p is not None:
        whole, mass, nucleus = sum(weights.values()), 0.0, []
        for token in kept:
            nucleus.append(token)
            mass += weights[token] / whole
            if mass >= top_p:
                break
        kept = nucleus
    if min_p is not None:
        kept = [token for token in kept if weights[token] >= min_p * weights[by_rank[0]]]
    whole, possible = sum(weights[token] for token in kept), set(kept)
    return [weights[token] / whole if token in possible else 0.0 for token in range(len(scores))]


def require_distribution(counts: Sequence[int], probabilities: Sequence[float]) -> None:
    """Pearson's chi-square at the 0.1 % level (Wilson and Hilferty's quantile); what cannot be was never drawn."""
    total = sum(counts)
    assert abs(sum(probabilities) - 1) < 1e-9
    assert all(count == 0 for count, p in zip(counts, probabilities, strict=True) if p == 0)
    cells = [(count, total * p) for count, p in zip(counts, probabilities, strict=True) if p > 0]
    rare = [cell for cell in cells if cell[1] < 5]  # too few for the approximation: one cell together
    cells = [cell for cell in cells if cell[1] >= 5]
    if rare:
        cells.append((sum(count for count, _ in rare), sum(expected for _, expected in rare)))
    freedom = len(cells) - 1
    assert freedom >= 1
    distance = sum((count - expected) ** 2 / expected for count, expected in cells)
    spread = 2 / (9 * freedom)
    assert distance < freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3, (distance, freedom)
