"""Bad input meets a ValueError that names the argument, what it was and what it should be: the same in every form."""

import math
import re

import pytest
import torch
from torch import Tensor

from statedual.selective_scan import diagonal_ssm, op

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
every_form = pytest.mark.parametrize("form", op.FORMS)


def arguments(batch: int = 2, head_dim: int = 4) -> dict[str, Tensor]:
    """x (2, 5, 6, 4), log_a (2, 5, 6, 3), b and c (2, 5, 2, 3)."""
    return {
        "x": torch.randn(batch, 5, 6, head_dim),
        "log_a": -torch.rand(batch, 5, 6, 3),
        "b": torch.randn(batch, 5, 2, 3),
        "c": torch.randn(batch, 5, 2, 3),
    }


def raises(message: str):
    return pytest.raises(ValueError, match=re.escape(message))


SHAPES = {
    "log_a of ssd": ("log_a", (2, 5, 6), "log_a has shape (2, 5, 6), expected 4 axes (batch, time, heads, state)"),
    "log_a ndim": ("log_a", (2, 5, 6, 1, 3), "log_a has shape (2, 5, 6, 1, 3), expected 4 axes"),
    "log_a batch": ("log_a", (1, 5, 6, 3), "log_a has batch 1 (axis 0 of (1, 5, 6, 3)), expected 2 as in x"),
    "log_a time": ("log_a", (2, 4, 6, 3), "log_a has time 4 (axis 1 of (2, 4, 6, 3)), expected 5 as in x"),
    "log_a to be broadcast": ("log_a", (2, 5, 6, 1), "b has state 3 (axis 3 of (2, 5, 2, 3)), expected 1 as in"),
    "log_a state": ("log_a", (2, 5, 6, 4), "b has state 3 (axis 3 of (2, 5, 2, 3)), expected 4 as in x and log_a"),
    "log_a heads": ("log_a", (2, 5, 4, 3), "x has 6 heads, which do not divide the 4 heads of log_a"),
    "log_a no heads": ("log_a", (2, 5, 1, 3), "x has 6 heads, which do not divide the 1 heads of log_a"),
    "b state": ("b", (2, 5, 2, 4), "b has state 4 (axis 3 of (2, 5, 2, 4)), expected 3 as in x and log_a"),
    "c state": ("c", (2, 5, 2, 4), "c has state 4 (axis 3 of (2, 5, 2, 4)), expected 3 as in x and b"),
    "x ndim": ("x", (2, 5, 24), "x has shape (2, 5, 24), expected 4 axes (batch, time, heads_x, head_dim)"),
    "b ndim": ("b", (2, 5, 3), "b has shape (2, 5, 3), expected 4 axes (batch, time, heads_b, state)"),
    "c ndim": ("c", (3,), "c has shape (3,), expected 4 axes (batch, time, heads_c, state)"),
    "x no heads": ("x", (2, 5, 0, 4), "x has 0 heads, which do not divide the 6 heads of log_a"),
    "b heads": ("b", (2, 5, 4, 3), "b has 4 heads, which do not divide the 6 heads of log_a"),
    "c heads": ("c", (2, 5, 12, 3), "c has 12 heads, which do not divide the 6 heads of log_a"),
    "b time": ("b", (2, 6, 2, 3), "b has time 6 (axis 1 of (2, 6, 2, 3)), expected 5 as in x"),
    "c batch": ("c", (1, 5, 2, 3), "c has batch 1 (axis 0 of (1, 5, 2, 3)), expected 2 as in x"),
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
        diagonal_ssm(**{**arguments(), name: torch.zeros(shape)}, form=form)


@every_form
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ["x", "log_a", "b", "c", "initial_state"])
def test_dtypes(form: str, name: str, dtype: torch.dtype) -> None:
    given = {**arguments(), "initial_state": torch.zeros(2, 6, 4, 3)}
    given[name] = given[name].to(dtype)
    with raises(f"{name} has dtype {dtype}, expected float64, float32, bfloat16 or float16"):
        diagonal_ssm(**given, form=form)


