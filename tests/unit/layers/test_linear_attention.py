"""Linear attention, retention, GateLoop and Based's Taylor attention against the paper's quadratic form and a loop."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_examples import copied, difference, disturb, worst_of_ways
from torch import Tensor, nn

import statedual
from statedual import Causal, Decay, OneSemiseparable, feature_maps
from statedual.layers import LinearAttention, LinearAttentionConfig

D_MODEL, TIME = 16, 37

CASES: dict[str, LinearAttentionConfig] = {
    "linear_attention": LinearAttentionConfig.linear(4),
    "retention": LinearAttentionConfig.retention(4),
    "gateloop": LinearAttentionConfig.gateloop(4),
    "taylor_attention": LinearAttentionConfig.taylor(4, d_state=3),
    "relu_constant": LinearAttentionConfig(heads=2, d_state=6, head_dim=5, feature_map=("relu",), decay="constant"),
    "exp_input": LinearAttentionConfig(heads=2, d_state=6, feature_map=("exp",), decay="input", gate=True),
    "cosformer": LinearAttentionConfig(heads=4, feature_map=("cosformer",), cosformer_length=60, norm="rms"),
    "performer": LinearAttentionConfig(heads=4, feature_map=("positive_random_features",), rotary=True),
    "random_features": LinearAttentionConfig(heads=2, feature_map=("random_features",), normaliser=False),
    "swish": LinearAttentionConfig(heads=4, feature_map=("swish",), normaliser=False, decay="input", rotary=True),
    "rebased": LinearAttentionConfig(heads=4, d_state=3, feature_map=("squared_layer_norm",)),
    "swish_layer_norm": LinearAttentionConfig(
        heads=1, feature_map=("swish", "layer_norm"), normaliser=False, gate=True
    ),
}
every_case = pytest.mark.parametrize("case", CASES)
# q and k times these powers of d_state in front of the map.
SCALES = {"retention": (-0.5, 0), "gateloop": (-0.5, 0)}
SCALES |= dict.fromkeys(["taylor_attention", "performer", "random_features"], (-0.25, -0.25))


def block(case: str, dtype: torch.dtype = torch.float64) -> LinearAttention:
    module = CASES[case].build(D_MODEL).to(dtype)
    disturb(module)
    return module


def tokens(rows: int, time: int = TIME, dtype: torch.dtype = torch.float64) -> Tensor:
    return 2 * torch.randn(rows, time, D_MODEL, dtype=dtype)


def mapped(module: LinearAttention, x: Tensor) -> Tensor:
    """The feature map of one head's x (time, d_state)."""
    maps = module.feature_map
    for index, name in enumerate(maps.names):
        if name == "cosformer":
            x = feature_maps.cosformer(x, length=module.config.cosformer_length)
        elif name.endswith("random_features"):
            x = getattr(feature_maps, name)(x, getattr(maps, f"projection{index}"))
        elif name.endswith("layer_norm"):
            x = getattr(feature_maps, name)(x, getattr(maps, f"weight{index}"), getattr(maps, f"bias{index}"))
        else:
            x = getattr(feature_maps, name)(x)
    return x


def turned(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    angle = torch.arange(len(x), dtype=x.dtype)[:, None] * 10000 ** (-torch.arange(half, dtype=x.dtype) / half)
    pairs = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pairs.real, pairs.imag], -1)


def quadratic(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | float, normalised: bool) -> Tensor:
    """Y = (L * Q K^T) V, its rows divided by their sum, by the paper's masks (sec. 4.3)."""
    if isinstance(log_a, Tensor):
        mask: Any = OneSemiseparable(log_a)
    else:
        mask = Decay(torch.tensor(math.exp(log_a), dtype=q.dtype)) if log_a else Causal()
    attend = statedual.normalised_attention if normalised else statedual.structured_attention
    return attend(q, k, v, mask, form="quadratic")


def recurrence(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | float, normalised: bool) -> Tensor:
    """S_t = a_t S_{t-1} + v_t outer k_t, z_t = a_t z_{t-1} + k_t; y_t = S_t q_t, over z_t . q_t if normalised."""
    S, z, ys = v.new_zeros(v.shape[1], k.shape[1]), k.new_zeros(k.shape[1]), []
    for t in range(len(q)):
        a = log_a[t].exp() if isinstance(log_a, Tensor) else math.exp(log_a)
        S, z = a * S + torch.outer(v[t], k[t]), a * z + k[t]
        ys.append(S @ q[t] / (z @ q[t]).clamp(min=1e-12) if normalised else S @ q[t])
    return torch.stack(ys)


