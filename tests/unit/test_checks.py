"""The checks: what they let pass, and the exact words they say otherwise."""

import re

import pytest
import torch

from statedual import checks


def raises(message: str):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_floating_dtypes_pass(dtype: torch.dtype) -> None:
    checks.require_floating(x=torch.zeros(1, dtype=dtype), state=None)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_other_dtypes(dtype: torch.dtype) -> None:
    with raises(
        f"b has dtype {dtype}, expected float64, float32, bfloat16 or float16; convert it with b.float()",
    ):
        checks.require_floating(x=torch.zeros(1), b=torch.zeros(1).to(dtype))


def test_devices() -> None:
    here, there = torch.zeros(1), torch.zeros(1, device="meta")
    checks.require_one_device(x=here, b=None, c=here)
    checks.require_one_device(x=None, b=there, c=there)
    with raises("c is on meta, expected cpu where x is; move it with c.to('cpu')"):
        checks.require_one_device(state=None, x=here, b=here, c=there)
    with raises("x is on cpu, expected meta where state is; move it with x.to('meta')"):
        checks.require_one_device(state=there, x=here)


def test_ndim() -> None:
    checks.require_ndim("x", torch.zeros(2, 3), "batch time")
    checks.require_ndim("x", torch.zeros(()), "")
    for shape in [(2,), (2, 3, 4)]:
        with raises(f"x has shape {shape}, expected 2 axes (batch, time)"):
            checks.require_ndim("x", torch.zeros(shape), "batch time")


def test_sizes() -> None:
    wanted = {"batch": 2, "time": None, "state": 0}
    checks.require_sizes("b", torch.zeros(2, 7, 0), wanted, "x")
    with raises("b has batch 3 (axis 0 of (3, 7, 0)), expected 2 as in x"):
        checks.require_sizes("b", torch.zeros(3, 7, 0), wanted, "x")
    with raises("b has state 1 (axis 2 of (2, 7, 1)), expected 0 as in x and c"):
        checks.require_sizes("b", torch.zeros(2, 7, 1), wanted, "x and c")
    with raises("b has shape (2, 7), expected 3 axes (batch, time, state)"):
        checks.require_sizes("b", torch.zeros(2, 7), wanted, "x")


def test_divisors() -> None:
    for groups in (1, 2, 3, 6):
        checks.require_divides("b", groups, 6)
    for groups in (-1, 0, 4, 5, 7, 12):
        with raises(
            f"b has {groups} heads, which do not divide the 6 heads of log_a; "
            "head i reads group i // (heads / heads_b), so give b a divisor of 6 heads"
        ):
            checks.require_divides("b", groups, 6)


def test_positive_integers() -> None:
    for value in (1, 64, 10**12):
        checks.require_positive("chunk", value)
    for value in (0, -1):
        with raises(f"chunk is {value}, expected a positive integer"):
            checks.require_positive("chunk", value)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("value", [1.0, True, "1", None])
def test_what_only_looks_like_a_positive_integer(value: object) -> None:
    with raises(f"chunk is {value!r}, expected a positive integer"):
        checks.require_positive("chunk", value)


def test_choices() -> None:
    checks.require_choice("form", "a", ("a", "b"))
    with raises("form is 'c', expected one of 'a', 'b'"):
        checks.require_choice("form", "c", ("a", "b"))
    with raises("form is '', expected one of 'a'"):
        checks.require_choice("form", "", ("a",))
