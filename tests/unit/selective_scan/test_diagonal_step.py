"""``diagonal_ssm_step`` is the recurrence of ``diagonal_ssm``, one token at a time and in place."""

import math
import re
from collections.abc import Iterator

import pytest
import torch
from diagonal_examples import PATHS, example, recurrence
from torch import Tensor
from unit.ssd.ssd_examples import BOUNDS, PATTERNS, Example, error

import statedual
from statedual.selective_scan import diagonal_ssm, diagonal_ssm_step
from statedual.ssd import ssd_step

every_pattern = pytest.mark.parametrize("pattern", PATTERNS)


def tokens(case: Example) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    return zip(*(t.unbind(1) for t in (case.x, case.log_a, case.b, case.c)), strict=True)


def truth(case: Example) -> tuple[Tensor, Tensor]:
    wide = case.double()
    return recurrence(wide.x, wide.log_a, wide.b, wide.c, wide.initial_state)


def step_by_step(case: Example, state: Tensor) -> Tensor:
    """y of every token; ``state`` ends as the last one."""
    ys = []
    for token in tokens(case):
        y, returned = diagonal_ssm_step(state, *token)
        assert returned is state
        ys.append(y)
    return torch.stack(ys, 1)


def test_it_is_a_public_name() -> None:
    assert statedual.diagonal_ssm_step is diagonal_ssm_step


@every_pattern
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("kind", ["mixed", "by_channel"])
def test_steps_are_the_recurrence(kind: str, pattern: str, dtype: torch.dtype) -> None:
    """Every token's output and the state after it; decays of 0, of -inf and between, in one state too."""
    case = example(30, groups=PATTERNS[pattern], batch=2, dtype=dtype, kind=kind)
    assert (case.log_a == -math.inf).any()
    state = case.initial_state.clone()
    storage = state.data_ptr()
    y = step_by_step(case, state)
    wanted, final = truth(case)
    assert y.dtype == dtype
    assert error(y, wanted) < case.bound
    # The state is wide also where its inputs are not, and so is every product that enters it.
    assert error(state, final) < BOUNDS[state.dtype]
    assert state.data_ptr() == storage
    wide = case.double()
    form = diagonal_ssm(wide.x, wide.log_a, wide.b, wide.c, initial_state=wide.initial_state, form="recurrent")
    assert error(y, form.y) < case.bound
    assert error(state, form.final_state) < BOUNDS[state.dtype]


@pytest.mark.parametrize(("heads", "head_dim", "state"), [(5, 1, 3), (1, 1, 1), (2, 7, 1), (2, 8, 5), (4, 0, 2)])
def test_any_sizes(heads: int, head_dim: int, state: int) -> None:
    """head_dim 1 is S6."""
    case = example(9, heads, (heads, 1, 1), batch=2, head_dim=head_dim, state=state)
    walked = case.initial_state.clone()
    y = step_by_step(case, walked)
    for got, wanted in zip((y, walked), truth(case), strict=True):
        assert error(got, wanted) < case.bound


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_the_state_decides_the_precision(dtype: torch.dtype, wide: torch.dtype) -> None:
    """y in the dtype of x; a float64 state loses nothing to inputs of fewer bits."""
    case = example(30, groups=(6, 2, 3), dtype=dtype)
    state = case.initial_state.to(wide, copy=True)
    y = step_by_step(case, state)
    wanted, final = truth(case)
    assert (y.dtype, state.dtype) == (dtype, wide)
    assert error(state, final) < BOUNDS[wide]
    assert error(y, wanted) < max(BOUNDS[wide], case.bound)


