"""The Mamba-1 block against its equations as plain loops: channel by channel, token by token."""

import itertools
import math
import re
from typing import Any

import pytest
import torch
from layer_examples import OFFSETS, copied, difference, disturb, state_difference, worst_of_ways
from torch import Tensor

from statedual.layers import Mamba1, Mamba1Config, Mamba1State

D_MODEL, TIME = 4, 37

CASES: dict[str, dict[str, Any]] = {
    "released": {},
    "dt_rank": {"dt_rank": 3},
    "one_state": {"d_state": 1},
    "narrow": {"expand": 1},
    "wide": {"expand": 3, "d_state": 5},
    "no_conv": {"conv_width": 0},
    "conv_of_one": {"conv_width": 1},
    "conv_without_bias": {"conv_width": 2, "conv_bias": False},
    "bias": {"bias": True},
    "other_steps": {"dt_init": (0.5, 2.0), "dt_floor": 1.0},
}
every_case = pytest.mark.parametrize("case", CASES)


def block(case: str, d_model: int = D_MODEL, **more: Any) -> Mamba1:
    module = Mamba1(d_model, Mamba1Config(**{"d_state": 4, **CASES[case], **more})).double()
    disturb(module)
    return module


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def plain(module: Mamba1, u: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence u (time, model); returns y and the last states (channels, state)."""
    config = module.config
    channels, n = config.expand * module.d_model, config.d_state
    rank = config.dt_rank or math.ceil(module.d_model / 16)
    A = -torch.exp(module.A_log)
    states = [torch.zeros(n, dtype=u.dtype) for _ in range(channels)]
    projected = [module.in_proj.weight @ token + (module.in_proj.bias if config.bias else 0) for token in u]
    ys = []
    for t, row in enumerate(projected):
        x, z = row[:channels], row[channels:]  # x first, the other way round than Mamba-2
        if config.conv_width:
            x = module.conv1d.bias if config.conv_bias else torch.zeros(channels, dtype=u.dtype)
            for back in range(min(config.conv_width, t + 1)):
                tap = module.conv1d.weight[:, 0, config.conv_width - 1 - back]
                x = x + tap * projected[t - back][:channels]
        x = silu(x)
        low_rank, b, c = torch.split(module.x_proj.weight @ x, [rank, n, n])
        dt = torch.log1p(torch.exp(module.dt_proj.weight @ low_rank + module.dt_proj.bias))
        y = []
        for d in range(channels):
            states[d] = torch.exp(dt[d] * A[d]) * states[d] + dt[d] * b * x[d]
            y.append(states[d] @ c + module.D[d] * x[d])
        ys.append(module.out_proj.weight @ (torch.stack(y) * silu(z)) + (module.out_proj.bias if config.bias else 0))
    return torch.stack(ys), torch.stack(states)


@every_case
def test_the_block_is_its_equations_forward_and_backward(case: str) -> None:
    module = block(case)
    u = torch.randn(2, 17, D_MODEL, dtype=torch.float64, requires_grad=True)
    weights, state_weights = torch.randn(17, D_MODEL, dtype=torch.float64), torch.randn_like(module.A_log)
    y, state = module(u)
    truths = [plain(module, row) for row in u]
    assert difference(y, torch.stack([truth[0] for truth in truths])) < 1e-12
    assert difference(state.ssm, torch.stack([truth[1] for truth in truths])) < 1e-12
    leaves = {"u": u, **dict(module.named_parameters())}
    got = torch.autograd.grad((y * weights).sum() + (state.ssm * state_weights).sum(), leaves.values())
    wanted = torch.autograd.grad(
        sum((one * weights).sum() + (last * state_weights).sum() for one, last in truths), leaves.values()
    )
    for name, one, other in zip(leaves, got, wanted, strict=True):
        assert difference(one, other) < 1e-10, name


@every_case
def test_cut_packed_and_step_by_step_are_one_pass(case: str) -> None:
    with torch.no_grad():
        found = worst_of_ways(block(case), torch.randn(2, TIME, D_MODEL, dtype=torch.float64))
    assert max(found.values()) < 1e-12, found


def test_packed_sequences_have_the_gradients_of_each_by_itself() -> None:
    module = block("released")
    u = torch.randn(1, TIME, D_MODEL, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(1, TIME, D_MODEL, dtype=torch.float64)
    leaves = [u, *module.parameters()]
    got = torch.autograd.grad((module(u, None, torch.tensor(OFFSETS))[0] * weights).sum(), leaves)
    pieces = [plain(module, u[0, i:j])[0] for i, j in itertools.pairwise(OFFSETS) if i < j]
    wanted = torch.autograd.grad((torch.cat(pieces) * weights[0]).sum(), leaves)
    for one, other in zip(got, wanted, strict=True):
        assert difference(one, other) < 1e-10


def test_a_state_carries_gradients() -> None:
    module = block("released")
    u = torch.randn(1, 20, D_MODEL, dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(module(u)[0][:, 12:].square().sum(), u)
    _, state = module(u[:, :12])
    (cut,) = torch.autograd.grad(module(u[:, 12:], state)[0].square().sum(), u)
    assert difference(cut, whole) < 1e-12


def test_the_gradient_of_a_step() -> None:
    """Of one token behind a state that carries gradients itself."""
    module = block("released")
    u = torch.randn(1, 6, D_MODEL, dtype=torch.float64, requires_grad=True)
    leaves = [u, *module.parameters()]
    got = torch.autograd.grad(module.step(u[:, 5], copied(module(u[:, :5])[1])).square().sum(), leaves)
    wanted = torch.autograd.grad(plain(module, u[0])[0][5].square().sum(), leaves)
    for one, other in zip(got, wanted, strict=True):
        assert difference(one, other) < 1e-10


def test_a_step_writes_into_the_state_it_was_given() -> None:
    module = block("released")
    cache = Mamba1State(*(torch.cat([t, t]) for t in module.init_state(2)))  # rows 1 and 3 of four
    state = Mamba1State(*(t[1::2] for t in cache))
    u = torch.randn(2, 5, D_MODEL, dtype=torch.float64)
    with torch.no_grad():
        for t in range(5):
            module.step(u[:, t], state)
        assert state_difference(state, module(u)[1]) < 1e-12
    for tensor in cache:
        assert tensor[1::2].any()
        assert not tensor[0::2].any()


def test_prefill_without_gradients_and_steps_with_them() -> None:
    module = block("released")
    u = torch.randn(1, 7, D_MODEL, dtype=torch.float64)
    with torch.no_grad():
        _, state = module(u[:, :5])
    walked = torch.stack([module.step(u[:, t], state) for t in (5, 6)], 1)
    assert walked.requires_grad
    assert difference(walked[0], plain(module, u[0])[0][5:]) < 1e-12


@pytest.mark.parametrize("case", ["released", "bias", "no_conv"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close_and_its_states_are_float32(case: str, dtype: torch.dtype) -> None:
    """Against the truth of the rounded numbers: forward, steps and the gradient as a whole within 1e-2."""
    half, exact = block(case, 32).to(dtype), block(case, 32)
    exact.load_state_dict({name: value.double() for name, value in half.state_dict().items()})
    u, weights = torch.randn(2, TIME, 32).to(dtype), torch.randn(2, TIME, 32).to(dtype)
    y, state = half(u)
    truth, truth_state = exact(u.double())
    assert y.dtype == state.conv.dtype == half.init_state(1).conv.dtype == dtype
    assert state.ssm.dtype == half.init_state(1).ssm.dtype == torch.float32
    assert difference(y, truth) < 1e-2
    assert difference(state.ssm, truth_state.ssm) < 1e-2
    got = torch.autograd.grad(y, list(half.parameters()), weights)
    wanted = torch.autograd.grad(truth, list(exact.parameters()), weights.double())
    assert difference(*(torch.cat([t.double().flatten() for t in grads]) for grads in (got, wanted))) < 1e-2
    with torch.no_grad():
        walked = half.init_state(2)
        steps = torch.stack([half.step(u[:, t], walked) for t in range(TIME)], 1)
    assert steps.dtype == dtype
    assert difference(steps, truth) < 1e-2


def test_decays_keep_float32_under_half_and_follow_to_double() -> None:
    module = Mamba1(D_MODEL)
    names = ("A_log", "D", "dt_proj.bias")
    with torch.no_grad():
        module.D.add_(1e-7)
    before = {name: module.get_parameter(name).clone() for name in names}
    module.to(torch.bfloat16).half().bfloat16()
    for name, value in before.items():
        assert torch.equal(module.get_parameter(name), value), name  # not merely float32: no digit was lost
    others = {name: p.dtype for name, p in module.named_parameters() if name not in names}
    assert len(others) == 6
    assert set(others.values()) == {torch.bfloat16}
    assert {p.dtype for p in module.double().parameters()} == {torch.float64}


def test_autocast_reaches_the_projections_and_not_the_recurrence() -> None:
    module = Mamba1(32)
    disturb(module)
    u = torch.randn(2, 40, 32)
    with torch.no_grad():
        y, state = module(u)
        with torch.autocast("cpu", torch.bfloat16):
            y_cast, state_cast = module(u)
            token = module.step(u[:, 0], module.init_state(2))
    assert (y_cast.dtype, state_cast.conv.dtype, state_cast.ssm.dtype) == (
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    )
    assert 0 < difference(y_cast, y) < 1e-2
    assert difference(state_cast.ssm, state.ssm) < 1e-2
    assert difference(token, y[:, 0]) < 1e-2


def test_small_steps_keep_their_digits_in_half_precision() -> None:
    """dt near 0.001 is softplus(-6.9): its bias would be off by 1% in bfloat16, and A_log = 2.003 would be 2."""
    module = Mamba1(32)
    with torch.no_grad():
        module.dt_proj.weight.zero_()
        module.dt_proj.bias.fill_(math.log(math.expm1(1.003e-3)))
        module.A_log.fill_(2.003)
        module.x_proj.weight.zero_()
        state = Mamba1State(torch.zeros(1, 3, 64), torch.ones(1, 64, 16))
        _, after = module.bfloat16()(torch.randn(1, 100, 32).bfloat16(), state)
    truth = math.exp(-100 * 1.003e-3 * math.exp(2.003))
    torch.testing.assert_close(after.ssm, torch.full((1, 64, 16), truth), rtol=1e-5, atol=0)


def test_lengths_zero_and_shorter_than_the_convolution() -> None:
    module = block("released")
    nothing, state = module(torch.zeros(2, 0, D_MODEL, dtype=torch.float64))
    assert nothing.shape == (2, 0, D_MODEL)
    assert state_difference(state, module.init_state(2)) == 0.0
    _, short = module(torch.randn(2, 2, D_MODEL, dtype=torch.float64))
    assert (short.conv[:, 0] == 0).all()
    assert (short.conv[:, 1:] != 0).all()
    none, states = module(torch.zeros(1, 0, D_MODEL, dtype=torch.float64), None, torch.tensor([0]))
    assert none.shape == (1, 0, D_MODEL)
    assert [t.shape[0] for t in states] == [0, 0]


def test_a_state_does_not_hold_the_sequence_in_memory() -> None:
    module = block("released")
    for offsets in (None, torch.tensor([0, 200, 500])):
        _, state = module(torch.randn(1, 500, D_MODEL, dtype=torch.float64), None, offsets)
        for tensor in state:
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_names_shapes_and_beginnings_of_parameters() -> None:
    """Those of the released checkpoints; the step sizes and decays they begin with."""
    torch.manual_seed(1)
    module = Mamba1Config(bias=True).build(40)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "A_log": (80, 16),
        "D": (80,),
        "in_proj.weight": (160, 40),
        "in_proj.bias": (160,),
        "conv1d.weight": (80, 1, 4),
        "conv1d.bias": (80,),
        "x_proj.weight": (3 + 32, 80),
        "dt_proj.weight": (80, 3),
        "dt_proj.bias": (80,),
        "out_proj.weight": (40, 80),
        "out_proj.bias": (40,),
    }
    for _ in range(2):
        torch.testing.assert_close(module.A_log.exp(), torch.arange(1.0, 17).expand(80, 16))
        assert torch.equal(module.D, torch.ones(80))
        dt = torch.nn.functional.softplus(module.dt_proj.bias)
        assert 0.99e-3 < dt.min() < 2e-3
        assert 0.05 < dt.max() < 0.1001
        assert 0.5 < module.dt_proj.weight.abs().max() <= 3**-0.5
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1.0)
        module.reset_parameters()
    assert Mamba1(4, Mamba1Config(dt_rank=7)).dt_proj.weight.shape == (8, 7)
    assert [name for name, _ in Mamba1(4, Mamba1Config(conv_width=0)).conv1d.named_parameters()] == []


def test_it_can_be_made_on_meta() -> None:
    with torch.device("meta"):
        module = Mamba1(D_MODEL)
    y, state = module(torch.zeros(2, 5, D_MODEL, device="meta"))
    assert (y.shape, state.ssm.shape) == ((2, 5, D_MODEL), (2, 2 * D_MODEL, 16))
    module.to_empty(device="cpu").reset_parameters()
    torch.testing.assert_close(module.A_log[3].exp(), torch.arange(1.0, 17))


@pytest.mark.usefixtures("unchecked_shapes")
def test_compiles_whole_in_prefill_and_step() -> None:
    torch.compiler.reset()
    module = block("released").float()
    u = torch.randn(2, 9, D_MODEL)
    with torch.no_grad():
        y, state = module(u)
        y_compiled, state_compiled = torch.compile(module, fullgraph=True, backend="aot_eager")(u)
        assert difference(y_compiled, y) < 1e-5
        next_compiled = torch.compile(module.step, fullgraph=True, backend="aot_eager")(u[:, 0], state_compiled)
        assert difference(next_compiled, module.step(u[:, 0], state)) < 1e-5
        assert state_difference(state_compiled, state) < 1e-5


@pytest.mark.usefixtures("unchecked_shapes")
def test_packed_sequences_compile_whole_and_without_recompilation() -> None:
    torch.compiler.reset()
    module = block("released").float()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    stance = "default"
    # Six sequences, and nothing else is six: the compiler takes equal sizes of a first call for equal ever after.
    for offsets in ((0, 2, 2, 7, 9, 11, 11), (0, 5, 9, 9, 14, 17, 17, 19)):
        u, state = torch.randn(1, offsets[-1], D_MODEL), module.init_state(len(offsets) - 1)
        with torch.no_grad(), torch.compiler.set_stance(stance):
            y, after = compiled(u, state, torch.tensor(offsets))
            wanted, wanted_after = module(u, state, torch.tensor(offsets))
        assert difference(y, wanted) < 1e-5
        assert state_difference(after, wanted_after) < 1e-5
        stance = "fail_on_recompile"


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"expand": 0}, "expand is 0, expected a positive integer"),
        ({"d_state": 2.0}, "d_state is 2.0, expected a positive integer"),
        ({"dt_rank": 0}, "dt_rank is 0, expected a positive integer"),
        ({"dt_rank": "auto"}, "dt_rank is 'auto', expected a positive integer"),
        ({"conv_width": -1}, "conv_width is -1, expected a positive integer"),
        ({"conv_width": 2.5}, "conv_width is 2.5, expected a positive integer"),
        ({"dt_init": (0.1, 0.01)}, "dt_init is (0.1, 0.01), expected (low, high)"),
        ({"dt_init": 0.1}, "dt_init is 0.1, expected (low, high)"),
    ],
)
def test_a_choice_that_cannot_be_is_an_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Mamba1Config(**values)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_is_an_error() -> None:
    with pytest.raises(ValueError, match="d_model is 0, expected a positive integer"):
        Mamba1(0)
    module = block("released")
    u = torch.zeros(2, 5, D_MODEL, dtype=torch.float64)
    with pytest.raises(ValueError, match="state has rows 3"):
        module(u, module.init_state(3))
    with pytest.raises(ValueError, match="state has rows 2"):
        module(u[:1], module.init_state(2))
    with pytest.raises(ValueError, match=r"state has rows 1 .*expected 2"):
        module(u[:1], module.init_state(1), torch.tensor([0, 2, 5]))
    with pytest.raises(ValueError, match="cu_seqlens was given with batch 2, expected batch 1"):
        module(u, None, torch.tensor([0, 2, 5]))
    with pytest.raises(ValueError, match="state has rows 3"):
        module.step(u[:, 0], module.init_state(3))
    with pytest.raises(ValueError, match="initial_state has state 5"):
        module(u, Mamba1State(module.init_state(2).conv, torch.zeros(2, 2 * D_MODEL, 5, dtype=torch.float64)))
