"""``statedual bench`` from its arguments to its files and its exit status, on sizes that take no time."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmark_examples import measurement

from statedual.benchmarks import bench as module
from statedual.benchmarks import ssd_suite
from statedual.benchmarks.candidate import random_inputs
from statedual.benchmarks.machine import Limits, measure_limits
from statedual.benchmarks.report import Bar, Report
from statedual.cli import main
from statedual.ssd import ssd
from statedual.ssd.cost import SSDShape

PNG = b"\x89PNG\r\n\x1a\n"
SHAPE = SSDShape(batch=1, time=64, heads=2, head_dim=4, state=4)
GATED = SSDShape(batch=1, time=16, heads=2, head_dim=4, state=4, heads_b=2, heads_c=2)
MAMBA_1 = SSDShape(batch=1, time=16, heads=8, head_dim=1, state=4)


@pytest.fixture(autouse=True)
def _the_process_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the command sets for its whole process: malloc, and the number of threads."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(module, "keep_freed_memory", lambda: False)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both suites as they are, on small sizes."""
    monkeypatch.setattr(ssd_suite, "measure_limits", partial(measure_limits, size=32, copied=1 << 10))
    small_ssd = partial(ssd_suite.run_ssd, shape=SHAPE, lengths=(64, 128))
    small_diagonal = partial(module.run_diagonal, gated=GATED, mamba_1=MAMBA_1)
    monkeypatch.setitem(module.SUITES, "ssd", (small_ssd, module.draw_lengths))
    monkeypatch.setitem(module.SUITES, "diagonal", (small_diagonal, module.draw_cases))


def with_bars(monkeypatch: pytest.MonkeyPatch, **met: bool) -> None:
    """Suites that measure nothing and find their bar met, or not."""
    for suite, bar_is_met in met.items():
        bars = [Bar("speed", 2.0, 1.0 if bar_is_met else 3.0, at_least=True)]
        found = Report(suite, {"sizes": "none"}, [measurement("ours"), measurement("peer")], bars)
        monkeypatch.setitem(module.SUITES, suite, (lambda *_, found=found: found, lambda _, out: out.touch()))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("suite", ["ssd", "diagonal"])
def test_a_suite_is_measured_and_written_as_json_markdown_and_picture(
    suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["bench", suite, "--out", str(tmp_path / "new"), "--repeats", "1", "--threads", "1"])
    written = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert written == [f"{suite}.json", f"{suite}.md", f"{suite}.png"]
    found = json.loads((tmp_path / "new" / f"{suite}.json").read_text())
    page = (tmp_path / "new" / f"{suite}.md").read_text()
    assert (tmp_path / "new" / f"{suite}.png").read_bytes().startswith(PNG)
    assert found["suite"] == suite
    assert status == (0 if all(bar["met"] for bar in found["bars"]) else 1)
    assert {"date", "processor", "threads", "torch", "dtype", "malloc", "repeats"} < set(found["setting"])
    assert (found["setting"]["threads"], found["setting"]["repeats"]) == ("1", "1")
    assert {m["candidate"] for m in found["measurements"]} >= {
        "ssd": {"ssd chunked", "Listing 1", "floor: operations", "floor: bytes"},
        "diagonal": {"chunked form", "loop"},
    }[suite]
    assert all(m["seconds"] > 0 for m in found["measurements"])
    shown = capsys.readouterr().out
    for bar in found["bars"]:
        assert f"| {bar['name']} |" in page
        assert f"{bar['measured']:.2f}" in shown
    assert str(tmp_path / "new" / f"{suite}.png") in shown


