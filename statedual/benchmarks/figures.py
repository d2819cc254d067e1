"""Pictures of reports. matplotlib is needed only here, and only when a picture is drawn."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from statedual.benchmarks.report import Measurement, Report
from statedual.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which all eyes tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def draw_if_possible(draw: Callable[[Path], None], out: Path, what: str, console: Console) -> None:
    """Draw and say where; without matplotlib, say how to get it."""
    try:
        draw(out)
    except ModuleNotFoundError as missing:
        if missing.name != "matplotlib":
            raise
        console.print("No picture: matplotlib is missing. Install it with:\n  pip install 'statedual\\[plots]'")
    else:
        console.print(f"{what}: {out}", soft_wrap=True, markup=False)


def save_figure(figure: "Figure", out: Path) -> None:
    """As PNG, whole or not at all."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, format="png")
    write_whole(out, drawn.getvalue())


def draw_lengths(report: Report, out: Path) -> None:
    """Time and memory against length, both axes logarithmic, for every candidate that has several lengths."""
    from matplotlib.figure import Figure

    lines: dict[tuple[str, str], list[Measurement]] = {}
    for m in report.measurements:
        lines.setdefault((m.case, m.candidate), []).append(m)
    several = [found for found in lines.values() if len(found) > 1]
    figure = Figure(figsize=(12, 5), layout="constrained")
    time, memory = figure.subplots(1, 2)
    for colour, found in zip(COLOURS, several, strict=False):
        lengths, label = [m.time for m in found], f"{found[0].candidate}, {found[0].case}"
        time.plot(lengths, [1e3 * m.seconds for m in found], "o-", color=colour, label=label)
        memory.plot(lengths, [m.memory() / 2**20 for m in found], "o-", color=colour, label=label)
    for ax, title in ((time, "time, ms"), (memory, "peak memory beyond the inputs, MiB")):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set(title=title, xlabel="length")
        ax.grid(color="#DDDDDD")
        ax.legend(frameon=False)
    save_figure(figure, out)


def draw_cases(report: Report, out: Path) -> None:
    """Time and memory of every candidate of every case, as bars on a logarithmic axis."""
    from matplotlib.figure import Figure

    candidates = list(dict.fromkeys(m.candidate for m in report.measurements))
    colours = dict(zip(candidates, COLOURS, strict=False))
    labels = [f"{m.case}\n{m.candidate}" for m in report.measurements]
    figure = Figure(figsize=(14, 0.8 * len(labels) + 1), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    values = (
        ("time, ms", [1e3 * m.seconds for m in report.measurements]),
        ("peak memory beyond the inputs, MiB", [m.memory() / 2**20 for m in report.measurements]),
    )
    for ax, (title, widths) in zip(axes, values, strict=True):
        drawn = ax.barh(labels, widths, color=[colours[m.candidate] for m in report.measurements])
        ax.bar_label(drawn, fmt="%.1f", padding=3)
        ax.set(title=title, xscale="log")
        ax.margins(x=0.15)
    axes[0].invert_yaxis()
    save_figure(figure, out)
