"""Softmax attention against a dense reference: every option, every way through a sequence."""

import itertools
import math
from typing import Any

import pytest
import torch
from layer_examples import copied, difference, state_difference, worst_of_ways
from torch import Tensor, nn

from statedual.benchmarks.measure import peak_bytes
from statedual.layers import Attention, AttentionConfig, AttentionState, attention

D_MODEL, TIME = 16, 37

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "one_kv_head": {"kv_heads": 1, "head_dim": 6},
    "no_rotation": {"rotary_dim": 0},
    "some_rotation": {"head_dim": 6, "rotary_dim": 4, "rotary_base": 100.0},
    "convolution": {"conv_width": 4},
    "convolution_of_one": {"conv_width": 1, "conv_bias": False},
    "grouped_convolution": {"kv_heads": 2, "conv_width": 3, "rotary_dim": 2},
    "biases": {"qkv_bias": True, "out_bias": True, "scale": 0.3},
    "window_of_one": {"window": 1},
    "window": {"window": 5},
    "window_as_long": {"window": TIME},
    "window_longer": {"window": 50},
    "everything": {
        "kv_heads": 2, "head_dim": 6, "rotary_dim": 4, "window": 7, "conv_width": 4, "qkv_bias": True, "scale": 0.7
    },
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES)


def block(case: str, dtype: torch.dtype = torch.float64) -> Attention:
    return AttentionConfig(heads=4, **CASES[case]).build(D_MODEL).to(dtype)


def tokens(rows: int, time: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return 2 * torch.randn(rows, time, D_MODEL, dtype=dtype)


def turned(x: Tensor, rotary_dim: int, base: float) -> Tensor:
    """x (time, head_dim) with the halves of its first ``rotary_dim`` numbers as real and imaginary parts, turned."""
    half = rotary_dim // 2
    frequency = base ** (-torch.arange(half, dtype=x.dtype) / max(half, 1))
    angle = torch.arange(len(x), dtype=x.dtype)[:, None] * frequency
    pairs = torch.complex(x[:, :half], x[:, half:rotary_dim]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pairs.real, pairs.imag, x[:, rotary_dim:]], -1)


