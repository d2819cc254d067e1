"""``statedual bench``: run suites, print their tables, and write each as JSON, Markdown and a figure."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from tyro.conf import Positional

from statedual.benchmarks.diagonal_suite import run_diagonal
from statedual.benchmarks.figures import draw_cases, draw_if_possible, draw_lengths
from statedual.benchmarks.machine import describe
from statedual.benchmarks.measure import keep_freed_memory
from statedual.benchmarks.report import Report
from statedual.benchmarks.ssd_suite import run_ssd
from statedual.checks import require_positive
from statedual.files import write_whole

Suite = tuple[Callable[[int, Callable[[str], None]], Report], Callable[[Report, Path], None]]

# What measures, and what draws.
SUITES: dict[str, Suite] = {"ssd": (run_ssd, draw_lengths), "diagonal": (run_diagonal, draw_cases)}


def bench(
    suites: Positional[tuple[Literal["ssd", "diagonal"], ...]] = (),
    out: Path = Path("bench"),
    repeats: int = 9,
    threads: int = 2,
) -> int:
    """Measure speed and memory against peers and against this machine's limits; a wrong result stops the run.

    Args:
        suites: what to run; everything if not given.
        out: the folder for SUITE.json, SUITE.md and SUITE.png.
        repeats: timed rounds; the median counts.
        threads: threads that PyTorch may use.

    Returns:
        0 if every bar is met, else 1.

    """
    require_positive("repeats", repeats)
    require_positive("threads", threads)
    out.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring, not after
    torch.set_num_threads(threads)
    allocator = "keeps freed memory (mallopt)" if keep_freed_memory() else "default"
    console = Console()
    met = True
    for suite in suites or SUITES:
        run, draw = SUITES[suite]
        report = run(repeats, partial(_say, console, suite))
        setting = {**describe(), "malloc": allocator, "repeats": str(repeats)}
        report = replace(report, setting=setting | report.setting)
        for name, value in report.setting.items():
            console.print(f"{name}: {value}", highlight=False, markup=False)
        console.print(*report.tables())
        write_whole(out / f"{suite}.json", report.json().encode())
        write_whole(out / f"{suite}.md", report.markdown().encode())
        console.print(f"Report: {out / suite}.md, {out / suite}.json", soft_wrap=True, markup=False)
        draw_if_possible(partial(draw, report), out / f"{suite}.png", "Figure", console)
        met = met and report.met
    return 0 if met else 1


def _say(console: Console, suite: str, text: str) -> None:
    console.print(f"[dim]{suite}: {text}[/]")