@pytest.mark.usefixtures("_small")
def test_both_candidates_of_the_ssd_suite_run_at_one_size_and_ours_alone_at_long_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssd_suite, "LISTING_LONGEST", 64)
    run, _ = module.SUITES["ssd"]
    report = run(1, lambda _: None)
    runs: dict[str, list[tuple[str, int]]] = {}
    for m in report.measurements:
        if "floor" not in m.candidate:
            runs.setdefault(m.case, []).append((m.candidate, m.time))
    at_one_size = [("ssd chunked", 64), ("Listing 1", 64)]
    assert runs == {
        "forward": at_one_size,
        "forward + backward": at_one_size,
        "forward by length": [("ssd chunked", 64), ("ssd chunked", 128), ("Listing 1", 64)],
        "forward + backward by length": [("ssd chunked", 64), ("ssd chunked", 128)],
    }
    assert len({bar.name for bar in report.bars}) == len(report.bars) >= 8


def test_the_floor_of_bytes_is_everything_read_and_written_once() -> None:
    shape = SSDShape(batch=2, time=64, heads=3, head_dim=4, state=5)
    inputs = random_inputs(shape)
    tensors = [*inputs, *ssd(*inputs)]
    _, moved = ssd_suite.floors("forward", shape, Limits(flops=1e9, library="", bandwidth=100.0))
    assert moved.seconds == sum(tensor.nbytes for tensor in tensors) / 100
    _, with_backward = ssd_suite.floors("forward + backward", shape, Limits(flops=1e9, library="", bandwidth=100.0))
    # The backward reads the inputs and dy and dstate, and writes a gradient of each input.
    again = 2 * sum(tensor.nbytes for tensor in inputs) + sum(tensor.nbytes for tensor in tensors[4:])
    assert with_backward.seconds == (sum(tensor.nbytes for tensor in tensors) + again) / 100


@pytest.mark.parametrize(
    ("ssd_met", "diagonal_met", "status"), [(True, True, 0), (False, True, 1), (True, False, 1), (False, False, 1)]
)
def test_the_status_is_1_when_any_bar_of_any_suite_is_missed(
    ssd_met: bool, diagonal_met: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_bars(monkeypatch, ssd=ssd_met, diagonal=diagonal_met)
    assert main(["bench", "--out", str(tmp_path)]) == status
    assert len(list(tmp_path.iterdir())) == 6  # a bar that is missed stops nothing


def test_only_the_suites_asked_for_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_bars(monkeypatch, ssd=True, diagonal=False)
    assert main(["bench", "ssd", "--out", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.iterdir()} == {"ssd"}


def test_threads_and_repeats_are_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    with_bars(monkeypatch, ssd=True)
    nothing = module.SUITES["ssd"][0]

    def run(repeats: int, say: object) -> Report:
        seen.append((repeats, torch.get_num_threads()))
        return nothing(repeats, say)

    monkeypatch.setitem(module.SUITES, "ssd", (run, module.SUITES["ssd"][1]))
    main(["bench", "ssd", "--out", str(tmp_path), "--repeats", "3", "--threads", "2"])
    assert seen == [(3, 2)]
    assert json.loads((tmp_path / "ssd.json").read_text())["setting"]["repeats"] == "3"


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize("option", ["repeats", "threads"])
def test_repeats_and_threads_are_positive(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    assert main(["bench", f"--{option}", value, "--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr() == ("", f"statedual: {option} is {value}, expected a positive integer\n")
    assert torch.get_num_threads() == threads
    assert not (tmp_path / "new").exists()


def test_an_unknown_suite_is_told_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "matmul"])
    assert stopped.value.code == 2
    printed, told = capsys.readouterr()
    assert printed == ""
    for word in ("'matmul'", "'ssd'", "'diagonal'"):
        assert word in told


def test_a_wrong_result_has_no_speed_and_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*_: object) -> Report:
        raise ValueError("Listing 1 at time 64: y is off")

    monkeypatch.setitem(module.SUITES, "ssd", (wrong, module.draw_lengths))
    assert main(["bench", "ssd", "--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err == "statedual: Listing 1 at time 64: y is off\n"
    assert list(tmp_path.rglob("*.*")) == []


def test_a_folder_that_cannot_be_made_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_bars(monkeypatch, ssd=True)
    (tmp_path / "file").touch()
    assert main(["bench", "ssd", "--out", str(tmp_path / "file")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("statedual: ")
    assert str(tmp_path / "file") in told