@every_form
@pytest.mark.parametrize("name", ["log_a", "b", "c", "initial_state", "cu_seqlens"])
def test_devices(form: str, name: str) -> None:
    given = {**arguments(1), "initial_state": torch.zeros(1, 6, 4, 3), "cu_seqlens": torch.tensor([0, 5])}
    given[name] = given[name].to("meta")
    with raises(f"{name} is on meta, expected cpu where x is; move it with {name}.to('cpu')"):
        diagonal_ssm(**given, form=form)


OFFSETS = {
    "start": ([1, 5], "cu_seqlens starts at 1, expected 0"),
    "decreasing": ([0, 4, 3, 5], "cu_seqlens decreases from 4 to 3 at index 2, expected offsets in rising order"),
    "short": ([0, 4], "cu_seqlens ends at 4, expected 5, the time of x"),
    "long": ([0, 3, 6], "cu_seqlens ends at 6, expected 5, the time of x"),
    "nothing": ([0], "cu_seqlens ends at 0, expected 5, the time of x"),
    "dtype": ([0.0, 5.0], "cu_seqlens has dtype torch.float32, expected int32 or int64 offsets"),
    "ndim": ([[0, 5]], "cu_seqlens has shape (1, 2), expected (num_seqs + 1,)"),
}


@every_form
@pytest.mark.parametrize("head_dim", [4, 8])
@pytest.mark.parametrize("fault", OFFSETS)
def test_offsets(form: str, head_dim: int, fault: str) -> None:
    """They are read inside of each operator."""
    offsets, message = OFFSETS[fault]
    with raises(message):
        diagonal_ssm(**arguments(1, head_dim), cu_seqlens=torch.tensor(offsets), form=form)


@every_form
def test_packed_sequences_share_one_row(form: str) -> None:
    with raises("cu_seqlens was given with batch 2, expected batch 1"):
        diagonal_ssm(**arguments(2), cu_seqlens=torch.tensor([0, 5]), form=form)
    message = "initial_state has sequences 1 (axis 0 of (1, 6, 4, 3)), expected 3 as in cu_seqlens"
    with raises(message):
        offsets, initial = torch.tensor([0, 2, 2, 5]), torch.zeros(1, 6, 4, 3)
        diagonal_ssm(**arguments(1), cu_seqlens=offsets, initial_state=initial, form=form)


@every_form
@pytest.mark.parametrize("value", [0.5, 1e-30, math.inf, math.nan])
def test_decays_are_checked_on_request_only(form: str, value: float) -> None:
    """The message says in which channel of the state."""
    given = arguments()
    given["log_a"][1, 3, 2, 1] = value
    with raises(f"log_a is {value:g} at (1, 3, 2, 1), expected at most 0 everywhere"):
        diagonal_ssm(**given, form=form, validate=True)
    assert diagonal_ssm(**given, form=form).y.shape == (2, 5, 6, 4)


@every_form
def test_decays_that_may_be(form: str) -> None:
    given = arguments()
    given["log_a"][0, 1, 2] = torch.tensor([0, -0.0, -math.inf])
    assert diagonal_ssm(**given, form=form, validate=True).y.isfinite().all()


@pytest.mark.parametrize("form", ["quadratic", "", "Chunked"])
def test_unknown_forms(form: str) -> None:
    with raises(f"form is {form!r}, expected one of 'recurrent', 'chunked'"):
        diagonal_ssm(**arguments(), form=form)


@every_form
def test_backends(form: str) -> None:
    with raises("backend is 'cuda', expected one of 'auto', 'torch', 'cpu', 'triton'"):
        diagonal_ssm(**arguments(), form=form, backend="cuda")
    for absent in ("cpu", "triton"):
        with raises(f"backend is {absent!r}, which this version of statedual does not contain yet"):
            diagonal_ssm(**arguments(), form=form, backend=absent)
    given = arguments()
    y, by_name = (diagonal_ssm(**given, form=form, backend=name).y for name in ("auto", "torch"))
    assert torch.equal(y, by_name)


@every_form
@pytest.mark.parametrize("chunk_size", [0, -64, 2.5, "64", True])
def test_chunk_sizes(form: str, chunk_size: object) -> None:
    with raises(f"chunk_size is {chunk_size!r}, expected a positive integer"):
        diagonal_ssm(**arguments(), form=form, chunk_size=chunk_size)
