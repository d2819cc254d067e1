"""Memory that PyTorch hands out as it found it may hold anything: no result depends on it, not in one bit."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from hypothesis import given, settings
from ssd_examples import BOUNDS, CHUNKS, FORMS, PATTERNS, Example, Results, example, examples, results
from torch import Tensor

from statedual.ssd import segments
from statedual.ssd.chunk import Buffers

Poison = Callable[[], AbstractContextManager[None]]
every_form = pytest.mark.parametrize("form", FORMS)
SOLO = {"groups": PATTERNS["multi_input"], "batch": 2}
CASES = {
    **{name: {"groups": groups, "batch": 2} for name, groups in PATTERNS.items()},
    "no_initial_state": {**SOLO, "initial": False},
    "bfloat16": {**SOLO, "dtype": torch.bfloat16},
    "packed": {"groups": (6, 2, 3), "offsets": [0, 0, 7, 40, 41, 41, 90]},
    "packed_without_initial_states": {"offsets": [0, 33, 90], "initial": False},
}
few_bytes = pytest.mark.parametrize("budget", [16 << 20, 60_000])


def assert_same(got: Results, wanted: Results) -> None:
    for name, one, other in zip(Results._fields, got, wanted, strict=True):
        assert (one is None and other is None) or torch.equal(one, other), name


def test_the_poison_reaches_all_that_allocates(poisoned: Poison) -> None:
    like = torch.ones(3)
    with poisoned():
        found: list[Tensor] = [
            torch.empty(3),
            like.new_empty(3),
            torch.empty_like(like),
            torch.empty_like(like, memory_format=torch.contiguous_format),
            like.new_empty(3, dtype=torch.bfloat16),
            Buffers(like.double()).take("any", 3, 2),
        ]
    assert all(tensor.isnan().all() for tensor in found)
    assert not torch.are_deterministic_algorithms_enabled()


@every_form
@few_bytes
@pytest.mark.parametrize("name", CASES)
def test_uninitialised_memory_may_hold_nan(
    form: str, name: str, budget: int, poisoned: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one segment and, with few bytes for its buffers, in several; chunks with and without a shorter last one."""
    monkeypatch.setitem(segments._BUDGET, "cpu", budget)
    case = example(90, **CASES[name])
    for chunk in (1, 7, 16, 30, 33, 64, 200) if form == "chunked" else (None,):
        clean = results(case, form, chunk)
        with poisoned():
            assert_same(results(case, form, chunk), clean)


@every_form
@pytest.mark.parametrize("packed", [False, True])
def test_any_input_in_poisoned_memory(form: str, packed: bool, poisoned: Poison) -> None:
    @settings(deadline=None, derandomize=True, max_examples=20)
    @given(examples(tuple(BOUNDS), packed=packed), CHUNKS)
    def check(case: Example, chunk: int) -> None:
        clean = results(case, form, chunk)
        with poisoned():
            assert_same(results(case, form, chunk), clean)

    check()


@few_bytes
@pytest.mark.parametrize("name", CASES)
def test_a_work_buffer_is_written_before_it_is_read(name: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an earlier segment left in it. Only the triangles keep what they hold, and say so."""
    monkeypatch.setitem(segments._BUDGET, "cpu", budget)
    case = example(90, **CASES[name])
    clean = {chunk: results(case, "chunked", chunk) for chunk in (7, 16, 33, 64)}
    take, taken = Buffers.take, []

    def take_poisoned(self: Buffers, name: str, *shape: int) -> Tensor:
        taken.append(name)
        buffer = take(self, name, *shape)
        return buffer if name.startswith("triangles") else buffer.fill_(torch.nan)

    monkeypatch.setattr(Buffers, "take", take_poisoned)
    for chunk, wanted in clean.items():
        assert_same(results(case, "chunked", chunk), wanted)
    assert len(set(taken)) > 5