@every_pattern
def test_channels_that_forget_keep_the_newest_token_only(pattern: str) -> None:
    """A decay of -inf: h_t = x_t outer b_t there, exactly, even where the state was as large as can be."""
    case = example(1, groups=PATTERNS[pattern], kind="by_channel")
    forget = case.log_a[0, 0] == -math.inf
    assert 0 < forget.sum() < forget.numel()
    state = torch.where(forget.unsqueeze(1), torch.finfo(torch.float32).max, case.initial_state)
    before = state.clone()
    step_by_step(case, state)
    for head in range(6):
        x, b = case.x[0, 0, head * case.x.shape[2] // 6], case.b[0, 0, head * case.b.shape[2] // 6]
        for channel in range(3):
            got, newest = state[0, head, :, channel], x * b[channel]
            if forget[head, channel]:
                assert torch.equal(got, newest)
            else:
                kept = before[0, head, :, channel].double() * case.log_a[0, 0, head, channel].double().exp()
                assert error(got, kept + newest) < 1e-6


VIEWS = {
    "transposed": lambda state: state.mT.contiguous().mT,
    "heads_last": lambda state: state.movedim(1, -1).contiguous().movedim(-1, 1),
    "right_part_of_wider_states": lambda state: torch.cat([torch.ones_like(state), state], -1)[..., 3:],
    "some_heads_of_a_cache": lambda state: torch.cat([state, state], 1)[:, 6:],
    "one_layer_of_a_cache": lambda state: torch.stack([state, state], 2)[:, :, 1],
    "every_other_row": lambda state: torch.stack([state, state], 1).flatten(0, 1)[1::2],
}


@pytest.mark.parametrize("view", VIEWS)
def test_the_state_may_be_any_view(view: str) -> None:
    """It is written where it lies, and nothing beside it."""
    case = example(9, groups=(6, 2, 3), batch=2)
    state = VIEWS[view](case.initial_state.clone())
    cache = state._base
    outside = torch.ones_like(cache).bool()
    outside.as_strided(state.shape, state.stride(), state.storage_offset()).fill_(False)
    beside = cache[outside].clone()
    y = step_by_step(case, state)
    wanted, final = truth(case)
    assert error(y, wanted) < case.bound
    assert error(state, final) < case.bound
    assert torch.equal(cache[outside], beside)


def test_the_inputs_may_be_any_view_and_stay_as_they_are() -> None:
    """As a layer has them: slices of one projection, one c expanded to the batch."""
    case = example(5, groups=(6, 1, 1), batch=2)
    wide = torch.cat([case.x.flatten(2), case.log_a.flatten(2), case.b.flatten(2)], -1)
    before = wide.clone()
    state = case.initial_state.clone()
    sliced = Example(
        x=wide[..., :24].unflatten(-1, (6, 4)),
        log_a=wide[..., 24:42].unflatten(-1, (6, 3)),
        b=wide[..., None, 42:],
        c=case.c[:1].expand(2, -1, -1, -1),
        **{name: getattr(case, name) for name in ("initial_state", "offsets", "grad_y", "grad_final")},
    )
    y = step_by_step(sliced, state)
    wanted, final = truth(sliced)
    assert error(y, wanted) < case.bound
    assert error(state, final) < case.bound
    assert torch.equal(wide, before)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("prefill", [0, 1, 37])
def test_prefill_and_steps_are_one_pass(path: str, dtype: torch.dtype, prefill: int) -> None:
    form, head_dim = PATHS[path]
    case = example(40, groups=(6, 2, 3), batch=2, dtype=dtype, head_dim=head_dim)
    first, rest = (
        Example(*(t[:, part] for t in (case.x, case.log_a, case.b, case.c)), *list(vars(case).values())[4:])
        for part in (slice(prefill), slice(prefill, None))
    )
    y, state = diagonal_ssm(first.x, first.log_a, first.b, first.c, initial_state=case.initial_state, form=form)
    whole = torch.cat([y, step_by_step(rest, state)], 1)
    wanted, final = truth(case)
    assert error(whole, wanted) < case.bound
    assert error(state, final) < BOUNDS[state.dtype]


def test_equal_decays_make_it_the_step_of_ssd() -> None:
    case = example(9, groups=(6, 2, 3), batch=2, dtype=torch.float64)
    one, other = case.initial_state.clone(), case.initial_state.clone()
    for x, log_a, b, c in tokens(case):
        y, _ = diagonal_ssm_step(one, x, log_a[..., :1].expand(-1, -1, 3), b, c)
        wanted, _ = ssd_step(other, x, log_a[..., 0], b, c)
        assert error(y, wanted) < 1e-12
    assert error(one, other) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_does_not_reach_a_step(dtype: torch.dtype) -> None:
    case = example(6, groups=(6, 2, 3), dtype=dtype)
    plain, cast = case.initial_state.clone(), case.initial_state.clone()
    wanted = step_by_step(case, plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        y = step_by_step(case, cast)
    assert y.dtype == dtype
    assert torch.equal(y, wanted)
    assert torch.equal(cast, plain)


@pytest.mark.usefixtures("unchecked_shapes")
def test_equal_decays_near_one_do_not_drift() -> None:
    """20,000 times the same decay: as one float32 number it would be off to the same side at every step."""
    time, logs = 20_000, torch.tensor([-1e-4, -3e-4, -2e-5, -7e-6])
    x, b, c = (torch.rand(time, 1, 1, width) for width in (2, 4, 4))  # positive, so that nothing averages out
    state, ys = torch.zeros(1, 1, 2, 4), torch.empty(time, 2)
    for t in range(time):
        ys[t] = diagonal_ssm_step(state, x[t], logs.view(1, 1, 4), b[t], c[t])[0][0, 0]
    h, decay, wanted = torch.zeros(2, 4, dtype=torch.float64), logs.double().exp(), []
    for x_t, b_t, c_t in zip(*(t[:, 0, 0].double().unbind(0) for t in (x, b, c)), strict=True):
        h = decay * h + torch.outer(x_t, b_t)
        wanted.append(h @ c_t)
    assert error(ys, torch.stack(wanted)) < 1e-5
    for channel in range(4):
        assert error(state[0, 0, :, channel], h[:, channel]) < 1e-5


@pytest.mark.parametrize("kind", ["usual", "mixed"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_gradients_of_a_step(pattern: str, kind: str) -> None:
    """Of one step, to every input and the state before it; nothing comes back through a decay of -inf."""
    case = example(1, groups=PATTERNS[pattern], batch=2, kind=kind, dtype=torch.float64)
    found = []
    for run in (diagonal_ssm_step, recurrence):
        leaves = [t.clone().requires_grad_() for t in case.tensors()]
        *given, state = leaves
        if run is diagonal_ssm_step:
            y, final = diagonal_ssm_step(state * 1, *(t[:, 0] for t in given))
            y = y.unsqueeze(1)
        else:
            y, final = recurrence(*given, state)
        found.append(torch.autograd.grad((y, final), leaves, (case.grad_y, case.grad_final)))
    for got, wanted in zip(*found, strict=True):
        assert error(got, wanted) < case.bound
    assert not found[0][1][case.log_a == -math.inf].any()


def test_a_state_that_would_lose_its_gradient_is_refused() -> None:
    """In place on a leaf, or on what an earlier step's gradient needs: an error, never a wrong gradient."""
    case = example(2, kind="usual")
    state = case.initial_state.clone().requires_grad_()
    with pytest.raises(ValueError, match=re.escape("state is a leaf that requires a gradient, expected one that may")):
        step_by_step(case, state)
    assert torch.equal(state, case.initial_state)
    c = case.c.clone().requires_grad_()
    state = case.initial_state.clone()
    y = step_by_step(Example(**{**vars(case), "c": c, "x": case.x.clone().requires_grad_()}), state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_no_rows() -> None:
    case = example(3, groups=(6, 2, 3), batch=0)
    state = case.initial_state.clone()
    y = step_by_step(case, state)
    assert y.shape == (0, 3, 6, 4)
    assert state.shape == (0, 6, 4, 3)


@pytest.mark.usefixtures("unchecked_shapes")
def test_it_compiles_whole() -> None:
    torch.compiler.reset()
    case = example(2, groups=(6, 2, 3), batch=2)
    one, other = case.initial_state.clone(), case.initial_state.clone()
    compiled = torch.compile(diagonal_ssm_step, fullgraph=True, backend="aot_eager")
    for token in tokens(case):
        torch.testing.assert_close(compiled(one, *token)[0], diagonal_ssm_step(other, *token)[0])
    torch.testing.assert_close(one, other)


def arguments() -> dict[str, Tensor]:
    """state (2, 6, 4, 3), x (2, 6, 4), log_a (2, 6, 3), b and c (2, 2, 3)."""
    return {
        "state": torch.randn(2, 6, 4, 3),
        "x": torch.randn(2, 6, 4),
        "log_a": -torch.rand(2, 6, 3),
        "b": torch.randn(2, 2, 3),
        "c": torch.randn(2, 2, 3),
    }


SHAPES = {
    "log_a of ssd": ("log_a", (2, 6), "log_a has shape (2, 6), expected 3 axes (batch, heads, state)"),
    "log_a time": ("log_a", (2, 1, 6, 3), "log_a has shape (2, 1, 6, 3), expected 3 axes"),
    "log_a batch": ("log_a", (1, 6, 3), "log_a has batch 1 (axis 0 of (1, 6, 3)), expected 2 as in state"),
    "log_a heads": ("log_a", (2, 1, 3), "log_a has heads 1 (axis 1 of (2, 1, 3)), expected 6 as in state"),
    "log_a state": ("log_a", (2, 6, 1), "log_a has state 1 (axis 2 of (2, 6, 1)), expected 3 as in state"),
    "x batch": ("x", (1, 6, 4), "x has batch 1 (axis 0 of (1, 6, 4)), expected 2 as in state"),
    "x time": ("x", (2, 1, 6, 4), "x has shape (2, 1, 6, 4), expected 3 axes (batch, heads_x, head_dim)"),
    "x head_dim": ("x", (2, 6, 1), "x has head_dim 1 (axis 2 of (2, 6, 1)), expected 4 as in state"),
    "x heads": ("x", (2, 4, 4), "x has 4 heads, which do not divide the 6 heads of log_a"),
    "b batch": ("b", (1, 2, 3), "b has batch 1 (axis 0 of (1, 2, 3)), expected 2 as in state"),
    "b state": ("b", (2, 2, 1), "b has state 1 (axis 2 of (2, 2, 1)), expected 3 as in state"),
    "b heads": ("b", (2, 12, 3), "b has 12 heads, which do not divide the 6 heads of log_a"),
    "c batch": ("c", (3, 2, 3), "c has batch 3 (axis 0 of (3, 2, 3)), expected 2 as in state"),
    "c state": ("c", (2, 2, 4), "c has state 4 (axis 2 of (2, 2, 4)), expected 3 as in state"),
    "c no heads": ("c", (2, 0, 3), "c has 0 heads, which do not divide the 6 heads of log_a"),
    "state": ("state", (2, 6, 3), "state has shape (2, 6, 3), expected 4 axes (batch, heads, head_dim, state)"),
}


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("fault", SHAPES)
def test_shapes(fault: str) -> None:
    """And a refused call leaves the state as it was."""
    name, shape, message = SHAPES[fault]
    given = {**arguments(), name: torch.zeros(shape)}
    before = given["state"].clone()
    with pytest.raises(ValueError, match=re.escape(message)):
        diagonal_ssm_step(**given)
    assert torch.equal(given["state"], before)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ["x", "log_a", "b", "c"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    given = arguments()
    given[name] = given[name].to(dtype)
    with pytest.raises(
        ValueError, match=re.escape(f"{name} has dtype {dtype}, expected float64, float32, bfloat16 or")
    ):
        diagonal_ssm_step(**given)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.complex64])
def test_states_of_fewer_bits(dtype: torch.dtype) -> None:
    given = arguments()
    given["state"] = given["state"].to(dtype)
    with pytest.raises(
        ValueError, match=re.escape(f"state has dtype {dtype}, expected float32 or float64: states lose")
    ):
        diagonal_ssm_step(**given)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", ["x", "log_a", "b", "c"])
def test_devices(name: str) -> None:
    given = arguments()
    given[name] = given[name].to("meta")
    with pytest.raises(ValueError, match=re.escape(f"{name} is on meta, expected cpu where state is; move it with")):
        diagonal_ssm_step(**given)
