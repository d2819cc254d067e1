"""Before the clock starts: what is right passes, what is wrong stops the run, and all get the same numbers."""

import re
from collections.abc import Callable

import pytest
import torch
from benchmark_examples import loop
from torch import Tensor

from statedual.benchmarks import candidate as module
from statedual.benchmarks.candidate import Candidate, Layer, compare, random_inputs, require_right
from statedual.benchmarks.ssd_suite import listing, ours
from statedual.ssd.cost import SSDShape

SHAPE = SSDShape(batch=2, time=16, heads=3, head_dim=4, state=5)
INPUTS = ("x", "log_a", "b", "c")
NAN = float("nan")


def candidate(layer: Layer = loop, *, shape: SSDShape = SHAPE) -> Candidate:
    """With gradients, in float32 as in every suite; its decays and b and c are of several heads or of one."""
    return Candidate("peer", layer, random_inputs(shape)).with_gradients()


def changed(*, y: float = 1.0, final_state: float = 1.0, head: int | slice = slice(None)) -> Layer:
    """The recurrence, with results of a head (or all) scaled."""

    def layer(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        got_y, got_final_state = loop(*tensors)
        factors_y, factors_final = torch.ones_like(got_y), torch.ones_like(got_final_state)
        factors_y[:, :, head] = y
        factors_final[:, head] = final_state
        return got_y.detach() * (factors_y - 1) + got_y, got_final_state * factors_final

    return layer


def with_gradient(name: str, factor: float) -> Layer:
    """The recurrence, with the gradient of one input scaled."""

    def layer(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        leaves = [tensor.view_as(tensor) for tensor in tensors]
        if leaves[0].requires_grad:
            leaves[INPUTS.index(name)].register_hook(lambda gradient: gradient * factor)
        return loop(*leaves)

    return layer


def stops(name: str) -> pytest.RaisesExc[ValueError]:
    return pytest.raises(ValueError, match=f"^peer at time 16: {name} is off the float64 recurrence by .*no speed$")


@pytest.mark.parametrize("layer", [loop, changed(y=1 + 5e-6), with_gradient("b", 1 - 5e-6)])
@pytest.mark.parametrize("backward", [True, False])
def test_right_results_pass(layer: Layer, backward: bool) -> None:
    given = candidate(layer) if backward else Candidate("peer", layer, random_inputs(SHAPE))
    require_right(given, loop, 3)


@pytest.mark.parametrize("factor", [1 + 2e-5, 1 - 2e-5, 0.0, NAN])
@pytest.mark.parametrize("backward", [True, False])
def test_a_wrong_output_or_state_stops_the_run(factor: float, backward: bool) -> None:
    for name, layer in {"y": changed(y=factor), "final state": changed(final_state=factor)}.items():
        given = candidate(layer) if backward else Candidate("peer", layer, random_inputs(SHAPE))
        with stops(name):
            require_right(given, loop, 3)


@pytest.mark.parametrize("factor", [1 + 2e-5, -1.0, 0.0, NAN])
@pytest.mark.parametrize("name", INPUTS)
def test_a_wrong_gradient_stops_the_run(name: str, factor: float) -> None:
    layer = with_gradient(name, factor)
    require_right(Candidate("peer", layer, random_inputs(SHAPE)), loop, 3)  # forward alone cannot tell
    with stops(f"gradient of {name}"):
        require_right(candidate(layer), loop, 3)


@pytest.mark.parametrize("wrong", [0, 1, 2])
@pytest.mark.parametrize("name", ["y", "final_state"])
def test_as_many_heads_are_compared_as_asked_for(name: str, wrong: int) -> None:
    given = candidate(changed(**{name: 2.0}, head=wrong))
    for heads in (1, 2, 3):
        if wrong < heads:
            with stops(name.replace("_", " ")):
                require_right(given, loop, heads)
        else:
            require_right(given, loop, heads)


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 3])
def test_gradients_of_a_part_of_the_heads_are_right_for_shared_and_for_own_b_and_c(groups: int, heads: int) -> None:
    given = SSDShape(batch=1, time=16, heads=3, head_dim=4, state=5, heads_b=groups, heads_c=groups)
    require_right(candidate(shape=given), loop, heads)
    with stops("gradient of c"):
        require_right(candidate(with_gradient("c", 1.001), shape=given), loop, heads)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (SHAPE, {"x": (3, 4), "log_a": (3,), "b": (1, 5), "c": (1, 5)}),
        (
            SSDShape(2, 16, 6, 4, 5, heads_x=1, heads_b=2, heads_c=3),
            {"x": (1, 4), "log_a": (6,), "b": (2, 5), "c": (3, 5)},
        ),
    ],
)
@pytest.mark.parametrize("diagonal", [False, True])
def test_inputs_have_the_sizes_asked_for_and_decay_as_mamba_2_does(
    shape: SSDShape, sizes: dict[str, tuple[int, ...]], diagonal: bool
) -> None:
    inputs = dict(zip(INPUTS, random_inputs(shape, diagonal=diagonal), strict=True))
    sizes = sizes | {"log_a": (*sizes["log_a"], 5) if diagonal else sizes["log_a"]}
    assert {name: tuple(tensor.shape) for name, tensor in inputs.items()} == {
        name: (2, 16, *size) for name, size in sizes.items()
    }
    assert {tensor.dtype for tensor in inputs.values()} == {torch.float32}
    assert -0.1 * 16 <= inputs["log_a"].min() < inputs["log_a"].max() <= -0.001 * 1


