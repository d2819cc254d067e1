"""The Mamba-2 block against its equations as plain loops, for every axis of section 7."""

import math
from typing import Any

import pytest
import torch
from layer_examples import difference, disturb, state_difference, worst_of_ways
from torch import Tensor

from statedual import feature_maps
from statedual.layers import HEAD_PATTERNS, Mamba2, Mamba2Config

D_MODEL, TIME = 32, 37

CASES: dict[str, dict[str, Any]] = {
    "released": {},
    **HEAD_PATTERNS,
    "grouped": {"heads_b": 2, "heads_c": 2},
    "mixed_groups": {"heads_x": 2, "heads_b": 1, "heads_c": 4},
    "sequential": {"projections": "sequential"},
    "sequential_one_x": {"projections": "sequential", "heads_x": 1, "feature_map": ()},
    "no_norm": {"norm": "none"},
    "norm_before_gate": {"norm_before_gate": True},
    "norm_in_four": {"norm_groups": 4},
    "no_conv": {"conv_width": 0},
    "conv_of_one": {"conv_width": 1},
    "conv_without_bias": {"conv_width": 2, "conv_bias": False},
    "bias": {"bias": True},
    "channel_skip": {"skip": "channel"},
    "dt_limit": {"dt_limit": (0.02, 0.05)},
    "init_states": {"learnable_init_states": True},
    "mlp_inside": {"d_ssm": 32},
    "no_maps": {"feature_map": (), "feature_map_x": ()},
    "relu_normalised": {"feature_map": ("relu",), "normaliser": True},
    "exp_normalised_with_states": {"feature_map": ("exp",), "normaliser": True, "learnable_init_states": True},
    "elu": {"feature_map": ("elu",), "feature_map_x": ("relu",)},
    "cosformer": {"feature_map": ("cosformer",), "cosformer_length": 50},
    "random_features": {"feature_map": ("random_features",)},
    "performer": {"feature_map": ("positive_random_features",), "normaliser": True},
    "based": {"feature_map": ("swish", "taylor")},
    "layer_norm": {"feature_map": ("layer_norm",)},
    "rebased": {"feature_map": ("squared_layer_norm",)},
}


def block(case: str, **more: Any) -> Mamba2:
    module = Mamba2(D_MODEL, Mamba2Config(**{"d_state": 4, "head_dim": 16, **CASES[case], **more})).double()
    disturb(module)
    return module


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def map_of(module: Mamba2, which: str, values: Tensor, t: int) -> Tensor:
    """The feature map on one vector at position t, by the functions of sec. 4.1.3."""
    maps = module.map_x if which == "x" else module.map_bc
    for index, name in enumerate(maps.names):
        if name == "cosformer":
            angle = math.pi * t / (2 * module.config.cosformer_length)
            values = torch.cat([values.relu() * math.cos(angle), values.relu() * math.sin(angle)])
        elif name.endswith("random_features"):
            values = getattr(feature_maps, name)(values, getattr(maps, f"projection{index}"))
        elif name.endswith("layer_norm"):
            values = getattr(feature_maps, name)(values, getattr(maps, f"weight{index}"), getattr(maps, f"bias{index}"))
        else:
            values = getattr(feature_maps, name)(values)
    return values


