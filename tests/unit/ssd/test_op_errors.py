"""Bad input meets a ValueError that names the argument, what it was and what it should be: the same in every form."""

import math
import re

import pytest
import torch
from torch import Tensor

from statedual.ssd import ssd, ssd_step

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
every_form = pytest.mark.parametrize("form", ["recurrent", "quadratic", "chunked"])


def arguments(batch: int = 2, time: int = 5, heads: int = 6) -> dict[str, Tensor]:
    """x (2, 5, 6, 4), log_a (2, 5, 6), b and c (2, 5, 2, 3)."""
    return {
        "x": torch.randn(batch, time, heads, 4),
        "log_a": -torch.rand(batch, time, heads),
        "b": torch.randn(batch, time, 2, 3),
        "c": torch.randn(batch, time, 2, 3),
    }


def raises(message: str):
    return pytest.raises(ValueError, match=re.escape(message))


SHAPES = {
    "x heads": ("x", (2, 5, 4, 4), "x has 4 heads, which do not divide the 6 heads of log_a"),
    "x no heads": ("x", (2, 5, 0, 4), "x has 0 heads, which do not divide the 6 heads of log_a"),
    "b heads": ("b", (2, 5, 4, 3), "b has 4 heads, which do not divide the 6 heads of log_a"),
    "c heads": ("c", (2, 5, 12, 3), "c has 12 heads, which do not divide the 6 heads of log_a"),
    "x ndim": ("x", (2, 5, 24), "x has shape (2, 5, 24), expected 4 axes (batch, time, heads_x, head_dim)"),
    "log_a ndim": ("log_a", (2, 5, 6, 1), "log_a has shape (2, 5, 6, 1), expected 3 axes (batch, time, heads)"),
    "b ndim": ("b", (2, 5, 3), "b has shape (2, 5, 3), expected 4 axes (batch, time, heads_b, state)"),
    "c ndim": ("c", (3,), "c has shape (3,), expected 4 axes (batch, time, heads_c, state)"),
    "log_a batch": ("log_a", (1, 5, 6), "log_a has batch 1 (axis 0 of (1, 5, 6)), expected 2 as in x"),
    "log_a time": ("log_a", (2, 4, 6), "log_a has time 4 (axis 1 of (2, 4, 6)), expected 5 as in x"),
    "b batch": ("b", (3, 5, 2, 3), "b has batch 3 (axis 0 of (3, 5, 2, 3)), expected 2 as in x"),
    "b time": ("b", (2, 6, 2, 3), "b has time 6 (axis 1 of (2, 6, 2, 3)), expected 5 as in x"),
    "c batch": ("c", (1, 5, 2, 3), "c has batch 1 (axis 0 of (1, 5, 2, 3)), expected 2 as in x"),
    "c time": ("c", (2, 1, 2, 3), "c has time 1 (axis 1 of (2, 1, 2, 3)), expected 5 as in x"),
    "c state": ("c", (2, 5, 2, 4), "c has state 4 (axis 3 of (2, 5, 2, 4)), expected 3 as in x and b"),
    "state ndim": ("initial_state", (6, 4, 3), "initial_state has shape (6, 4, 3), expected 4 axes"),
    "states": ("initial_state", (1, 6, 4, 3), "initial_state has sequences 1 (axis 0 of (1, 6, 4, 3)), expected 2"),
    "state heads": ("initial_state", (2, 2, 4, 3), "initial_state has heads 2 (axis 1 of (2, 2, 4, 3)), expected 6"),
    "turned": ("initial_state", (2, 6, 3, 4), "initial_state has head_dim 3 (axis 2 of (2, 6, 3, 4)), expected 4"),
    "state state": ("initial_state", (2, 6, 4, 5), "initial_state has state 5 (axis 3 of (2, 6, 4, 5)), expected 3"),
}


@every_form
@pytest.mark.parametrize("fault", SHAPES)
def test_shapes(form: str, fault: str) -> None:
    name, shape, message = SHAPES[fault]
    with raises(message):
        ssd(**{**arguments(), name: torch.zeros(shape)}, form=form)


