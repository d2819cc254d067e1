"""Prompts read together, in blocks of any size, leave what each leaves when it is read alone."""

from collections.abc import Sequence

import pytest
import torch
from generation_examples import BLOCKS, VOCAB, logits_after_all, prompts_of, tiny
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statedual.generation import prefill
from statedual.models import LanguageModel, ModelState

LENGTHS = (5, 1, 13, 2, 1, 8)


def distance(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def require_read(model: LanguageModel, prompts: Sequence[Sequence[int]], logits: Tensor, state: ModelState) -> None:
    """``logits`` and ``state`` are those behind ``prompts``; the state is judged by what comes after it."""
    behind = prompts_of([3] * len(prompts), seed=9)
    assert distance(logits, logits_after_all(model, prompts)) < 1e-12
    for step in range(3):
        logits, state = model.step(torch.tensor([row[step] for row in behind]), state)
        texts = [[*prompt, *row[: step + 1]] for prompt, row in zip(prompts, behind, strict=True)]
        assert distance(logits, logits_after_all(model, texts)) < 1e-12


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("block", [1, 2, 3, 6, 13, 29, 30, 31, 2048])
def test_ragged_prompts_in_blocks_are_read_as_one_by_one(kind: str, block: int) -> None:
    model, prompts = tiny(kind), prompts_of(LENGTHS)
    with torch.no_grad():
        require_read(model, prompts, *prefill(model, prompts, block=block))


@pytest.mark.parametrize("kind", ["mamba2", "hybrid"])
def test_the_model_sees_every_token_once_and_at_most_a_block_at_a_time(kind: str) -> None:
    model, prompts, seen, asked = tiny(kind), prompts_of(LENGTHS), [], []
    model.embedding.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].flatten().tolist()))
    model.norm.register_forward_hook(lambda _, inputs, __: asked.append(inputs[0].shape[:-1].numel()))
    prefill(model, prompts, block=7)
    assert [token for tokens in seen for token in tokens] == [token for prompt in prompts for token in prompt]
    assert [len(tokens) for tokens in seen] == [7, 7, 7, 7, 2]
    assert asked == [3, 1, 2, 2, 1]  # logits of the last token of every piece only


class _Largest(TorchDispatchMode):
    """The most elements that any tensor had."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("kind", ["mamba2", "mamba1", "bigram"])
def test_memory_does_not_grow_with_the_length(kind: str) -> None:
    model, largest = tiny(kind), []
    for length in (40, 400):
        with _Largest() as mode:
            prefill(model, prompts_of([length]), block=20)
        largest.append(mode.elements)
    assert largest[0] == largest[1]


def test_progress_is_told_after_every_block() -> None:
    calls: list[tuple[int, int]] = []
    prefill(tiny(), prompts_of(LENGTHS), block=8, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(8, 30), (16, 30), (24, 30), (30, 30)]


def test_states_are_plain_tensors_without_history() -> None:
    logits, state = prefill(tiny(), prompts_of([4, 2]), block=3)
    for tensor in (logits, *state.blocks[0]):
        if tensor is not None:
            assert not tensor.requires_grad
            assert not tensor.is_inference()
    assert logits.shape == (2, 16)
    assert VOCAB < 16
