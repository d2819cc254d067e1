"""Softmax attention against a dense reference: every option, every way through a sequence."""

from typing import Any

import pytest
import torch
from attention_examples import D_MODEL, TIME, block, dense_rows, every_case, tokens
from layer_examples import copied, difference, state_difference, worst_of_ways
from torch import Tensor, nn

from statedual.benchmarks.measure import peak_bytes
from statedual.layers import Attention, AttentionConfig, attention


@every_case
def test_one_pass_is_the_dense_reference(case: str) -> None:
    module, u = block(case), tokens(2, TIME)
    assert difference(module(u)[0], dense_rows(module, u)) < 1e-12


@every_case
@pytest.mark.parametrize("queries", [256, 4])
def test_every_way_is_the_same_function(case: str, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut, step by step, prefilled and packed; in masks of a few queries or of one for all."""
    monkeypatch.setattr(attention, "_BLOCK", queries)
    module, u = block(case), tokens(2, TIME)
    assert difference(module(u)[0], dense_rows(module, u)) < 1e-12
    with torch.no_grad():
        ways = worst_of_ways(module, u)
    assert ways.keys() == {"cut", "step", "prefill", "packed"}
    assert max(ways.values()) < 1e-12, ways


@every_case
def test_gradients_are_those_of_the_dense_reference(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one pass, through states that are passed on, and packed."""
    monkeypatch.setattr(attention, "_BLOCK", 8)
    module = block(case)
    u = tokens(2, TIME).requires_grad_()
    weight = torch.randn(2, TIME, D_MODEL, dtype=torch.float64)
    leaves = [u, *module.parameters()]
    wanted = torch.autograd.grad((dense_rows(module, u) * weight).sum(), leaves)
    cut, state = [], None
    for start, stop in ((0, 6), (6, 6), (6, 30), (30, TIME)):
        y, state = module(u[:, start:stop], state)
        cut.append(y)
    packed, _ = module(u.flatten(0, 1)[None], None, torch.tensor([0, TIME, TIME, 2 * TIME]))
    for y in (module(u)[0], torch.cat(cut, 1), packed.view_as(u)):
        got = torch.autograd.grad((y * weight).sum(), leaves)
        assert max(difference(*pair) for pair in zip(got, wanted, strict=True)) < 1e-12


@pytest.mark.parametrize("case", ["everything", "grouped_convolution", "window_longer"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_other_dtypes(case: str, dtype: torch.dtype, bound: float) -> None:
    """Output, caches and convolution in the dtype of the parameters, in every way through a sequence."""
    module, u = block(case, dtype), tokens(2, TIME, dtype)
    wide = block(case)
    wide.load_state_dict(module.state_dict())
    truth = dense_rows(wide, u.double())
    with torch.no_grad():
        first, state = module(u[:, :9])
        second, state = module(u[:, 9:20], state)
        state = state.with_room(TIME)
        steps = [module.step(u[:, t], state) for t in range(20, TIME)]
        y = torch.cat([first, second, torch.stack(steps, 1)], 1)
    assert y.dtype == dtype
    for kept in (state, module.init_state(2)):
        assert [t.dtype for t in kept] == [dtype, dtype, torch.int64, dtype]
    assert difference(y, truth) < bound


@every_case
def test_no_tokens(case: str) -> None:
    module, u = block(case), tokens(2, 5)
    y, state = module(u[:, :0])
    assert y.shape == (2, 0, D_MODEL)
    assert state_difference(state, module.init_state(2)) == 0
    _, before = module(u)
    y, after = module(u[:, :0], before)
    assert y.shape == (2, 0, D_MODEL)
    assert state_difference(after, before) == 0
    for old, new in zip(before, after, strict=True):
        assert old.numel() == 0 or old.data_ptr() != new.data_ptr()  # a step would change both
    y, state = module(u[:1, :0], None, torch.tensor([0, 0, 0]))
    assert y.shape == (1, 0, D_MODEL)
    assert state_difference(state, module.init_state(2)) == 0
    y, state = module(u[:1, :0], None, torch.tensor([0]))
    assert y.shape == (1, 0, D_MODEL)
    assert state.keys.shape[0] == state.conv.shape[0] == state.length.shape[0] == 0


@pytest.mark.parametrize("window", [None, 700])
def test_many_blocks_of_queries_and_of_keys(window: int | None) -> None:
    """Several masks, and more than the 512 keys that PyTorch's kernel takes at once, the first of them all masked."""
    module = AttentionConfig(heads=2, kv_heads=1, window=window).build(D_MODEL).double()
    u = tokens(1, 1500)
    truth = dense_rows(module, u)
    with torch.no_grad():
        assert difference(module(u)[0], truth) < 1e-12
        y, state = module(u[:, :10], module.init_state(1))
        rest, state = module(u[:, 10:1499], state)
        last = module.step(u[:, 1499], state.with_room(1))
    assert difference(torch.cat([y, rest, last[:, None]], 1), truth) < 1e-12


class OneStep(nn.Module):
    def __init__(self, module: Attention) -> None:
        super().__init__()
        self.module = module

    def forward(self, u: Tensor, state: Any) -> Tensor:
        return self.module.step(u, state)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("case", ["everything", "grouped_convolution"])
@pytest.mark.parametrize("how", ["compile", "export"])
def test_a_step_is_one_graph(case: str, how: str) -> None:
    """No Python depends on data, so that one graph serves all lengths, and the state changes in place."""
    module, u = block(case), tokens(2, 12)
    truth = dense_rows(module, u)
    with torch.no_grad():
        _, state = module(u[:, :3])
        state = state.with_room(20)
        step = OneStep(module)
        if how == "export":
            step = torch.export.export(step, (u[:, 3], copied(state))).module()
        else:
            step = torch.compile(step, fullgraph=True, backend="aot_eager")
        for t in range(3, 12):
            with torch._dynamo.config.patch(error_on_recompile=t > 3):
                assert difference(step(u[:, t], state), truth[:, t]) < 1e-12
    assert state.length.tolist() == [12, 12]


def saved_bytes(run: Any) -> int:
    """What autograd keeps for the gradient, each memory once."""
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("mode", ["plain", "grouped", "window", "state", "state_window"])
def test_memory_is_linear_in_time(mode: str) -> None:
    """Four times the sequence: four times the memory, and not sixteen; also what is kept for the gradient."""
    options = {"kv_heads": 2} if mode == "grouped" else {"window": 64} if "window" in mode else {}
    module = AttentionConfig(heads=4, **options).build(32)
    with torch.no_grad():
        state = module(torch.randn(1, 8, 32))[1] if "state" in mode else None
    short, long = torch.randn(1, 512, 32), torch.randn(1, 2048, 32)
    with torch.no_grad():
        assert peak_bytes(lambda: module(long, state)) < 5 * peak_bytes(lambda: module(short, state))
    assert saved_bytes(lambda: module(long, state)) < 5 * saved_bytes(lambda: module(short, state))
    assert peak_bytes(lambda: module(long, state)[0].sum().backward()) < 5 * peak_bytes(
        lambda: module(short, state)[0].sum().backward()
    )


def test_parameters() -> None:
    module = AttentionConfig(heads=4, kv_heads=2, head_dim=8, conv_width=4, qkv_bias=True, out_bias=True).build(16)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "in_proj.weight": (64, 16),
        "in_proj.bias": (64,),
        "conv1d.weight": (64, 1, 4),
        "conv1d.bias": (64,),
        "out_proj.weight": (16, 32),
        "out_proj.bias": (16,),
    }
    assert [name for name, _ in AttentionConfig(heads=2).build(16).named_parameters()] == [
        "in_proj.weight",
        "out_proj.weight",
    ]
    torch.manual_seed(1)
    module = Attention(16, module.config)
    torch.manual_seed(1)
    assert torch.equal(module.in_proj.weight, nn.Linear(16, 64).weight)
    assert module.out_proj.weight.abs().max() <= 32**-0.5
    assert 0.3 < module.conv1d.weight.abs().max() <= 0.5


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no_heads": ({"heads": 0}, "heads is 0, expected a positive integer"),
    "kv_heads": ({"heads": 4, "kv_heads": 3}, "kv_heads is 3, expected a divisor of the 4 heads"),
    "more_kv_heads": ({"heads": 4, "kv_heads": 8}, "kv_heads is 8, expected a divisor of the 4 heads"),
    "head_dim": ({"heads": 4, "head_dim": -1}, "head_dim is -1, expected a positive integer"),
    "odd_rotation": ({"heads": 4, "rotary_dim": 3}, "rotary_dim is 3, expected an even number; 0 means no rotation"),
    "wide_rotation": ({"heads": 4, "head_dim": 4, "rotary_dim": 6}, "rotary_dim is 6, expected an even number up to"),
    "negative_rotation": ({"heads": 4, "rotary_dim": -2}, "rotary_dim is -2, expected an even number"),
    "base": ({"heads": 4, "rotary_base": 0.0}, "rotary_base is 0.0, expected a positive number"),
    "window": ({"heads": 4, "window": 0}, "window is 0, expected a positive integer"),
    "conv_width": ({"heads": 4, "conv_width": -1}, "conv_width is -1, expected a positive integer"),
    "scale": ({"heads": 4, "scale": -1.0}, "scale is -1.0, expected a positive number"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_configurations(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        AttentionConfig(**options)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_uses() -> None:
    with pytest.raises(ValueError, match="d_model is 18, expected a multiple of the 4 heads; or give head_dim"):
        AttentionConfig(heads=4).build(18)
    with pytest.raises(ValueError, match="rotary_dim is 3, expected an even number up to head_dim 3"):
        AttentionConfig(heads=4).build(12)
    with pytest.raises(ValueError, match="rotary_dim is 6, expected an even number up to head_dim 4"):
        AttentionConfig(heads=4, rotary_dim=6).build(16)
    with pytest.raises(ValueError, match="d_model is 0, expected a positive integer"):
        AttentionConfig(heads=4, head_dim=4).build(0)
    module = block("plain", torch.float32)
    u = torch.randn(2, 5, D_MODEL)
    with pytest.raises(ValueError, match="expected batch 1"):
        module(u, None, torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="cu_seqlens ends at 4, expected 5"):
        module(u[:1], None, torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="state has rows 3"):
        module(u, module.init_state(3))