def plain(case: str, module: LinearAttention, u: Tensor, attend: Callable[..., Tensor] = quadratic) -> Tensor:
    """One sequence u (time, model), head by head."""
    config = module.config
    heads, head_dim = config.heads, config.head_dim or D_MODEL // config.heads
    d_state = config.d_state or D_MODEL // config.heads
    inner = heads * head_dim
    q, k, v, z = (u @ module.in_proj.weight.T).split(
        [heads * d_state, heads * d_state, inner, inner if config.gate else 0], 1
    )
    scale_q, scale_k = (d_state**power for power in SCALES.get(case, (0, 0)))
    ys = []
    for h in range(heads):
        one_q, one_k, one_v = (t.unflatten(1, (heads, -1))[:, h] for t in (q, k, v))
        if config.rotary:
            one_q, one_k = turned(one_q), turned(one_k)
        one_q, one_k = mapped(module, scale_q * one_q), mapped(module, scale_k * one_k)
        log_a: Tensor | float = 0.0
        if config.decay == "constant":
            log_a = math.log(1 - 2 ** (-5 - h))
        elif config.decay == "input":
            log_a = torch.log(1 / (1 + torch.exp(-(u @ module.decay_proj.weight[h] + module.decay_proj.bias[h]))))
        y = attend(one_q, one_k, one_v, log_a, config.normaliser)
        if config.norm == "rms":
            y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.norm.weight
        ys.append(y)
    y = torch.cat(ys, 1)
    if config.gate:
        y = y * z / (1 + torch.exp(-z))
    return y @ module.out_proj.weight.T


@every_case
@pytest.mark.parametrize("attend", [quadratic, recurrence])
def test_one_pass_is_the_formula(case: str, attend: Callable[..., Tensor]) -> None:
    module, u = block(case), tokens(2)
    wanted = torch.stack([plain(case, module, row, attend) for row in u])
    assert difference(module(u)[0], wanted) < 1e-12


@every_case
def test_every_way_is_the_same_function(case: str) -> None:
    module, u = block(case), tokens(2)
    with torch.no_grad():
        ways = worst_of_ways(module, u)
    assert ways.keys() == {"cut", "step", "prefill", "packed"}
    assert max(ways.values()) < 1e-12, ways


@every_case
def test_rows_of_different_length_go_on_together(case: str) -> None:
    """Packed prefill of ragged sequences, then a piece and single tokens of all rows side by side."""
    module, before = block(case), [0, 3, 12]
    u = tokens(3, 20)
    truth = torch.stack([plain(case, module, row) for row in u])

    def piece(tensor: Tensor, start: int, stop: int) -> Tensor:
        return torch.stack([tensor[i, n + start : n + stop] for i, n in enumerate(before)])

    with torch.no_grad():
        _, state = module(torch.cat([u[i, :n] for i, n in enumerate(before)])[None], None, torch.tensor([0, 0, 3, 15]))
        assert state.length.tolist() == before
        y, state = module(piece(u, 0, 5), state)
        assert difference(y, piece(truth, 0, 5)) < 1e-12
        for t in range(5, 8):
            y = module.step(piece(u, t, t + 1)[:, 0], state)
            assert difference(y, piece(truth, t, t + 1)[:, 0]) < 1e-12
    assert state.length.tolist() == [8, 11, 20]


@every_case
def test_gradients_are_those_of_the_formula(case: str) -> None:
    module = block(case)
    u = tokens(1, 12).requires_grad_()
    weight = torch.randn(1, 12, D_MODEL, dtype=torch.float64)
    leaves = [u, *module.parameters()]
    wanted = torch.autograd.grad((plain(case, module, u[0]) * weight[0]).sum(), leaves)
    first, state = module(u[:, :5])
    second, _ = module(u[:, 5:], state)
    for y in (module(u)[0], torch.cat([first, second], 1)):
        got = torch.autograd.grad((y * weight).sum(), leaves)
        assert max(difference(*pair) for pair in zip(got, wanted, strict=True)) < 1e-12


def test_retention_is_the_paper_s() -> None:
    """Queries, keys and values as ``statedual.retention`` takes them, with RetNet's decays 31/32, 63/64, ..."""
    module, u = block("retention"), tokens(2)
    gamma = torch.tensor([31 / 32, 63 / 64, 127 / 128, 255 / 256], dtype=torch.float64)
    q, k, v, z = (t.unflatten(-1, (4, 4)) for t in module.in_proj(u).chunk(4, -1))
    q, k = (torch.stack([torch.stack([turned(x[:, h]) for h in range(4)], 1) for x in t]) for t in (q, k))
    y = statedual.retention(q / 2, k, v, gamma)
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.norm.weight
    wanted = module.out_proj((y * nn.functional.silu(z)).flatten(2))
    assert difference(module(u)[0], wanted) < 1e-12


