"""Sequences whose work buffers do not fit the budget: several segments, with states passed and kept between them."""

import pytest
import torch
from diagonal_examples import DECAYS, PATHS, example, results, truth
from unit.ssd.ssd_examples import Example, assert_equal

from statedual.selective_scan import library, op
from statedual.ssd import chunk, passes, segments

PLANS = {"steps": library.STEPS, "products": library.PRODUCTS}
every_path = pytest.mark.parametrize("path", PLANS)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setitem(segments._BUDGET, "cpu", 60_000)
    return 60_000


def walked(path: str, case: Example, size: int) -> list[int]:
    """How many segments each run of ``case`` has when it is cut into chunks of ``size``."""
    walk = PLANS[path].walk((case.x, case.log_a, case.b, case.c), size, case.log_a.new_empty(0))
    return [len(run.segments) for run in walk.runs(*case.x.shape[:2], case.offsets)]


@pytest.mark.usefixtures("small")
@every_path
@pytest.mark.parametrize("kind", DECAYS)
def test_a_long_row(path: str, kind: str) -> None:
    case = example(250, 4, (4, 2, 1), head_dim=PATHS[path][1], state=8, kind=kind)
    assert min(walked(path, case, 24)) >= 5
    assert_equal(results(case, "chunked", 24), truth(case), case)


@pytest.mark.usefixtures("small")
@every_path
@pytest.mark.parametrize("time", [15, 16, 17, 33, 96])
def test_rows_side_by_side(path: str, time: int) -> None:
    """Short rows share a segment as far as they fit; the last run may have fewer."""
    case = example(time, 2, (2, 1, 2), batch=7, head_dim=PATHS[path][1], state=5)
    assert 1 < len(walked(path, case, 16)) <= 7
    assert_equal(results(case, "chunked", 16), truth(case), case)


@pytest.mark.usefixtures("small")
@every_path
def test_packed_sequences(path: str) -> None:
    """Each sequence keeps the states that enter its segments; the backward finds its own."""
    offsets = [0, 0, 300, 309, 309, 700, 800]
    case = example(800, 4, (4, 2, 1), head_dim=PATHS[path][1], state=8, offsets=offsets)
    counts = walked(path, case, 16)
    assert counts[0] == counts[3] == 0
    assert sum(counts) > 10
    assert_equal(results(case, "chunked", 16), truth(case), case)


@every_path
@pytest.mark.parametrize("budget", [1, 30_000, 1 << 40])
def test_the_budget_is_a_matter_of_speed_only(path: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(segments._BUDGET, "cpu", budget)
    case = example(100, 3, (3, 3, 1), batch=2, head_dim=PATHS[path][1], dtype=torch.float64)
    assert_equal(results(case, "chunked", 10), truth(case), case)


@every_path
@pytest.mark.parametrize("sizes", [(1, 16, (8, 1, 1)), (64, 64, (4, 4, 4)), (64, 32, (4, 1, 1))])
def test_the_work_buffers_hold_about_the_budget(
    path: str, sizes: tuple[int, int, tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``elements`` says how much a chunk takes; the backward, which takes most, keeps to it."""
    head_dim, state, groups = sizes
    case, made = example(1000, groups[0], groups, head_dim=head_dim, state=state), []
    inputs = (case.x, case.log_a, case.b, case.c)
    budget = 6 * 4 * PLANS[path].elements(*inputs[:3], 32)
    monkeypatch.setitem(segments._BUDGET, "cpu", budget)
    monkeypatch.setattr(op, "WIDE", 1 if path == "products" else 999)
    monkeypatch.setattr(passes, "Buffers", lambda like: made.append(chunk.Buffers(like)) or made[-1])
    results(case, "chunked", 32)
    assert len(made) == 2, "one set for the output, one for the gradient"
    held = [sum(buffer.nbytes for buffer in buffers._flat.values()) for buffers in made]
    assert 2 / 3 < max(held) / budget < 3 / 2