@every_form
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ["x", "log_a", "b", "c", "initial_state"])
def test_dtypes(form: str, name: str, dtype: torch.dtype) -> None:
    given = {**arguments(), "initial_state": torch.zeros(2, 6, 4, 3)}
    given[name] = given[name].to(dtype)
    with raises(f"{name} has dtype {dtype}, expected float64, float32, bfloat16 or float16"):
        ssd(**given, form=form)


@every_form
@pytest.mark.parametrize("name", ["log_a", "b", "c", "initial_state", "cu_seqlens"])
def test_devices(form: str, name: str) -> None:
    given = {**arguments(1), "initial_state": torch.zeros(1, 6, 4, 3), "cu_seqlens": torch.tensor([0, 5])}
    given[name] = given[name].to("meta")
    with raises(f"{name} is on meta, expected cpu where x is; move it with {name}.to('cpu')"):
        ssd(**given, form=form)


OFFSETS = {
    "start": ([1, 5], "cu_seqlens starts at 1, expected 0"),
    "decreasing": ([0, 4, 3, 5], "cu_seqlens decreases from 4 to 3 at index 2, expected offsets in rising order"),
    "short": ([0, 4], "cu_seqlens ends at 4, expected 5, the time of x"),
    "long": ([0, 3, 6], "cu_seqlens ends at 6, expected 5, the time of x"),
    "nothing": ([0], "cu_seqlens ends at 0, expected 5, the time of x"),
}


@every_form
@pytest.mark.parametrize("fault", OFFSETS)
def test_offsets(form: str, fault: str) -> None:
    offsets, message = OFFSETS[fault]
    with raises(message):
        ssd(**arguments(1), cu_seqlens=torch.tensor(offsets), form=form)


@every_form
def test_offsets_of_another_kind(form: str) -> None:
    given = arguments(1)
    with raises("cu_seqlens has dtype torch.float32, expected int32 or int64 offsets"):
        ssd(**given, cu_seqlens=torch.tensor([0.0, 5.0]), form=form)
    with raises("cu_seqlens has shape (1, 2), expected (num_seqs + 1,)"):
        ssd(**given, cu_seqlens=torch.tensor([[0, 5]]), form=form)
    with raises("cu_seqlens has shape (), expected (num_seqs + 1,)"):
        ssd(**given, cu_seqlens=torch.tensor(5), form=form)
    with raises("cu_seqlens has shape (0,), expected (num_seqs + 1,)"):
        ssd(**given, cu_seqlens=torch.zeros(0, dtype=torch.int64), form=form)
    with raises("cu_seqlens was given with batch 2, expected batch 1"):
        ssd(**arguments(2), cu_seqlens=torch.tensor([0, 5]), form=form)


@every_form
def test_packed_states_are_counted_by_the_offsets(form: str) -> None:
    message = "initial_state has sequences 1 (axis 0 of (1, 6, 4, 3)), expected 3 as in cu_seqlens"
    with raises(message):
        ssd(**arguments(1), cu_seqlens=torch.tensor([0, 2, 2, 5]), initial_state=torch.zeros(1, 6, 4, 3), form=form)


@every_form
@pytest.mark.parametrize("value", [0.5, 1e-30, math.inf, math.nan])
def test_decays_are_checked_on_request_only(form: str, value: float) -> None:
    given = arguments()
    given["log_a"][1, 3, 2] = value
    with raises(f"log_a is {value:g} at (1, 3, 2), expected at most 0 everywhere"):
        ssd(**given, form=form, validate=True)
    assert ssd(**given, form=form).y.shape == (2, 5, 6, 4)


@every_form
def test_decays_that_may_be(form: str) -> None:
    given = arguments()
    given["log_a"][0, 1, 2] = 0
    given["log_a"][0, 1, 3] = -0.0
    given["log_a"][0, 1, 4] = -math.inf
    assert ssd(**given, form=form, validate=True).y.isfinite().all()


@pytest.mark.parametrize("form", ["linear", "", "Chunked"])
def test_unknown_forms(form: str) -> None:
    with raises(f"form is {form!r}, expected one of 'recurrent', 'quadratic', 'chunked'"):
        ssd(**arguments(), form=form)