def test_taylor_attention_is_near_softmax_attention() -> None:
    """1 + x + x^2 / 2 for exp(x), x = q . k / sqrt(d_state): small scores are softmax's up to their third power."""
    module, u = LinearAttentionConfig.taylor(4, d_state=4).build(D_MODEL).double(), 0.1 * tokens(1)
    q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in module.in_proj(u).chunk(3, -1))
    attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    wanted = module.out_proj(attended.transpose(1, 2).flatten(2))
    largest = (q @ k.mT).abs().max() / 2
    assert 1e-6 < difference(module(u)[0], wanted) < largest**3 / 2 < 0.05


def test_slow_decays_keep_their_digits() -> None:
    """1 - 2^(-5-h) of the 20th head on is 1 in float32; its logarithm is not 0."""
    module = LinearAttentionConfig.retention(24).build(48)
    log_a = module._log_decays(torch.zeros(1, 1, 24, 2), None)[0, 0]
    wanted = torch.log1p(-(2.0 ** (-5 - torch.arange(24).double())))
    assert log_a.dtype == torch.float32
    assert ((log_a.double() / wanted - 1).abs() < 1e-6).all()


@every_case
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_other_dtypes(case: str, dtype: torch.dtype, bound: float) -> None:
    """The output in the dtype of the parameters; the state in float32; forward and steps."""
    module, u = block(case, dtype), tokens(2, dtype=dtype)
    wide = block(case)
    wide.load_state_dict(module.state_dict())
    truth = torch.stack([plain(case, wide, row) for row in u.double()])
    with torch.no_grad():
        first, state = module(u[:, :20])
        steps = [module.step(u[:, t], state) for t in range(20, TIME)]
    y = torch.cat([first, torch.stack(steps, 1)], 1)
    assert y.dtype == dtype
    for kept in (state, module.init_state(2)):
        assert (kept.ssm.dtype, kept.length.dtype) == (torch.float32, torch.int64)
    assert difference(y, truth) < bound


def test_float64_states_of_a_float64_module() -> None:
    module = block("retention")
    assert module.init_state(1).ssm.dtype == module(tokens(1))[1].ssm.dtype == torch.float64


@every_case
@pytest.mark.parametrize("autocast", [False, True])
def test_decays_and_features_keep_their_digits(case: str, autocast: bool) -> None:
    """float32 decays, a float32 v where there is a division to come, and features of q as without autocast."""
    module, u = block(case, torch.bfloat16), tokens(1, dtype=torch.bfloat16)
    if autocast:
        module, u = module.float(), u.float()
    where = torch.arange(TIME)[None]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        v, log_a, _, q, z = module._ssm_inputs(u, where)
        projected = module.in_proj(u)
    assert (log_a.dtype, z.dtype) == (torch.float32, torch.bfloat16)
    assert v.dtype == (torch.float32 if module.config.normaliser else torch.bfloat16)
    if not module.config.rotary:
        plain_q = projected[..., : module.heads * module.d_state].unflatten(-1, (module.heads, -1))
        plain_q = plain_q * module.d_state ** SCALES.get(case, (0, 0))[0]
        assert torch.equal(q, module.feature_map(plain_q, where))
    if module.decay_proj is not None:
        gate = u.double() @ module.decay_proj.weight.double().T + module.decay_proj.bias.double()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            rounded = module.decay_proj(u)
        assert rounded.dtype == torch.bfloat16
        assert difference(rounded, gate) < 1e-2
        assert difference(log_a, nn.functional.logsigmoid(rounded.double())) < 1e-5


@every_case
def test_under_autocast(case: str) -> None:
    """Projections in bfloat16; decays, states, norms in float32: as near to the truth as a bfloat16 module is."""
    module, u = block(case, torch.bfloat16).float(), tokens(2, dtype=torch.bfloat16).float()
    truth = torch.stack([plain(case, module, row) for row in u])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        first, state = module(u[:, :20])
        assert state.ssm.dtype == torch.float32
        steps = [module.step(u[:, t], state) for t in range(20, TIME)]
    assert difference(torch.cat([first, torch.stack(steps, 1)], 1), truth) < 1e-2


@every_case
def test_no_tokens(case: str) -> None:
    module, u = block(case), tokens(2, 5)
    y, state = module(u[:, :0])
    assert y.shape == (2, 0, D_MODEL)
    for got, wanted in zip(state, module.init_state(2), strict=True):
        assert torch.equal(got, wanted)
    _, before = module(u)
    y, after = module(u[:, :0], before)
    assert y.shape == (2, 0, D_MODEL)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new)
        assert old.data_ptr() != new.data_ptr()  # a step would change both
    y, state = module(u[:1, :0], None, torch.tensor([0]))
    assert (y.shape, state.ssm.shape[0], state.length.shape[0]) == ((1, 0, D_MODEL), 0, 0)


