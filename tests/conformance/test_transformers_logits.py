"""The same weights here and in transformers: logits at odd lengths, states, and 64 greedy tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from statedual.generation import generate
from statedual.models import LanguageModel, load

transformers = pytest.importorskip("transformers")

VOCABULARY = 300
LENGTHS = (1, 255, 257, 700)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba2, 1 group, tied": ("mamba2", {"n_groups": 1, "tie_word_embeddings": True}),
    "mamba2, 2 groups, biases": ("mamba2", {"n_groups": 2, "use_bias": True}),
    "mamba2, 8 groups, untied": ("mamba2", {"n_groups": 8, "use_conv_bias": False}),
    "mamba, tied": ("mamba", {}),
    "mamba, biases, untied": ("mamba", {"use_bias": True, "tie_word_embeddings": False}),
}


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, LanguageModel]:
    """Their model with random weights, and ours from its files."""
    family, options = CASES[request.param]
    common = {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": VOCABULARY, **options}
    if family == "mamba2":
        config = transformers.Mamba2Config(num_heads=16, head_dim=8, state_size=16, **common)
        theirs = transformers.Mamba2ForCausalLM(config).eval()
    else:
        theirs = transformers.MambaForCausalLM(transformers.MambaConfig(**common)).eval()
    theirs.save_pretrained(tmp_path)
    return theirs, load(tmp_path)


def difference(got: Tensor, truth: Tensor) -> float:
    return float((got - truth).norm() / truth.norm())


@torch.no_grad()
def test_logits_at_odd_lengths_and_the_next_token_after_them(pair: tuple[Any, LanguageModel]) -> None:
    theirs, ours = pair
    for length in LENGTHS:
        ids, following = torch.randint(VOCABULARY, (2, length)), torch.randint(VOCABULARY, (2, 1))
        truth = theirs(ids, use_cache=True)
        logits, state = ours(ids)
        assert difference(logits, truth.logits) < 1e-5
        next_truth = theirs(following, cache_params=truth.cache_params, use_cache=True).logits[:, -1]
        assert difference(ours.step(following[:, 0], state).logits, next_truth) < 1e-5


def test_64_greedy_tokens(pair: tuple[Any, LanguageModel]) -> None:
    theirs, ours = pair
    for length in (1, 9, 255, 257):
        prompt = torch.randint(VOCABULARY, (1, length))
        # Without a mask theirs would take every token that is the padding token for padding.
        options = {"attention_mask": torch.ones_like(prompt), "eos_token_id": None, "pad_token_id": 0}
        truth = theirs.generate(prompt, max_new_tokens=64, do_sample=False, **options)
        (row,) = generate(ours, prompt.tolist(), max_new_tokens=64)
        assert row.tokens == truth[0, length:].tolist()
        assert len(row.tokens) == 64