def dense(module: Attention, u: Tensor) -> Tensor:
    """One whole sequence u (time, model): an explicit softmax under an explicit mask, head by head."""
    config, time = module.config, len(u)
    head_dim = config.head_dim or D_MODEL // config.heads
    kv_heads = config.kv_heads or config.heads
    qkv = u @ module.in_proj.weight.T + (module.in_proj.bias if config.qkv_bias else 0)
    if config.conv_width:
        taps = module.conv1d.weight[:, 0]
        past = torch.cat([qkv.new_zeros(config.conv_width - 1, qkv.shape[1]), qkv])
        qkv = sum(past[j : j + time] * taps[:, j] for j in range(config.conv_width))
        qkv = qkv + (module.conv1d.bias if config.conv_bias else 0)
    q, k, v = (
        part.unflatten(1, (-1, head_dim)).unbind(1)
        for part in qkv.split([config.heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
    )
    rotary_dim = head_dim if config.rotary_dim is None else config.rotary_dim
    distance = torch.arange(time)[:, None] - torch.arange(time)
    hidden = (distance < 0) | (distance >= (config.window or math.inf))
    heads = []
    for i in range(config.heads):
        group = i * kv_heads // config.heads
        one_q, one_k = (turned(t, rotary_dim, config.rotary_base) for t in (q[i], k[group]))
        scores = one_q @ one_k.T * (config.scale or 1 / math.sqrt(head_dim))
        heads.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ v[group])
    return torch.cat(heads, 1) @ module.out_proj.weight.T + (module.out_proj.bias if config.out_bias else 0)


def dense_rows(module: Attention, u: Tensor) -> Tensor:
    return torch.stack([dense(module, row) for row in u])


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
def test_rows_of_different_length_go_on_together(case: str) -> None:
    """Packed prefill of ragged sequences, then pieces and single tokens of all rows side by side, and packed again."""
    module, before = block(case), [0, 3, 12, 1, 6]
    u = tokens(len(before), 30)
    truth = dense_rows(module, u)
    offsets = [0, *itertools.accumulate(before)]
    with torch.no_grad():
        row = torch.cat([u[i, :n] for i, n in enumerate(before)])[None]
        y, state = module(row, None, torch.tensor(offsets))
        for i, n in enumerate(before):
            assert difference(y[0, offsets[i] : offsets[i + 1]], truth[i, :n]) < 1e-12
        assert state.length.tolist() == before

        def piece(tensor: Tensor, start: int, stop: int) -> Tensor:
            return torch.stack([tensor[i, n + start : n + stop] for i, n in enumerate(before)])

        y, state = module(piece(u, 0, 5), state)
        assert difference(y, piece(truth, 0, 5)) < 1e-12
        state = state.with_room(6)
        for t in range(5, 11):
            y = module.step(piece(u, t, t + 1)[:, 0], state)
            assert difference(y, piece(truth, t, t + 1)[:, 0]) < 1e-12
        # Sequence i takes i tokens more.
        more = [u[i, n + 11 : n + 11 + i] for i, n in enumerate(before)]
        y, state = module(torch.cat(more)[None], state, torch.tensor([0, 0, 1, 3, 6, 10]))
        wanted = torch.cat([truth[i, n + 11 : n + 11 + i] for i, n in enumerate(before)])[None]
        assert difference(y, wanted) < 1e-12
        assert state.length.tolist() == [n + 11 + i for i, n in enumerate(before)]
        y, _ = module(torch.stack([u[i, n + 11 + i][None] for i, n in enumerate(before)]), state)
        assert difference(y, torch.stack([truth[i, n + 11 + i][None] for i, n in enumerate(before)])) < 1e-12


def test_a_decoded_token_sees_all_keys_and_the_inputs_of_the_convolution() -> None:
    """Two defects of mamba_ssm: decode saw key 0 only, and kept the outputs of the convolution as its inputs."""
    module, u = block("grouped_convolution"), tokens(1, 9)
    truth = dense_rows(module, u)
    with torch.no_grad():
        _, state = module(u[:, :6])
        assert difference(state.conv, (u @ module.in_proj.weight.T)[:, 4:6]) < 1e-12
        state = state.with_room(3)
        for t in range(6, 8):
            assert difference(module.step(u[:, t], state), truth[:, t]) < 1e-12
        last = module.step(u[:, 8], copied(state))
        assert difference(last, truth[:, 8]) < 1e-12
        for position in range(8):
            other = copied(state)
            other.values[:, position] += 1
            assert difference(module.step(u[:, 8], other), last) > 1e-6


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


@pytest.mark.parametrize("case", ["plain", "window"])
def test_under_autocast_a_float32_cache_goes_on(case: str) -> None:
    module, u = block(case, torch.float32), tokens(2, TIME, torch.float32)
    truth = dense_rows(module, u)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y, state = module(u[:, :20], module.init_state(2))
        assert state.keys.dtype == torch.float32
        state = state.with_room(TIME)
        steps = [module.step(u[:, t], state) for t in range(20, TIME)]
    assert difference(torch.cat([y, torch.stack(steps, 1)], 1), truth) < 1e-2


@pytest.mark.parametrize("case", ["plain", "grouped", "window"])
def test_a_cache_of_more_bits_goes_on(case: str) -> None:
    """A state decides in which precision it is kept and attended to; the output keeps the dtype of the parameters."""
    module, u = block(case, torch.bfloat16), tokens(2, TIME, torch.bfloat16)
    wide = block(case)
    wide.load_state_dict(module.state_dict())
    with torch.no_grad():
        _, state = module(u[:, :9])
        state = state._replace(keys=state.keys.float(), values=state.values.float())
        y, state = module(u[:, 9:20], state)
        state = state.with_room(1)
        last = module.step(u[:, 20], state)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.bfloat16)
    assert state.keys.dtype == state.values.dtype == torch.float32
    assert difference(torch.cat([y, last[:, None]], 1), dense_rows(wide, u.double())[:, 9:21]) < 1e-2


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


