"""The language model: what it leaves alone, what it returns, and its gradients."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from model_examples import (
    D_MODEL,
    EXAMPLES,
    FEW,
    PADDED,
    VOCABULARY,
    configuration,
    difference,
    memory,
    model,
    same,
    tensors_of,
    tokens,
)
from torch import Tensor

from statedual.layers import MLPConfig
from statedual.models import LanguageModel, LMOutput, ModelConfig, ModelState

# Shapes are checked in the tests of the layers; here it would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked_shapes")
every_example = pytest.mark.parametrize("name", EXAMPLES)
few = pytest.mark.parametrize("name", FEW)
HYBRID = "hybrid, everything"
MASK = torch.tensor([[True, True, True, False, False], [False, True, False, True, True]])
OFFSETS = torch.tensor([0, 3, 5])
PACKED, PADDED_ROWS = {"cu_seqlens": OFFSETS}, {"mask": MASK}
CALLS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "batch": (2, 5, {}),
    "last only": (2, 5, {"last_only": True}),
    "one token": (2, 1, {}),
    "no tokens": (2, 0, {}),
    "packed": (1, 5, PACKED),
    "packed, last only": (1, 5, {**PACKED, "last_only": True}),
    "packed, nothing": (1, 0, {"cu_seqlens": torch.tensor([0, 0, 0])}),
    "packed, one of nothing": (1, 5, {"cu_seqlens": torch.tensor([0, 0, 5])}),
    "padded": (2, 5, PADDED_ROWS),
    "padded, last only": (2, 5, {**PADDED_ROWS, "last_only": True}),
    "padding alone": (2, 5, {"mask": torch.zeros(2, 5, dtype=torch.bool)}),
}


# What is given, stays


@every_example
@torch.no_grad()
def test_forward_changes_nothing(name: str) -> None:
    """Neither the state nor a parameter; and what it returns has memory of its own, so that steps may overwrite it."""
    lm = model(name)
    weights = copy.deepcopy(lm.state_dict())
    for state in (lm(tokens(2, 4)).state.with_room(3), lm.init_state(2)):
        before = state.clone()
        for call, (batch, time, options) in CALLS.items():
            after = lm(tokens(batch, time), state, **options).state
            held = memory(*tensors_of(state), *lm.parameters())
            assert not memory(*tensors_of(after)) & held, call
            lm.step(tokens(2), after)
            assert same(state, before), call
    assert all(torch.equal(tensor, weights[key]) for key, tensor in lm.state_dict().items())


@every_example
@pytest.mark.parametrize("rows", [1, 2])
@torch.no_grad()
def test_a_step_changes_its_state_and_nothing_else(name: str, rows: int) -> None:
    """In place, where the caches have room; never a parameter, though some states begin as one."""
    lm = model(name)
    weights = copy.deepcopy(lm.state_dict())
    for state in (lm.init_state(rows).with_room(3), lm(tokens(rows, 0)).state.with_room(3)):
        assert not memory(*tensors_of(state)) & memory(*lm.parameters())
        where, before = [tensor.data_ptr() for tensor in tensors_of(state)], state.clone()
        for _ in range(3):
            output = lm.step(tokens(rows), state)
            assert output.logits.shape == (rows, PADDED)
            assert output.state is state
        assert [tensor.data_ptr() for tensor in tensors_of(state)] == where
        assert not same(state, before) or "mlp" in name
    assert all(torch.equal(tensor, weights[key]) for key, tensor in lm.state_dict().items())


# What is returned


@every_example
@torch.no_grad()
def test_last_only_are_the_last_logits(name: str) -> None:
    lm = model(name)
    state = lm(tokens(2, 4)).state
    ids, row = tokens(2, 5), tokens(1, 5)
    for before in (None, state):
        every, last = lm(ids, before), lm(ids, before, last_only=True)
        assert difference(last.logits, every.logits[:, -1]) < 1e-6
        assert same(last.state, every.state)
        every, last = lm(row, before, **PACKED), lm(row, before, **PACKED, last_only=True)
        assert difference(last.logits, every.logits[0, [2, 4]]) < 1e-6
        every, last = lm(ids, before, **PADDED_ROWS), lm(ids, before, **PADDED_ROWS, last_only=True)
        assert difference(last.logits, every.logits[[0, 1], [2, 4]]) < 1e-6
        assert same(last.state, every.state)


@few
@pytest.mark.parametrize("call", CALLS)
@torch.no_grad()
def test_shapes(name: str, call: str) -> None:
    batch, time, options = CALLS[call]
    output = model(name)(tokens(batch, time), **options)
    assert isinstance(output, LMOutput)
    wanted = (2, PADDED) if options.get("last_only") else (batch, time, PADDED)
    assert (output.logits.shape, output.logits.dtype) == (wanted, torch.float32)
    assert output.state.rows == (0 if name == "mlp" else 2)
    assert output.logits.isfinite().all()


@few
@torch.no_grad()
def test_a_pass_over_nothing_is_the_beginning(name: str) -> None:
    lm = model(name)
    assert same(lm(tokens(2, 0)).state.with_room(1), lm.init_state(2).with_room(1))
    assert lm(tokens(1, 0), cu_seqlens=torch.tensor([0])).state.rows == 0


@few
@pytest.mark.parametrize("int_type", [torch.int32, torch.int64])
@torch.no_grad()
def test_ids_and_offsets_of_either_width(name: str, int_type: torch.dtype) -> None:
    lm, ids = model(name), tokens(1, 5)
    wanted = lm(ids, cu_seqlens=OFFSETS)
    got = lm(ids.to(int_type), cu_seqlens=OFFSETS.to(int_type))
    assert torch.equal(got.logits, wanted.logits)
    assert same(got.state, wanted.state)
    step = lm.step(ids[0, :2].to(int_type), got.state)
    assert torch.equal(step.logits, lm.step(ids[0, :2], wanted.state).logits)


@few
@torch.no_grad()
def test_the_future_is_not_seen(name: str) -> None:
    lm, ids = model(name), tokens(2, 8)
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCABULARY
    got, wanted = lm(changed).logits, lm(ids).logits
    assert difference(got[:, :5], wanted[:, :5]) < 1e-6
    assert difference(got[:, 5], wanted[:, 5]) > 1e-3


# Precision


@every_example
@torch.no_grad()
def test_dtypes(name: str) -> None:
    """Logits, histories of convolutions and caches as the weights; states and decays never less than float32."""
    for dtype, wide in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        lm = model(name, dtype=dtype)
        for parameter_name, parameter in lm.named_parameters():
            last = parameter_name.split(".")[-1]
            narrow = last not in ("A_log", "D", "dt_bias", "init_states") and not parameter_name.endswith(
                "dt_proj.bias"
            )
            assert parameter.dtype == (dtype if narrow else wide), parameter_name
        prefill = lm(tokens(2, 4))
        step = lm.step(tokens(2), lm(tokens(2, 4), prefill.state).state)
        for output in (prefill, step, LMOutput(step.logits, lm.init_state(2))):
            assert output.logits.dtype == dtype
            for block in output.state.blocks:
                for field, tensor in block._asdict().items():
                    if tensor is not None:
                        wanted = {"ssm": wide, "length": torch.int64}.get(field, dtype)
                        assert tensor.dtype == wanted, (type(block), field)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [True, False])
@torch.no_grad()
def test_residual_in_fp32(dtype: torch.dtype, wide: bool) -> None:
    """The sum over the blocks is float32 between them, in passes and in steps."""
    lm = model(HYBRID, dtype=dtype, residual_in_fp32=wide)
    seen = []
    hooks = [
        module.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
        for module in [*(block.norm for block in lm.blocks), lm.norm]
    ]
    state = lm(tokens(2, 3)).state
    lm.step(tokens(2), state)
    for hook in hooks:
        hook.remove()
    assert seen == [torch.float32 if wide else dtype] * (2 * (len(EXAMPLES[HYBRID]) + 1))


@torch.no_grad()
def test_a_float32_residual_keeps_what_bfloat16_loses() -> None:
    """Sixty small additions to something large, against float64: without them the model would be its embedding."""
    config = ModelConfig(d_model=16, vocab_size=50, blocks=(MLPConfig(hidden=8),) * 60)
    lm = LanguageModel(config)
    lm.embedding.weight.mul_(500)
    errors = []
    for wide in (True, False):
        other = LanguageModel(dataclasses.replace(config, residual_in_fp32=wide)).bfloat16()
        other.load_state_dict(lm.state_dict())
        twin = LanguageModel(config).double()
        twin.load_state_dict(other.state_dict())
        ids = tokens(2, 20)
        got, truth = (one.norm(_residual(one, ids)) for one in (other, twin))
        errors.append(difference(got.double(), truth.double()))
    assert errors[0] < 1e-2
    assert errors[0] < 0.5 * errors[1]


def _residual(lm: LanguageModel, ids: Tensor) -> Tensor:
    """The sum behind the last block."""
    caught = []
    hook = lm.norm.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    lm(ids)
    hook.remove()
    return caught[0]


# The head


def test_a_tied_head_is_the_embedding() -> None:
    lm = model(HYBRID, tied=True)
    assert "head.weight" not in lm.state_dict()
    ids = tokens(2, 4)
    with torch.no_grad():
        before = lm(ids).logits
        lm.embedding.weight[VOCABULARY - 1] += 1.0
        other = ids.clamp(max=VOCABULARY - 2)
        changed = lm(other).logits
        lm.embedding.weight[VOCABULARY - 1] -= 1.0
        assert difference(lm(other).logits[..., : VOCABULARY - 1], changed[..., : VOCABULARY - 1]) < 1e-6
        assert difference(lm(other).logits[..., VOCABULARY - 1], changed[..., VOCABULARY - 1]) > 1e-1
        assert difference(lm(ids).logits, before) < 1e-6


def test_an_untied_head_is_a_matrix_of_its_own() -> None:
    lm = model(HYBRID, tied=False)
    assert lm.state_dict()["head.weight"].shape == (PADDED, D_MODEL)
    ids = tokens(2, 4)
    with torch.no_grad():
        before = lm(ids).logits
        lm.head.weight.mul_(2)
        assert difference(lm(ids).logits, 2 * before) < 1e-6


@pytest.mark.parametrize("tied", [True, False])
def test_parameter_names(tied: bool) -> None:
    """They are those of checkpoints: to change one is to break files."""
    lm = model("hybrid, mamba2 + mlp + attention", tied)
    linear, biased = ["in_proj.weight", "out_proj.weight"], ["in_proj.bias", "out_proj.bias"]
    conv, mlp = ["conv1d.weight", "conv1d.bias"], ["fc1.weight", "fc2.weight"]
    mixers = [[*linear, *biased, *conv, "A_log", "dt_bias", "D", "norm.weight"], mlp, [*linear, *conv], mlp]
    blocks = [
        f"blocks.{index}.{name}"
        for index, names in enumerate(mixers)
        for name in ["norm.weight", *(f"mixer.{name}" for name in names)]
    ]
    wanted = {"embedding.weight", *blocks, "norm.weight"} | (set() if tied else {"head.weight"})
    assert set(lm.state_dict()) == wanted
    assert set(dict(lm.named_parameters())) == wanted
    assert lm.embedding.weight.shape == (PADDED, D_MODEL)


# Gradients


@every_example
@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_has_a_gradient(name: str, tied: bool) -> None:
    """Of a real loss; for packed and padded text too."""
    lm = model(name, tied)
    packed, padded = {"cu_seqlens": torch.tensor([0, 9, 9, 20])}, {"mask": torch.rand(2, 20) < 0.7}
    for ids, options in ((tokens(2, 10), {}), (tokens(1, 20), packed), (tokens(2, 20), padded)):
        lm.zero_grad()
        logits = lm(ids, **options).logits[..., :VOCABULARY]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens(ids.numel())).backward()
        for parameter_name, parameter in lm.named_parameters():
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name
            assert parameter.grad.any(), parameter_name


@every_example
def test_gradients_flow_through_states(name: str) -> None:
    """A text in pieces has the gradient of the whole: truncated or not is the caller's choice."""
    lm = model(name, dtype=torch.float64)
    ids = tokens(2, 9)
    weights = torch.randn(2, 9, PADDED, dtype=torch.float64)
    parameters = list(lm.parameters())
    whole = torch.autograd.grad((lm(ids).logits * weights).sum(), parameters)
    loss, state = torch.zeros((), dtype=torch.float64), None
    for piece, weight in zip(ids.split(4, 1), weights.split(4, 1), strict=True):
        logits, state = lm(piece, state)
        loss = loss + (logits * weight).sum()
    pieces = torch.autograd.grad(loss, parameters)
    for (parameter_name, _), got, wanted in zip(lm.named_parameters(), pieces, whole, strict=True):
        assert difference(got, wanted) < 1e-10, parameter_name


def test_a_model_has_no_other_options() -> None:
    """The configuration is all that it is made of, and it keeps it."""
    config = configuration(HYBRID)
    assert LanguageModel(config).config is config
    assert isinstance(LanguageModel(config).init_state(3), ModelState)