@every_form
def test_backends(form: str) -> None:
    with raises("backend is 'cuda', expected one of 'auto', 'torch', 'cpu', 'triton'"):
        ssd(**arguments(), form=form, backend="cuda")
    for absent in ("cpu", "triton"):
        with raises(f"backend is {absent!r}, which this version of statedual does not contain yet"):
            ssd(**arguments(), form=form, backend=absent)
    given = arguments()
    assert torch.equal(ssd(**given, form=form, backend="torch").y, ssd(**given, form=form, backend="auto").y)


@every_form
@pytest.mark.parametrize("chunk_size", [0, -64, 2.5, "64", True])
def test_chunk_sizes(form: str, chunk_size: object) -> None:
    with raises(f"chunk_size is {chunk_size!r}, expected a positive integer"):
        ssd(**arguments(), form=form, chunk_size=chunk_size)


def step_arguments() -> dict[str, Tensor]:
    """state (2, 6, 4, 3), x (2, 6, 4), log_a (2, 6), b and c (2, 2, 3)."""
    given = {name: tensor[:, 0] for name, tensor in arguments().items()}
    return {"state": torch.zeros(2, 6, 4, 3), **given}


STEP_SHAPES = {
    "state ndim": ("state", (6, 4, 3), "state has shape (6, 4, 3), expected 4 axes (batch, heads, head_dim, state)"),
    "x ndim": ("x", (2, 1, 6, 4), "x has shape (2, 1, 6, 4), expected 3 axes (batch, heads_x, head_dim)"),
    "x batch": ("x", (1, 6, 4), "x has batch 1 (axis 0 of (1, 6, 4)), expected 2 as in state"),
    "x head_dim": ("x", (2, 6, 3), "x has head_dim 3 (axis 2 of (2, 6, 3)), expected 4 as in state"),
    "x heads": ("x", (2, 4, 4), "x has 4 heads, which do not divide the 6 heads of log_a"),
    "log_a ndim": ("log_a", (6,), "log_a has shape (6,), expected 2 axes (batch, heads)"),
    "log_a batch": ("log_a", (1, 6), "log_a has batch 1 (axis 0 of (1, 6)), expected 2 as in state"),
    "log_a heads": ("log_a", (2, 3), "log_a has heads 3 (axis 1 of (2, 3)), expected 6 as in state"),
    "b ndim": ("b", (2, 3), "b has shape (2, 3), expected 3 axes (batch, heads_b, state)"),
    "b batch": ("b", (3, 2, 3), "b has batch 3 (axis 0 of (3, 2, 3)), expected 2 as in state"),
    "b state": ("b", (2, 2, 4), "b has state 4 (axis 2 of (2, 2, 4)), expected 3 as in state"),
    "b heads": ("b", (2, 5, 3), "b has 5 heads, which do not divide the 6 heads of log_a"),
    "c ndim": ("c", (2,), "c has shape (2,), expected 3 axes (batch, heads_c, state)"),
    "c batch": ("c", (1, 2, 3), "c has batch 1 (axis 0 of (1, 2, 3)), expected 2 as in state"),
    "c state": ("c", (2, 2, 1), "c has state 1 (axis 2 of (2, 2, 1)), expected 3 as in state"),
    "c heads": ("c", (2, 4, 3), "c has 4 heads, which do not divide the 6 heads of log_a"),
}


@pytest.mark.parametrize("fault", STEP_SHAPES)
def test_step_shapes(fault: str) -> None:
    name, shape, message = STEP_SHAPES[fault]
    given = {**step_arguments(), name: torch.ones(shape)}
    before = given["state"].clone()
    with raises(message):
        ssd_step(**given)
    assert torch.equal(given["state"], before), "a call that fails leaves the state alone"


@pytest.mark.parametrize("name", ["x", "log_a", "b", "c"])
def test_step_dtypes_and_devices(name: str) -> None:
    given = step_arguments()
    with raises(f"{name} has dtype torch.int32, expected float64, float32, bfloat16 or float16"):
        ssd_step(**{**given, name: given[name].int()})
    with raises(f"{name} is on meta, expected cpu where state is"):
        ssd_step(**{**given, name: given[name].to("meta")})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_step_states_have_many_bits(dtype: torch.dtype) -> None:
    given = step_arguments()
    with raises(f"state has dtype {dtype}, expected float32 or float64"):
        ssd_step(**{**given, "state": given["state"].to(dtype)})
