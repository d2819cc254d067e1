"""Memory that PyTorch hands out as it found it may hold anything: no result depends on it, not in one bit."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from diagonal_examples import CHUNKS, PATHS, example, examples, results
from hypothesis import given, settings
from torch import Tensor
from unit.ssd.ssd_examples import BOUNDS, PATTERNS, Example, Results

from statedual.selective_scan import op
from statedual.ssd import segments
from statedual.ssd.chunk import Buffers

Poison = Callable[[], AbstractContextManager[None]]
every_path = pytest.mark.parametrize("path", PATHS)
CASES = {
    **{name: {"groups": PATTERNS[name], "batch": 2} for name in ("multi_contract", "grouped")},
    "no_initial_state": {"batch": 2, "initial": False},
    "bfloat16": {"batch": 2, "dtype": torch.bfloat16},
    "packed": {"groups": (6, 2, 3), "offsets": [0, 0, 7, 40, 41, 41, 90]},
    "packed_without_initial_states": {"offsets": [0, 33, 90], "initial": False},
}
few_bytes = pytest.mark.parametrize("budget", [16 << 20, 60_000])
SIZES = (1, 7, 16, 33)


def assert_same(got: Results, wanted: Results) -> None:
    for name, one, other in zip(Results._fields, got, wanted, strict=True):
        assert (one is None and other is None) or torch.equal(one, other), name


@every_path
@few_bytes
@pytest.mark.parametrize("name", CASES)
def test_uninitialised_memory_may_hold_nan(
    path: str, name: str, budget: int, poisoned: Poison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one segment and, with few bytes for its buffers, in several; chunks with and without padding."""
    monkeypatch.setitem(segments._BUDGET, "cpu", budget)
    form, head_dim = PATHS[path]
    case = example(90, head_dim=head_dim, **CASES[name])
    for chunk in SIZES if form == "chunked" else (None,):
        clean = results(case, form, chunk)
        with poisoned():
            assert_same(results(case, form, chunk), clean)


@pytest.mark.parametrize("form", op.FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_any_input_in_poisoned_memory(form: str, packed: bool, poisoned: Poison) -> None:
    @settings(deadline=None, derandomize=True, max_examples=30)
    @given(examples(tuple(BOUNDS), packed=packed), CHUNKS)
    def check(case: Example, chunk: int) -> None:
        clean = results(case, form, chunk)
        with poisoned():
            assert_same(results(case, form, chunk), clean)

    check()


@pytest.mark.parametrize("path", ["steps", "products"])
@few_bytes
@pytest.mark.parametrize("name", CASES)
def test_a_work_buffer_is_written_before_it_is_read(
    path: str, name: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an earlier segment, or a level of the tree, left in it."""
    monkeypatch.setitem(segments._BUDGET, "cpu", budget)
    case = example(90, head_dim=PATHS[path][1], **CASES[name])
    clean = {chunk: results(case, "chunked", chunk) for chunk in SIZES}
    take, taken = Buffers.take, set()

    def take_poisoned(self: Buffers, name: str, *shape: int) -> Tensor:
        taken.add(name)
        return take(self, name, *shape).fill_(torch.nan)

    monkeypatch.setattr(Buffers, "take", take_poisoned)
    for chunk, wanted in clean.items():
        assert_same(results(case, "chunked", chunk), wanted)
    assert ({"states", "grad_states"} if path == "steps" else {"levels", "scores", "grad_level"}) < taken