def test_slots_of_the_full_cache() -> None:
    """A key's slot is its position; what is free is zero; keys are rotated, values and keys are convolved."""
    module, u = block("grouped_convolution"), tokens(2, 9)
    _, state = module(u)
    assert isinstance(state, AttentionState)
    assert state.keys.shape == state.values.shape == (2, 9, 2, 4)
    for slots in (state.keys, state.values):
        assert slots.untyped_storage().nbytes() == slots.numel() * 8  # not a view that keeps the queries too
    _, ragged = module(u[:, :5].flatten(0, 1)[None], None, torch.tensor([0, 3, 10]))
    assert ragged.length.tolist() == [3, 7]
    assert not ragged.keys[0, 3:].any()
    _, both = module(u[:, 5:], ragged)
    assert both.keys.shape[1] == 7 + 4
    assert torch.equal(both.keys[0, :3], ragged.keys[0, :3])
    assert both.keys[0, :7].all(-1).all()
    assert not both.keys[0, 7:].any()
    assert not both.values[0, 7:].any()
    # Packed sequences take no more slots than the longest has positions, whatever room there was.
    _, packed = module(u[:1, :3], both.with_room(50), torch.tensor([0, 2, 3]))
    assert packed.length.tolist() == [9, 12]
    assert packed.keys.shape[1] == 12
    assert torch.equal(packed.keys[0, :7], both.keys[0, :7])


def test_the_window_is_chronological() -> None:
    module, u = block("window"), tokens(1, 9)
    full = block("plain")
    full.load_state_dict(module.state_dict())
    _, all_keys = full(u)
    walked = module.init_state(1)
    for t in range(9):
        storage = walked.keys.data_ptr(), walked.values.data_ptr()
        module.step(u[:, t], walked)
        assert (walked.keys.data_ptr(), walked.values.data_ptr()) == storage
        _, state = module(u[:, : t + 1])
        assert state_difference(walked, state) < 1e-12
        valid = min(t + 1, 5)
        assert difference(state.keys[:, 5 - valid :], all_keys.keys[:, t + 1 - valid : t + 1]) < 1e-12
        assert difference(state.values[:, 5 - valid :], all_keys.values[:, t + 1 - valid : t + 1]) < 1e-12
        assert not state.keys[:, : 5 - valid].any()
        assert state.keys.untyped_storage().nbytes() == 5 * D_MODEL * 8  # not a view of all keys
    assert walked.with_room(1000) is walked


def test_room_grows_by_half() -> None:
    module = block("plain")
    state = module.init_state(2)
    assert state.with_room(0) is state
    state = state.with_room(1)
    assert state.keys.shape[1] == 1
    _, state = module(tokens(2, 10))
    roomy = state.with_room(1)
    assert roomy.keys.shape == roomy.values.shape == (2, 15, 4, 4)
    assert torch.equal(roomy.keys[:, :10], state.keys)
    assert torch.equal(roomy.values[:, :10], state.values)
    assert roomy.with_room(5) is roomy
    assert roomy.with_room(6).keys.shape[1] == 23
    assert roomy.with_room(90).keys.shape[1] == 100
    # The longest row decides.
    ragged = roomy._replace(length=torch.tensor([3, 12]))
    assert ragged.with_room(3) is ragged
    assert ragged.with_room(4).keys.shape[1] == 23
    empty = module.init_state(0)
    assert empty.with_room(2).keys.shape[1] == 2


def test_a_step_without_room_is_refused() -> None:
    module = block("plain")
    with pytest.raises(IndexError):
        module.step(tokens(1, 1)[:, 0], module.init_state(1))


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


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_state_whose_last_keys_are_elsewhere_is_told() -> None:
    """Who goes on with a state that step has replaced by a larger one lacks its newest key."""
    module = AttentionConfig(heads=2).build(16)
    with torch.no_grad():
        _, state = module(torch.randn(1, 6, 16))
        module.step(torch.randn(1, 16), state.with_room(1))
        with pytest.raises(ValueError, match="state has length 7 and 6 slots"):
            state.with_room(1)


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_state_of_another_block_is_told() -> None:
    module, u = AttentionConfig(heads=2, window=4).build(16), torch.randn(1, 16)
    others = (
        AttentionConfig(heads=2, window=8),
        AttentionConfig(heads=4, window=4),
        AttentionConfig(heads=2, head_dim=4),
    )
    for other in others:
        state = other.build(16).init_state(1)
        with pytest.raises(ValueError, match="keys of state has"):
            module.step(u, state)
        with pytest.raises(ValueError, match="keys of state has"):
            module(u[:, None], state)


@pytest.mark.parametrize("window", [None, 3])
def test_a_step_can_be_differentiated(window: int | None) -> None:
    module = AttentionConfig(heads=2, window=window).build(16).double()
    u = torch.randn(1, 6, 16, dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(module(u)[0][:, -1].square().sum(), u)
    _, state = module(u[:, :5])
    (stepped,) = torch.autograd.grad(module.step(u[:, 5], copied(state).with_room(1)).square().sum(), u)
    assert difference(stepped, whole) < 1e-12
