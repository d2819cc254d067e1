"""The costs of a model are those of the model itself: its tensors, its states, what a step computes."""

from collections.abc import Callable

import pytest
import torch
from model_examples import EXAMPLES, FEW, configuration, model, tokens
from torch.utils.flop_counter import FlopCounterMode

from statedual.models import ModelConfig, flops_per_token, named, parameters, state_bytes
from statedual.models.cost import matrix_parameters, weight_bytes

CONTEXT = 7


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", EXAMPLES)
def test_parameters(name: str, tied: bool) -> None:
    """By name: a tensor that two modules share would count twice if it were counted by module."""
    real = model(name, tied)
    assert parameters(configuration(name, tied)) == sum(p.numel() for p in dict(real.named_parameters()).values())


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)


@DTYPES
@pytest.mark.parametrize("name", EXAMPLES)
def test_weight_bytes(name: str, dtype: torch.dtype) -> None:
    weights = model(name, dtype=dtype).parameters()
    assert weight_bytes(configuration(name), dtype) == sum(p.numel() * p.element_size() for p in weights)


@DTYPES
@pytest.mark.parametrize("name", EXAMPLES)
def test_state_bytes_are_those_behind_a_sequence(name: str, dtype: torch.dtype) -> None:
    real, config = model(name, dtype=dtype), configuration(name)
    assert state_bytes(config, dtype) == real.init_state(1).bytes
    with torch.no_grad():
        state = real(tokens(1, CONTEXT)).state
    assert state_bytes(config, dtype, CONTEXT) == state.bytes


def test_only_attention_without_a_window_keeps_more_of_a_longer_context() -> None:
    growing = {name for name in EXAMPLES if state_bytes(configuration(name), context=1000) > 20_000}
    assert growing == {
        name
        for name, blocks in EXAMPLES.items()
        if any(block.kind == "attention" and block.window is None for block in blocks)
    }


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_step_multiplies_with_these_matrices(name: str, tied: bool) -> None:
    """Counted by PyTorch: products of vectors with weights, and with random projections."""
    real = model(name, tied)
    with torch.no_grad():
        state = real(tokens(1, CONTEXT)).state
        with FlopCounterMode(display=False) as counter:
            real.step(tokens(1), state)
    counts = counter.get_flop_counts()["Global"]
    products = counts.get(torch.ops.aten.mm, 0) + counts.get(torch.ops.aten.addmm, 0)
    projections = 0
    if name == "mamba2, performer":  # two blocks, one head of B and one of C, 4 x 8
        projections = 2 * 2 * 2 * 4 * 8
    if name == "performer attention":  # two blocks, two heads of q and of k, 4 x 8
        projections = 2 * 2 * 2 * 2 * 4 * 8
    assert products == 2 * matrix_parameters(configuration(name, tied)) + projections
    # The recurrences read their states with products: 2 of their 5 operations an element.
    read = counts.get(torch.ops.aten.bmm, 0)
    states = sum(
        block.ssm.numel() for block in state.blocks if hasattr(block, "ssm") and type(block).__name__ != "Mamba1State"
    )
    assert read == 2 * states


# Of one block behind CONTEXT tokens, by hand. d_model is 16; Mamba has 32 channels, 4 heads of 8, N = 8 (Mamba-1: 4).
BESIDE_THE_MATRICES = {
    "mamba2, released": 5 * 4 * 8 * 8 + 2 * 4 * (32 + 8 + 8),
    "mamba2, MHS": 5 * 4 * 8 * 8 + 2 * 4 * (32 + 32 + 32),
    "mamba2, MSS": 5 * 4 * 8 * 8 + 2 * 4 * (8 + 8 + 8),
    "mamba2, sequential": 5 * 4 * 8 * 8 + 2 * 4 * 32,
    "mamba2, no conv": 5 * 4 * 8 * 8,
    "mamba2, normalised": 5 * 4 * (8 + 1) * 8 + 2 * 4 * 48,
    "mamba2, cosformer": 5 * 4 * 8 * 16 + 2 * 4 * 48,
    "mamba2, performer": 5 * 4 * (8 + 1) * 8 + 2 * 4 * 48 + 2 * (2 * 4 * 8),
    "mamba2, based": 5 * 4 * 8 * (1 + 4 + 16) + 2 * 4 * (32 + 4 + 4),
    "mamba2, MLP inside": 5 * 2 * 8 * 8 + 2 * 4 * (16 + 8 + 8),
    "mamba1": (5 + 2) * 32 * 4 + 2 * 4 * 32,
    "attention": 4 * 8 * 4 * 4,
    "attention, window": 4 * 3 * 4 * 4,
    "attention, grouped": 4 * 8 * 4 * 6,
    "attention, window, convolved, biased": 4 * 4 * 4 * 4 + 2 * 3 * 48,
    "mlp": 0,
    "short convolution": 2 * 3 * 16,
    "linear attention": 5 * 4 * (4 + 1) * 4,
    "retention": 5 * 2 * 8 * 8,
    "performer attention": 5 * 2 * (4 + 1) * 8 + 2 * 2 * (2 * 4 * 8),
}


@pytest.mark.parametrize("name", BESIDE_THE_MATRICES)
def test_flops_beside_the_matrices(name: str) -> None:
    config = configuration(name)
    beside = flops_per_token(config, CONTEXT) - 2 * matrix_parameters(config)
    assert beside == 2 * BESIDE_THE_MATRICES[name]


def test_attention_looks_at_one_more_position_for_each_of_the_context() -> None:
    config = configuration("attention")
    assert flops_per_token(config, 1001) - flops_per_token(config, 1000) == 2 * 4 * 16
    assert flops_per_token(config) == 2 * matrix_parameters(config) + 2 * 4 * 16  # the first token sees itself
    window = configuration("attention, window")
    assert flops_per_token(window, 2) == flops_per_token(window, 1000)
    assert flops_per_token(window, 2) > flops_per_token(window, 1)


def test_a_token_of_a_released_model() -> None:
    """By hand: matrices, head, convolution, recurrence. Norms, biases, A_log, D and dt_bias are no matrices."""
    config = named("mamba2-130m")
    block = 768 * 3352 + 1536 * 768
    assert matrix_parameters(config) == 24 * block + 50288 * 768
    assert flops_per_token(config) == 2 * (24 * block + 50288 * 768) + 24 * (2 * 4 * 1792 + 5 * 24 * 64 * 128)
    assert state_bytes(config) == 24 * 4 * (3 * 1792 + 24 * 64 * 128)
    assert state_bytes(config, torch.bfloat16) == 24 * (2 * 3 * 1792 + 4 * 24 * 64 * 128)  # the SSM stays float32
    assert flops_per_token(config, 10**6) == flops_per_token(config)


@pytest.mark.parametrize("name", FEW)
def test_no_memory_is_taken(name: str) -> None:
    wide = ModelConfig(d_model=2**16, vocab_size=2**24, blocks=configuration(name).blocks)
    assert parameters(wide) > 2**40
    assert state_bytes(wide, context=2**40) % 2 == 0
    assert flops_per_token(wide, 2**40) > 2**40


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("cost", [state_bytes, flops_per_token])
@pytest.mark.parametrize("context", [-1, 1.5, None])
def test_a_context_that_is_no_number_of_tokens(cost: Callable[..., int], context: object) -> None:
    with pytest.raises(ValueError, match=r"context is .*, expected a number of tokens, 0 or more"):
        cost(configuration("attention"), context=context)
