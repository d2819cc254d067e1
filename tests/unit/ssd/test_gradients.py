"""Derivatives against numeric differences: of every input, through both results, in every form."""

import math
from collections.abc import Callable

import pytest
import torch
from ssd_examples import FORMS, NAMES, PATTERNS, example
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from statedual.ssd import gateloop, linear_attention, retention, segments, ssd

Layer = Callable[..., tuple[Tensor, Tensor]]
every_form = pytest.mark.parametrize("form", FORMS)
every_pattern = pytest.mark.parametrize("pattern", PATTERNS)


def leaves(time: int, pattern: str, **sizes) -> list[Tensor]:
    """x, log_a, b, c, initial state: float64, small."""
    sizes = {"batch": 1, "head_dim": 2, "state": 2, "kind": "usual", **sizes}
    case = example(time, groups=PATTERNS[pattern], dtype=torch.float64, **sizes)
    return [t.requires_grad_() for t in case.tensors()]


def layer(
    form: str, chunk: int | None = None, offsets: list[int] | None = None
) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function of the five tensors."""
    options = {} if offsets is None else {"cu_seqlens": torch.tensor(offsets)}

    def run(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(ssd(x, log_a, b, c, initial_state=state, form=form, chunk_size=chunk, **options))

    return run


@every_form
def test_gradients_are_the_limits_of_differences(form: str) -> None:
    """The whole Jacobian. Seven positions: chunks of three, the last of one."""
    assert gradcheck(layer(form, 3), leaves(7, "grouped"))


@every_form
@every_pattern
def test_gradients_of_each_pattern(form: str, pattern: str) -> None:
    """From here on the Jacobian between random vectors (``fast_mode``), which is as strict and takes less time."""
    assert gradcheck(layer(form, 3), leaves(7, pattern, batch=2), fast_mode=True)


@pytest.mark.parametrize("chunk", [1, 2, 4, 5, 8])
def test_gradients_with_any_chunk(chunk: int) -> None:
    assert gradcheck(layer("chunked", chunk), leaves(8, "multi_input", batch=2), fast_mode=True)


def test_gradients_across_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a chunk in a segment: every border passes a gradient back."""
    monkeypatch.setitem(segments._BUDGET, "cpu", 1)
    assert gradcheck(layer("chunked", 2), leaves(7, "grouped"), fast_mode=True)


@every_form
def test_gradients_of_packed_sequences(form: str) -> None:
    offsets = [0, 0, 3, 4, 9, 9]
    assert gradcheck(layer(form, 2, offsets), leaves(9, "grouped", offsets=offsets), fast_mode=True)


@every_form
@pytest.mark.parametrize("time", [0, 1])
def test_gradients_of_short_sequences(form: str, time: int) -> None:
    assert gradcheck(layer(form), leaves(time, "grouped"))


@every_form
@every_pattern
def test_gradients_where_some_decays_forget(form: str, pattern: str) -> None:
    """At -inf there are no differences to take. All else is differentiated around it, the other decays included."""
    given = leaves(7, pattern)
    forget = torch.zeros_like(given[1], dtype=torch.bool)
    forget[:, [0, 3, 4], ::2] = True
    run = layer(form, 3)

    def forgetful(x: Tensor, log_a: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        return run(x, log_a.masked_fill(forget, -math.inf), *rest)

    assert gradcheck(forgetful, given, fast_mode=True)


@every_form
@pytest.mark.parametrize("kind", ["forget", "mixed"])
@every_pattern
def test_gradients_are_finite_whatever_forgets(form: str, kind: str, pattern: str) -> None:
    """The limit of exp(log_a) at -inf is flat: its gradient is zero, and no other is NaN."""
    given = leaves(9, pattern, kind=kind)
    forgotten = given[1] == -math.inf
    assert forgotten.any()
    outputs = layer(form, 4)(*given)
    gradients = torch.autograd.grad(outputs, given, [torch.randn_like(t) for t in outputs])
    for name, gradient in zip(NAMES[2:], gradients, strict=True):
        assert gradient.isfinite().all(), name
    assert not gradients[1][forgotten].any()


@pytest.mark.parametrize("form", ["recurrent", "quadratic"])
@every_pattern
def test_second_derivatives_of_the_plain_forms(form: str, pattern: str) -> None:
    assert gradgradcheck(layer(form), leaves(3, pattern), fast_mode=True)


@pytest.mark.parametrize("form", ["recurrent", "quadratic"])
def test_second_derivatives_where_some_decays_forget(form: str) -> None:
    given = leaves(4, "multi_input", head_dim=1)
    run = layer(form)

    def forgetful(x: Tensor, log_a: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        forget = torch.zeros_like(log_a, dtype=torch.bool)
        forget[:, 2, 1] = True
        return run(x, log_a.masked_fill(forget, -math.inf), *rest)

    assert gradgradcheck(forgetful, given)


def test_gradients_of_the_instances() -> None:
    q, k, v = (torch.randn(1, 5, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    gamma = torch.tensor([0.5, 0.9], dtype=torch.float64, requires_grad=True)
    log_a = torch.full((1, 5, 2), -0.3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(linear_attention, (q, k, v))
    assert gradcheck(retention, (q, k, v, gamma))
    assert gradcheck(gateloop, (q, k, v, log_a))