def test_a_step_is_in_place() -> None:
    module, u = block("linear_attention"), tokens(2)
    state = module.init_state(2)
    places = [tensor.data_ptr() for tensor in state]
    module.step(u[:, 0], state)
    assert [tensor.data_ptr() for tensor in state] == places
    assert state.length.tolist() == [1, 1]
    assert state.ssm.any()


class OneStep(nn.Module):
    def __init__(self, module: LinearAttention) -> None:
        super().__init__()
        self.module = module

    def forward(self, u: Tensor, state: Any) -> Tensor:
        return self.module.step(u, state)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("case", ["retention", "gateloop", "taylor_attention", "cosformer"])
@pytest.mark.parametrize("how", ["compile", "export"])
def test_a_step_is_one_graph(case: str, how: str) -> None:
    module, u = block(case), tokens(2, 8)
    with torch.no_grad():
        truth, _ = module(u)
        state = module.init_state(2)
        step = OneStep(module)
        if how == "export":
            step = torch.export.export(step, (u[:, 0], copied(state))).module()
        else:
            step = torch.compile(step, fullgraph=True, backend="aot_eager")
        for t in range(8):
            with torch._dynamo.config.patch(error_on_recompile=t > 0):
                assert difference(step(u[:, t], state), truth[:, t]) < 1e-12
    assert state.length.tolist() == [8, 8]


def test_parameters() -> None:
    def shapes(config: LinearAttentionConfig) -> dict[str, tuple[int, ...]]:
        return {name: tuple(p.shape) for name, p in config.build(D_MODEL).named_parameters()}

    assert shapes(LinearAttentionConfig.linear(4)) == {"in_proj.weight": (48, 16), "out_proj.weight": (16, 16)}
    assert shapes(LinearAttentionConfig.retention(4)) == {
        "in_proj.weight": (64, 16),
        "norm.weight": (4,),
        "out_proj.weight": (16, 16),
    }
    assert shapes(LinearAttentionConfig.gateloop(4)) == {
        **shapes(LinearAttentionConfig.retention(4)),
        "decay_proj.weight": (4, 16),
        "decay_proj.bias": (4,),
    }
    assert shapes(LinearAttentionConfig.taylor(4)) == {"in_proj.weight": (144, 16), "out_proj.weight": (16, 16)}
    assert LinearAttentionConfig.taylor(4).build(D_MODEL).init_state(2).ssm.shape == (2, 4, 5, 1 + 16 + 256)
    torch.manual_seed(1)
    module = CASES["rebased"].build(D_MODEL)
    assert torch.equal(module.feature_map.weight0, torch.ones(3))
    torch.manual_seed(1)
    assert torch.equal(module.in_proj.weight, nn.Linear(16, 40).weight)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"heads": 0}, "heads is 0, expected a positive integer"),
    "d_state": ({"heads": 1, "d_state": 0}, "d_state is 0, expected a positive integer"),
    "head_dim": ({"heads": 1, "head_dim": -3}, "head_dim is -3, expected a positive integer"),
    "map": ({"heads": 1, "feature_map": ("gelu",)}, "feature_map is 'gelu', expected one of"),
    "decay": ({"heads": 1, "decay": "slow"}, "decay is 'slow', expected one of 'none', 'constant', 'input'"),
    "norm": ({"heads": 1, "norm": "layer"}, "norm is 'layer', expected one of 'none', 'rms'"),
    "identity": ({"heads": 1, "feature_map": ()}, r"feature_map is \(\), expected one that ends with exp, relu, elu"),
    "swish": ({"heads": 1, "feature_map": ("elu", "swish")}, "expected one that ends with .* or use normaliser=False"),
    "odd": ({"heads": 1, "d_state": 3, "rotary": True}, "d_state is 3, expected an even number"),
    "length": ({"heads": 1, "cosformer_length": 0}, "cosformer_length is 0, expected a positive integer"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_configurations(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        LinearAttentionConfig(**options)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_uses() -> None:
    with pytest.raises(ValueError, match="d_model is 18, expected a multiple of the 4 heads; or give d_state"):
        LinearAttentionConfig.linear(4).build(18)
    with pytest.raises(ValueError, match="d_model is 18, expected a multiple of the 4 heads; or give head_dim"):
        LinearAttentionConfig.taylor(4).build(18)
    with pytest.raises(ValueError, match="d_state is 3, expected an even number"):
        LinearAttentionConfig.retention(4).build(12)
    module, u = block("retention", torch.float32), tokens(2, 5, torch.float32)
    with pytest.raises(ValueError, match="expected batch 1"):
        module(u, None, torch.tensor([0, 5]))
    with pytest.raises(ValueError, match=r"state\.length has rows 3 .* expected 2 as in u"):
        module(u, block("linear_attention", torch.float32).init_state(3))