def plain(module: Mamba2, u: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence u (time, model) token by token and head by head; returns y and the last states."""
    config = module.config
    heads, p, n = module.heads, config.head_dim, config.d_state
    counts = {"x": config.heads_x or heads, "b": config.heads_b or heads, "c": config.heads_c or heads}
    inner, d_ssm = config.expand * D_MODEL, config.d_ssm or config.expand * D_MODEL
    d_mlp = inner - d_ssm
    rows = u @ module.in_proj.weight.T + (module.in_proj.bias if config.bias else 0)
    z0, x0, z, rest = rows.split([d_mlp, d_mlp, d_ssm, rows.shape[1] - 2 * d_mlp - d_ssm], 1)
    channels = module.conv1d.channels
    convolved = rest[:, :channels].clone()
    if config.conv_width:
        for t in range(len(u)):
            taps = torch.zeros(channels, dtype=u.dtype)
            for j in range(config.conv_width):
                source = t - (config.conv_width - 1) + j
                if source >= 0:
                    taps = taps + module.conv1d.weight[:, 0, j] * rest[source, :channels]
            convolved[t] = taps + (module.conv1d.bias if config.conv_bias else 0)
    state = [
        torch.zeros(p + config.normaliser, module.map_bc.features, dtype=u.dtype)
        if module.init_states is None
        else module.init_states[h].clone()
        for h in range(heads)
    ]
    out = []
    for t in range(len(u)):
        x = convolved[t, : counts["x"] * p]
        xs = [map_of(module, "x", part, t) for part in x.split(p)]
        if config.projections == "sequential":
            b, c, dt = (module.x_proj.weight @ torch.cat(xs)).split([counts["b"] * n, counts["c"] * n, heads])
        else:
            _, b, c = convolved[t].split([counts[k] * w for k, w in (("x", p), ("b", n), ("c", n))])
            dt = rest[t, channels:]
        bs = [map_of(module, "b", part, t) for part in b.split(n)]
        cs = [map_of(module, "c", part, t) for part in c.split(n)]
        ys = []
        for h in range(heads):
            step = torch.log1p(torch.exp(dt[h] + module.dt_bias[h])).clamp(*config.dt_limit)
            x_h, b_h, c_h = (parts[h // (heads // counts[k])] for k, parts in (("x", xs), ("b", bs), ("c", cs)))
            value = torch.cat([x_h, torch.ones(1, dtype=u.dtype)]) if config.normaliser else x_h
            state[h] = torch.exp(-step * module.A_log[h].exp()) * state[h] + step * torch.outer(value, b_h)
            y = state[h] @ c_h
            if config.normaliser:
                y = y[:-1] / y[-1].clamp(min=1e-12)
            skip = module.D[h] if config.skip == "head" else module.D[h * p : (h + 1) * p]
            ys.append(y + skip * x_h)
        y, gate = torch.cat(ys), silu(z[t])
        if config.norm == "none":
            y = y * gate
        else:
            if not config.norm_before_gate:
                y = y * gate
            groups = config.norm_groups or counts["b"]
            parts = [part / torch.sqrt((part**2).mean() + config.norm_eps) for part in y.split(d_ssm // groups)]
            y = torch.cat(parts) * module.norm.weight
            if config.norm_before_gate:
                y = y * gate
        y = torch.cat([silu(z0[t]) * x0[t], y])
        out.append(module.out_proj.weight @ y + (module.out_proj.bias if config.bias else 0))
    return torch.stack(out), torch.stack(state)


@pytest.mark.parametrize("case", CASES)
def test_the_block_is_its_equations_forward_and_backward(case: str) -> None:
    module = block(case)
    u = torch.randn(2, TIME, D_MODEL, dtype=torch.float64)
    weights = torch.randn(TIME, D_MODEL, dtype=torch.float64)
    y, state = module(u)
    truths = [plain(module, row) for row in u]
    assert difference(y, torch.stack([truth[0] for truth in truths])) < 1e-12
    assert difference(state.ssm, torch.stack([truth[1] for truth in truths])) < 1e-12
    parameters = dict(module.named_parameters())
    got = torch.autograd.grad((y * weights).sum(), parameters.values())
    wanted = torch.autograd.grad(sum((truth[0] * weights).sum() for truth in truths), parameters.values())
    for name, one, other in zip(parameters, got, wanted, strict=True):
        assert difference(one, other) < 1e-10, name


@pytest.mark.parametrize("case", CASES)
def test_cut_packed_and_step_by_step_are_one_pass(case: str) -> None:
    with torch.no_grad():
        found = worst_of_ways(block(case), torch.randn(2, TIME, D_MODEL, dtype=torch.float64))
    assert max(found.values()) < 1e-12, found


@pytest.mark.parametrize("case", ["released", "sequential", "relu_normalised", "mlp_inside"])
def test_half_precision_stays_close_and_its_states_are_float32(case: str) -> None:
    module = block(case, d_state=16).float()
    u = torch.randn(2, TIME, D_MODEL)
    with torch.no_grad():
        truth, _ = module.double()(u.bfloat16().double())
        half = module.bfloat16()
        rounded = [parameter.double() for parameter in half.parameters()]
        y, state = half(u.bfloat16())
        exact = block(case, d_state=16)
        for parameter, value in zip(exact.parameters(), rounded, strict=True):
            parameter.copy_(value)
        truth, truth_state = exact(u.bfloat16().double())
    assert y.dtype == state.conv.dtype == torch.bfloat16
    assert state.ssm.dtype == torch.float32
    assert difference(y, truth) < 1e-2
    assert difference(state.ssm, truth_state.ssm) < 1e-2


def test_decays_keep_float32_under_autocast_and_under_half() -> None:
    module = Mamba2(D_MODEL, Mamba2Config(head_dim=16, learnable_init_states=True))
    before = {name: getattr(module, name).clone() for name in module.float32_parameters}
    module.to(torch.bfloat16).half().bfloat16()
    for name, value in before.items():
        assert torch.equal(getattr(module, name), value), name  # not merely float32: no digit was lost
    assert module.in_proj.weight.dtype == torch.bfloat16
    module.double()
    assert module.A_log.dtype == torch.float64
    module = Mamba2(D_MODEL, Mamba2Config(head_dim=16))
    u = torch.randn(1, 40, D_MODEL)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y, state = module(u)
    assert state.ssm.dtype == torch.float32
    assert difference(y, module(u)[0]) < 1e-2


def test_a_head_pattern_is_a_grouped_one_with_its_copies_spelled_out() -> None:
    """Multi-contract (eq:multiquery): x and b shared. Repeating their rows of in_proj gives the multi-head block."""
    shared = block("MCS", conv_width=0, norm_groups=1)
    full = block("MHS", conv_width=0, norm_groups=1)
    heads, p, n = shared.heads, 16, 4
    z, x, b, c, dt = shared.in_proj.weight.split([heads * p, p, n, heads * n, heads])
    with torch.no_grad():
        full.in_proj.weight.copy_(torch.cat([z, x.repeat(heads, 1), b.repeat(heads, 1), c, dt]))
        for name in ("A_log", "dt_bias", "D", "norm.weight", "out_proj.weight"):
            full.get_parameter(name).copy_(shared.get_parameter(name))
        u = torch.randn(2, 9, D_MODEL, dtype=torch.float64)
        assert difference(shared(u)[0], full(u)[0]) < 1e-13


def test_random_features_of_b_and_c_estimate_the_kernel() -> None:
    """phi(c) . phi(b) is near exp(-|b - c|^2 / 2): one projection for both (two would give about 0)."""
    module = Mamba2(D_MODEL, Mamba2Config(head_dim=16, d_state=512, feature_map=("random_features",)))
    b, c = 0.02 * torch.randn(2, 1, 50, 1, 512)
    got = (module.map_bc(b) * module.map_bc(c)).sum(-1)
    assert (got - torch.exp(-(b - c).square().sum(-1) / 2)).abs().max() < 0.15


def test_the_denominator_is_a_column_of_ones() -> None:
    """Sec. 7.3: with the normaliser and without skip, a constant x comes back as itself."""
    module = block("relu_normalised", conv_width=0, feature_map_x=(), norm="none")
    with torch.no_grad():
        module.D.zero_()
        weight = module.in_proj.weight.clone()
        z, x = module.d_ssm, module.widths[0]
        weight[z : z + x] = 0.0
        module.in_proj = torch.nn.Linear(D_MODEL, weight.shape[0]).double()
        module.in_proj.weight.copy_(weight)
        module.in_proj.bias.zero_()
        module.in_proj.bias[z : z + x] = 2.5
        module.out_proj.weight.copy_(torch.eye(module.d_ssm, dtype=torch.float64)[:D_MODEL])
        u = torch.randn(1, 12, D_MODEL, dtype=torch.float64)
        gate = silu(u @ weight[:z].T)[..., :D_MODEL]
        y = module(u)[0] / gate
    b = (u @ weight[z + x : z + x + 4].T).relu()
    c = (u @ weight[z + x + 4 : z + x + 8].T).relu()
    sees = ((c[0] @ b[0].T).tril() > 0).any(1)  # relu may leave a row with no weight at all
    assert sees.sum() >= 8
    assert torch.allclose(y[0, sees], torch.full_like(y[0, sees], 2.5), rtol=1e-10)


def test_a_state_carries_gradients() -> None:
    module = block("released")
    u = torch.randn(1, 20, D_MODEL, dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(module(u)[0][:, 12:].square().sum(), u)
    _, state = module(u[:, :12])
    (cut,) = torch.autograd.grad(module(u[:, 12:], state)[0].square().sum(), u)
    assert difference(cut, whole) < 1e-12


def test_lengths_zero_and_shorter_than_the_convolution() -> None:
    module = block("released")
    nothing, state = module(torch.zeros(2, 0, D_MODEL, dtype=torch.float64))
    assert nothing.shape == (2, 0, D_MODEL)
    assert state_difference(state, module.init_state(2)) == 0.0
    _, short = module(torch.randn(2, 2, D_MODEL, dtype=torch.float64))
    assert (short.conv[:, 0] == 0).all()
    assert (short.conv[:, 1:] != 0).all()


def test_a_state_does_not_hold_the_sequence_in_memory() -> None:
    _, state = block("released")(torch.randn(2, 500, D_MODEL, dtype=torch.float64))
    for tensor in (state.conv, state.ssm):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("which", ["released", "sequential", "cosformer"])
def test_compiles_whole_in_prefill_and_step(which: str) -> None:
    module = block(which).float()
    u = torch.randn(2, 9, D_MODEL)
    with torch.no_grad():
        y, state = module(u)
        y_compiled, state_compiled = torch.compile(module, fullgraph=True, backend="aot_eager")(u)
        assert difference(y_compiled, y) < 1e-5
        next_compiled = torch.compile(module.step, fullgraph=True, backend="aot_eager")(u[:, 0], state_compiled)
        assert difference(next_compiled, module.step(u[:, 0], state)) < 1e-5
        assert state_difference(state_compiled, state) < 1e-5


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"head_dim": 24}, "d_ssm is 64 for d_model 32, expected a multiple of head_dim 24"),
        ({"d_ssm": 128}, "d_ssm is 128"),
        ({"heads_b": 3}, "b has 3 heads, which do not divide"),
        ({"norm_groups": 5}, "norm_groups is 5, expected a divisor"),
        ({"d_state": 0}, "d_state is 0"),
        ({"conv_width": -1}, "conv_width is -1"),
        ({"projections": "both"}, "projections is 'both'"),
        ({"norm": "layer"}, "norm is 'layer'"),
        ({"skip": "all"}, "skip is 'all'"),
        ({"feature_map": "swish"}, "feature_map is 'swish', expected a tuple"),
        ({"feature_map": ("silu",)}, "feature_map is 'silu'"),
        ({"feature_map_x": ("taylor",)}, "feature_map_x is 'taylor'"),
        ({"feature_map": ("random_features",), "d_state": 5}, "expected an even size, got 5"),
        ({"dt_limit": (1.0, 0.5)}, "dt_limit is"),
        ({"dt_limit": (-1.0, 0.5)}, "dt_limit is"),
        ({"dt_init": 0.1}, "dt_init is 0.1"),
    ],
)
def test_a_choice_that_cannot_be_is_an_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", "\\(")):
        Mamba2(D_MODEL, Mamba2Config(**{"head_dim": 16, **values}))


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_state_of_another_batch_is_an_error() -> None:
    module = block("released")
    with pytest.raises(ValueError, match="state has rows 3"):
        module(torch.zeros(2, 5, D_MODEL, dtype=torch.float64), module.init_state(3))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("feature_map", [("swish",), (), ("exp", "layer_norm"), ("random_features",)])
def test_weights_that_may_be_negative_have_no_denominator(feature_map: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="whose products are nonnegative"):
        Mamba2Config(feature_map=feature_map, normaliser=True)


def test_cosformer_ends_where_its_cosines_turn_negative() -> None:
    module = block("cosformer").requires_grad_(False)
    u = torch.randn(1, 51, D_MODEL, dtype=torch.float64)
    _, state = module(u[:, :50])
    message = "position is 50, expected below cosformer_length = 50"
    with pytest.raises(ValueError, match=message):
        module(u)
    with pytest.raises(ValueError, match=message):
        module.step(u[:, 50], state)


def test_feature_maps_are_wide_under_autocast() -> None:
    module = Mamba2(D_MODEL, Mamba2Config(head_dim=16, d_state=64, feature_map=("positive_random_features",)))
    x = torch.randn(1, 9, module.conv1d.channels).bfloat16()
    dt = torch.randn(1, 9, module.heads).bfloat16()
    with torch.no_grad():
        plain = module._ssm_inputs(x, dt, None)
        with torch.autocast("cpu", torch.bfloat16):
            cast = module._ssm_inputs(x, dt, None)
    assert torch.equal(cast.b, plain.b)
    assert torch.equal(cast.c, plain.c)
