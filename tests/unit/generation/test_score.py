"""Scores against a float64 loop over prefixes."""

import re

import pytest
import torch
from generation_examples import BLOCKS, VOCAB, logits_after, prompts_of, tiny

from statedual.generation import score

LENGTHS = (5, 1, 13, 2, 1, 8)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("block", [1, 3, 12, 24, 2048])
def test_scores_are_log_probabilities_of_each_next_token(kind: str, block: int) -> None:
    model, texts = tiny(kind), prompts_of(LENGTHS)
    found = score(model, texts, block=block)
    assert len(found) == len(texts)
    for text, values in zip(texts, found, strict=True):
        truth = [logits_after(model, text[:at])[:VOCAB].log_softmax(0)[text[at]].item() for at in range(1, len(text))]
        assert values.shape == (len(text) - 1,)
        assert values.dtype == torch.float32
        assert values.tolist() == pytest.approx(truth, rel=1e-6)


def test_half_precision_logits_are_summed_in_float32() -> None:
    model = tiny(vocab=4000)
    with torch.no_grad():
        model.head.weight.mul_(0.01)  # nearly uniform: a sum of 4000 equal terms stops at 256 in bfloat16
    text = prompts_of([20], vocab=4000)
    (found,) = score(model.to(torch.bfloat16), text)
    assert found.dtype == torch.float32
    with torch.no_grad():
        truth = model(torch.tensor(text)).logits[0, :-1, : model.config.vocab_size].double().log_softmax(-1)
    assert torch.allclose(found.double(), truth.gather(-1, torch.tensor(text)[0, 1:, None])[:, 0], atol=1e-5)


def test_no_more_logits_than_those_of_one_block() -> None:
    model, sizes = tiny(), []
    model.norm.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[:-1].numel()))
    score(model, prompts_of(LENGTHS), block=7)
    assert sizes == [7, 7, 7, 3]  # the last token of a text predicts nothing


def test_scores_are_plain_tensors() -> None:
    (found,) = score(tiny(), [[1, 2, 3]])
    assert not found.is_inference()
    assert not found.requires_grad
    weight = torch.ones(2, requires_grad=True)
    (weight * found).sum().backward()
    assert torch.equal(weight.grad, found)


def test_tensors_are_taken_too() -> None:
    texts = prompts_of([4, 4])
    for given in (torch.tensor(texts), [torch.tensor(text) for text in texts]):
        for values, truth in zip(score(tiny(), given), score(tiny(), texts), strict=True):
            assert torch.equal(values, truth)


@pytest.mark.parametrize(
    ("texts", "block", "told"),
    [
        ([], 8, "sequences is empty"),
        ([[1], []], 8, "sequences[1] is empty"),
        ([[1, 11]], 8, "sequences[0] has id 11 at position 1"),
        ([[1, 2]], 0, "block is 0, expected a positive integer"),
    ],
)
def test_bad_input_is_refused(texts: list, block: int, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        score(tiny(), texts, block=block)


def test_logits_that_are_no_numbers_are_told() -> None:
    model = tiny()
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    with pytest.raises(ValueError, match="the logits of the model for position 1 of row 0 are not finite"):
        score(model, [[1, 2, 3], [1, 2]])
