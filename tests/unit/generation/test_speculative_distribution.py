"""With a draft, drawn text has exactly the distribution that it has without."""

from collections import Counter

import pytest
from generation_examples import logits_after, near, reference_probabilities, require_distribution, tiny

from statedual.generation import generate


@pytest.mark.parametrize(("draft", "ahead"), [("another", 2), ("near", 1)])  # 1: text goes on behind what was proposed
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mamba2", {"temperature": 1.0}),
        ("bigram", {"temperature": 1.4, "top_k": 3}),
        ("hybrid", {"temperature": 0.9, "top_p": 0.8}),
        ("mamba1", {"temperature": 1.2, "min_p": 0.1, "repetition_penalty": 1.6}),
    ],
)
def test_drawn_text_has_the_models_own_distribution(kind: str, settings: dict, draft: str, ahead: int) -> None:
    vocab, length, rows = 4, 3, 1500
    model = tiny(kind, vocab=vocab)
    helper = tiny("mamba2", seed=7, vocab=vocab) if draft == "another" else near(tiny(kind, vocab=vocab), 0.3)
    prompt = [1, 0]
    exact = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, probability in exact.items():
            logits = logits_after(model, [*prompt, *text])[:vocab].tolist()
            nexts = reference_probabilities(logits, seen=[*prompt, *text], **settings)
            longer.update({(*text, token): probability * next_one for token, next_one in enumerate(nexts)})
        exact = longer
    found = generate(
        model, [prompt] * rows, max_new_tokens=length, draft=helper, draft_tokens=ahead, seed=11, **settings
    )
    counts = Counter(tuple(row.tokens) for row in found)
    require_distribution([counts[text] for text in exact], list(exact.values()))