def test_all_candidates_of_one_size_get_the_same_numbers() -> None:
    chunked, listed = ours(SHAPE).with_gradients(), listing(SHAPE).with_gradients()
    for one, other in zip(chunked.inputs, listed.inputs, strict=True):
        assert torch.equal(one.expand_as(other), other)
    assert torch.equal(chunked.grad_y, listed.grad_y)
    assert chunked.grad_y.shape == (2, 16, 3, 4)
    assert [tensor.shape[2] for tensor in listed.inputs] == [3, 3, 3, 3]  # broadcast before the clock starts


def test_a_candidate_returns_what_it_was_asked_for() -> None:
    forward = Candidate("ours", loop, random_inputs(SHAPE))
    assert list(forward()) == ["y", "final state"]
    assert not any(tensor.requires_grad for tensor in forward().values())
    both = forward.with_gradients()()
    assert [name for name in both if name.startswith("gradient")] == [f"gradient of {name}" for name in INPUTS]
    assert not any(tensor.requires_grad for tensor in both.values())
    assert not any(tensor.requires_grad for tensor in forward.inputs)


def run_compare(layer: Layer, said: list[str], say: Callable[[str], None] | None = None) -> list:
    pair = [Candidate("ours", loop, random_inputs(SHAPE)), Candidate("peer", layer, random_inputs(SHAPE))]
    return compare("forward", pair, loop, repeats=1, say=say or said.append)


def test_a_wrong_candidate_stops_the_run_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(module, "median_seconds", lambda *_, **__: pytest.fail("the clock started"))
    monkeypatch.setattr(module, "peak_bytes", lambda *_: pytest.fail("memory was taken"))
    with stops("y"):
        run_compare(changed(y=1.1), said)
    assert said == ["forward: comparing with the float64 recurrence"]


def test_each_candidate_is_measured_in_the_order_given() -> None:
    said: list[str] = []
    found = run_compare(loop, said)
    assert [(m.case, m.time, m.candidate) for m in found] == [("forward", 16, "ours"), ("forward", 16, "peer")]
    assert all(m.seconds > 0 and m.memory() > 0 for m in found)
    assert [re.sub(":.*", "", text) for text in said] == ["forward", "forward"]


def test_lengths_of_one_candidate_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def medians(candidates: dict[str, Candidate], *, repeats: int) -> dict[str, float]:
        assert repeats == 7
        return {name: float(run.time) for name, run in candidates.items()}

    monkeypatch.setattr(module, "median_seconds", medians)
    sizes = [SSDShape(1, time, 2, 2, 2) for time in (8, 4)]
    by_length = [Candidate("ours", loop, random_inputs(size)) for size in sizes]
    found = compare("by length", by_length, loop, repeats=7, say=lambda _: None, heads=1)
    assert [(m.time, m.seconds) for m in found] == [(8, 8.0), (4, 4.0)]
