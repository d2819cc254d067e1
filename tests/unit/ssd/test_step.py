"""``ssd_step`` is the recurrence of ``ssd``, one token at a time and in place."""

import math
import re
from collections.abc import Iterator

import pytest
import torch
from ssd_examples import BOUNDS, FORMS, PATTERNS, Example, error, example, recurrence
from torch import Tensor

from statedual.benchmarks.measure import peak_bytes
from statedual.ssd import ssd, ssd_step
from statedual.ssd.cost import SSDShape, state_elements, step_flops

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
        y, returned = ssd_step(state, *token)
        assert returned is state
        ys.append(y)
    return torch.stack(ys, 1)


@every_pattern
@pytest.mark.parametrize("dtype", BOUNDS)
def test_steps_are_the_recurrence(pattern: str, dtype: torch.dtype) -> None:
    """Every token's output and the state after it; decays of 0, of -inf and between."""
    case = example(30, groups=PATTERNS[pattern], batch=2, dtype=dtype)
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
def test_forgetting_leaves_the_newest_token_only(pattern: str) -> None:
    """A decay of -inf: h_t = x_t outer b_t, exactly, even where the state was as large as can be."""
    case = example(1, groups=PATTERNS[pattern], kind="forget")
    state = torch.full((1, 6, 4, 3), torch.finfo(torch.float32).max)
    step_by_step(case, state)
    for head in range(6):
        x, b = case.x[0, 0, head * case.x.shape[2] // 6], case.b[0, 0, head * case.b.shape[2] // 6]
        assert torch.equal(state[0, head], torch.outer(x, b))


VIEWS = {
    "transposed": lambda state: state.mT.contiguous().mT,
    "heads_last": lambda state: state.movedim(1, -1).contiguous().movedim(-1, 1),
    "batch_last": lambda state: state.movedim(0, -1).contiguous().movedim(-1, 0),
    "left_part_of_wider_states": lambda state: torch.cat([state, torch.ones_like(state)], -1)[..., :3],
    "right_part_of_wider_states": lambda state: torch.cat([torch.ones_like(state), state], -1)[..., 3:],
    "some_heads_of_a_cache": lambda state: torch.cat([state, state], 1)[:, 3:9],
    "one_layer_of_a_cache": lambda state: torch.stack([state, state], 2)[:, :, 1],
    "every_other_row": lambda state: torch.stack([state, state], 1).flatten(0, 1)[1::2],
}


@every_pattern
@pytest.mark.parametrize("view", VIEWS)
def test_the_state_may_be_any_view(view: str, pattern: str) -> None:
    """It is written where it lies, and nothing beside it."""
    case = example(9, groups=PATTERNS[pattern], batch=2)
    # The same values in every view; "some_heads_of_a_cache" begins with head 3.
    state = VIEWS[view](case.initial_state.clone())
    cache = state._base if state._base is not None else state
    outside = torch.ones_like(cache).bool()
    outside.as_strided(state.shape, state.stride(), state.storage_offset()).fill_(False)
    beside = cache[outside].clone()
    start = state.clone().contiguous()
    y = step_by_step(case, state)
    wanted, final = recurrence(*(t.double() for t in (case.x, case.log_a, case.b, case.c, start)))
    assert error(y, wanted) < case.bound
    assert error(state, final) < case.bound
    assert torch.equal(cache[outside], beside)


def test_the_inputs_may_be_any_view() -> None:
    """As a layer has them: slices of one projection, one b and c expanded to the batch."""
    case = example(5, groups=(6, 1, 1), batch=2)
    wide = torch.cat([case.x.flatten(2), case.log_a, case.b.flatten(2)], -1)
    state = case.initial_state.clone()
    sliced = Example(
        x=wide[..., :24].unflatten(-1, (6, 4)),
        log_a=wide[..., 24:30],
        b=wide[..., None, 30:],
        c=case.c[:1].expand(2, -1, -1, -1),
        **{name: getattr(case, name) for name in ("initial_state", "offsets", "grad_y", "grad_final")},
    )
    y = step_by_step(sliced, state)
    wanted, final = truth(sliced)
    assert error(y, wanted) < case.bound
    assert error(state, final) < case.bound


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("prefill", [0, 1, 37, 64])
def test_prefill_and_steps_are_one_pass(form: str, dtype: torch.dtype, prefill: int) -> None:
    case = example(70, groups=(6, 2, 3), batch=2, dtype=dtype)
    first, rest = (
        Example(*(t[:, part] for t in (case.x, case.log_a, case.b, case.c)), *list(vars(case).values())[4:])
        for part in (slice(prefill), slice(prefill, None))
    )
    y, state = ssd(first.x, first.log_a, first.b, first.c, initial_state=case.initial_state, form=form)
    whole = torch.cat([y, step_by_step(rest, state)], 1)
    wanted, final = truth(case)
    assert error(whole, wanted) < case.bound
    assert error(state, final) < BOUNDS[state.dtype]


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


def test_the_cost_of_a_token_is_that_of_the_state() -> None:
    """Theorem 6.1: O(N^2) operations and memory a token, however many came before."""
    sizes = SSDShape(batch=2, time=1, heads=6, head_dim=16, state=16)
    assert step_flops(SSDShape(batch=2, time=10**6, heads=6, head_dim=16, state=16)) == step_flops(sizes)
    peaks = []
    for time in (2, 50):
        case = example(time, batch=2, head_dim=16, state=16)
        state, given = case.initial_state, list(tokens(case))

        def run(state=state, given=given) -> None:
            for token in given:
                ssd_step(state, *token)

        peaks.append(peak_bytes(run))
    assert peaks[0] == peaks[1]
    assert peaks[0] < 4 * state_elements(sizes), "not even one more state beside the one it writes into"


def test_no_rows() -> None:
    case = example(3, groups=(6, 2, 3), batch=0)
    state = case.initial_state.clone()
    y = step_by_step(case, state)
    assert y.shape == (0, 3, 6, 4)
    assert state.shape == (0, 6, 4, 3)


def test_the_gradients_of_a_step() -> None:
    """Of one step, to every input and the state before it; the state itself is none of the leaves."""
    case = example(1, groups=(6, 2, 3), batch=2, kind="usual", dtype=torch.float64)
    found = []
    for run in (ssd_step, recurrence):
        leaves = [t.clone().requires_grad_() for t in case.tensors()]
        *given, state = leaves
        if run is ssd_step:
            y, final = ssd_step(state * 1, *(t[:, 0] for t in given))
            y = y.unsqueeze(1)
        else:
            y, final = recurrence(*given, state)
        found.append(torch.autograd.grad((y, final), leaves, (case.grad_y, case.grad_final)))
    for got, wanted in zip(*found, strict=True):
        assert error(got, wanted) < case.bound


def test_a_state_that_would_lose_its_gradient_is_refused_by_pytorch() -> None:
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
