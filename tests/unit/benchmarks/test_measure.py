"""The instruments: which seconds and which bytes count, and what glibc's malloc is told."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from benchmark_examples import MIB

from statedual.benchmarks import machine
from statedual.benchmarks.measure import keep_freed_memory, median_seconds, peak_bytes


class Clock:
    """A clock that stands still until a candidate runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def candidate(self, name: str, *seconds: float) -> Callable[[], None]:
        """A function whose calls take these seconds, one after another."""
        taken: Iterator[float] = iter(seconds)

        def run() -> None:
            self.calls.append(name)
            self.now += next(taken)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", lambda: clock.now)
    return clock


def test_candidates_take_turns(clock: Clock) -> None:
    candidates = {name: clock.candidate(name, *[1.0] * 4) for name in ("ours", "peer")}
    median_seconds(candidates, repeats=3, warmup=1)
    assert clock.calls == ["ours", "peer"] * 4


def test_the_median_of_the_repeats_counts_and_the_warm_up_does_not(clock: Clock) -> None:
    candidates = {
        "odd one out": clock.candidate("", 100, 200, 1, 90, 4),
        "in any order": clock.candidate("", 0, 0, 7, 5, 6),
    }
    assert median_seconds(candidates, repeats=3, warmup=2) == {"odd one out": 4, "in any order": 6}


def test_nine_repeats_follow_two_rounds_of_warm_up(clock: Clock) -> None:
    assert median_seconds({"ours": clock.candidate("", 0, 0, *range(1, 10))}) == {"ours": 5}


def zeros(mib: int) -> torch.Tensor:
    return torch.zeros(mib * MIB, dtype=torch.uint8)


def freed_before_the_next() -> None:
    zeros(8)
    zeros(8)


def held_together() -> None:
    first = zeros(8)
    second = zeros(8)
    del first, second


def several_heights() -> None:
    held = zeros(4)
    zeros(8)
    zeros(2)
    del held
    zeros(6)


THERE = zeros(8)
CASES = {
    "nothing": (lambda: None, 0),
    "freed before the next": (freed_before_the_next, 8),
    "held together": (held_together, 16),
    "the highest of several": (several_heights, 12),
    "a result": (lambda: zeros(8), 8),
    "results": (lambda: [zeros(8), {"b": zeros(4)}], 12),
    "a view of what was there": (lambda: THERE[1:], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_what_is_held_at_once(name: str) -> None:
    run, mib = CASES[name]
    assert peak_bytes(run) == mib * MIB


def test_gradients_and_what_the_backward_keeps_count() -> None:
    x = torch.ones(MIB, requires_grad=True)  # 4 MiB
    # exp keeps its result (4) while its gradient is made from the one that sum expands without memory (4).
    assert peak_bytes(lambda: torch.autograd.grad(x.exp().sum(), x)) == pytest.approx(8 * MIB, abs=1024)


def test_what_is_made_once_and_kept_does_not_count() -> None:
    kept: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        if not kept:
            kept.append(zeros(8))
        return kept[0][:1].clone()

    assert peak_bytes(run) < MIB


def test_measuring_memory_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    peak_bytes(lambda: zeros(1))
    assert capfd.readouterr() == ("", "")


KEEP = """
import platform
import torch
from statedual.benchmarks.measure import keep_freed_memory

def resident() -> int:  # pages of 4 KiB
    return int(open("/proc/self/statm").read().split()[1])

told = keep_freed_memory()
assert isinstance(told, bool)
if told:
    assert platform.libc_ver()[0] == "glibc"
    before = resident()
    x = torch.ones(64 << 20, dtype=torch.uint8)
    del x
    print("kept" if resident() - before > 15000 else "given back")
else:
    print("kept")
"""


def test_freed_memory_is_kept_where_malloc_was_told_so() -> None:
    """In a process of its own, which it changes for good."""
    done = subprocess.run([sys.executable, "-c", KEEP], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("kept\n", 0), done.stderr


def test_another_libc_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert keep_freed_memory() is False


@pytest.mark.parametrize(("one_dnn", "best", "library"), [(0.25, 0.25, "oneDNN"), (2.0, 0.5, "torch.mm")])
def test_limits_are_operations_and_bytes_over_the_median(
    monkeypatch: pytest.MonkeyPatch, one_dnn: float, best: float, library: str
) -> None:
    def medians(runs: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
        assert repeats == 3
        for run in runs.values():
            run()
        return {name: {"torch.mm": 0.5, "oneDNN": one_dnn, "copy": 0.125}[name] for name in runs}

    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(machine, "median_seconds", medians)
    limits = machine.measure_limits(3, size=8, copied=16)
    assert limits.flops == 2 * 8**3 / best
    assert limits.library == library
    assert limits.bandwidth == (16 * 4 + 16 * 4) / 0.125


def test_limits_are_told_in_giga() -> None:
    told = machine.Limits(flops=2.5e11, library="oneDNN", bandwidth=1.25e10).describe()
    assert list(told.values()) == ["250 GFLOP/s (oneDNN)", "12.5 GB/s"]
