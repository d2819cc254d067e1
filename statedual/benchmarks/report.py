"""What a suite found: measurements, the bars they have to pass, and both as tables and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.table import Table


@dataclass(frozen=True)
class Measurement:
    """One candidate at one length; a floor takes time but holds no memory.

    ``peak_bytes`` is the most that was held at once beyond the inputs, ``result_bytes`` what of it was asked for:
    outputs and gradients.
    """

    case: str
    time: int
    candidate: str
    seconds: float
    peak_bytes: int | None
    result_bytes: int = 0

    def memory(self) -> int:
        """The peak, of what has one."""
        assert self.peak_bytes is not None
        return self.peak_bytes

    def work(self) -> int:
        """The peak beyond inputs and results."""
        return self.memory() - self.result_bytes


@dataclass(frozen=True)
class Bar:
    """A ratio, and what is asked of it."""

    name: str
    measured: float
    wanted: float
    at_least: bool

    @property
    def met(self) -> bool:
        """Whether the ratio is what it should be."""
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted


def speed_bar(ours: Measurement, peer: Measurement, *, at_least: float) -> Bar:
    """Ours is so many times as fast as the peer."""
    return Bar(f"{ours.case}: speed over {peer.candidate}", peer.seconds / ours.seconds, at_least, at_least=True)


def memory_bar(ours: Measurement, peer: Measurement, *, at_most: float) -> Bar:
    """Ours holds at most this part of what the peer holds."""
    return Bar(f"{ours.case}: memory over {peer.candidate}", ours.memory() / peer.memory(), at_most, at_least=False)


def work_bar(ours: Measurement, peer: Measurement, *, at_most: float) -> Bar:
    """Beyond the results, which take the same memory everywhere, ours holds at most this part of the peer's."""
    name = f"{ours.case}: memory beyond results over {peer.candidate}"
    return Bar(name, ours.work() / peer.work(), at_most, at_least=False)


def growth_bars(short: Measurement, long: Measurement, *, at_most: float) -> list[Bar]:
    """Time and memory from one length to a longer one."""
    lengths = f"{long.time} over {short.time}"
    return [
        Bar(f"{long.case}: time, {lengths}", long.seconds / short.seconds, at_most, at_least=False),
        Bar(f"{long.case}: memory, {lengths}", long.memory() / short.memory(), at_most, at_least=False),
    ]


@dataclass(frozen=True)
class Report:
    """One run of one suite; ``setting`` is all that its numbers depend on."""

    suite: str
    setting: dict[str, str]
    measurements: list[Measurement]
    bars: list[Bar]

    @property
    def met(self) -> bool:
        """Whether every bar is met."""
        return all(bar.met for bar in self.bars)

    def json(self) -> str:
        """Everything, as numbers."""
        bars = [asdict(bar) | {"met": bar.met} for bar in self.bars]
        return json.dumps(asdict(self) | {"bars": bars}, indent=2) + "\n"

    def markdown(self) -> str:
        """The setting and both tables."""
        setting = "\n".join(f"- {name}: {value}" for name, value in self.setting.items())
        tables = "\n".join(_markdown_table(header, rows) for header, rows in self._tables())
        return f"# statedual bench {self.suite}\n\n{setting}\n\n{tables}"

    def tables(self) -> list[Table]:
        """Both tables, for a terminal."""
        (header, rows), bars = self._tables()
        cases = dict.fromkeys(row[0] for row in rows)
        tables = [
            _rich_table(f"{self.suite}: {case}", header[1:], [row[1:] for row in rows if row[0] == case])
            for case in cases
        ]
        return [*tables, _rich_table(f"{self.suite}: bars", *bars)]

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        return [
            (
                ["case", "time", "candidate", "ms", "peak MiB", "results MiB", "ms / ours", "MiB / ours"],
                self._measured_cells(),
            ),
            (["bar", "wanted", "measured", "met"], [_bar_cells(bar) for bar in self.bars]),
        ]

    def _measured_cells(self) -> list[list[str]]:
        ours: dict[tuple[str, int], Measurement] = {}
        rows = []
        for m in self.measurements:
            first = ours.setdefault((m.case, m.time), m)
            memory = ["", "", ""]
            if m.peak_bytes is not None:
                memory = [f"{m.peak_bytes / 2**20:.1f}", f"{m.result_bytes / 2**20:.1f}"]
                memory.append(f"{m.peak_bytes / first.memory():.2f}")
            speed = [f"{1e3 * m.seconds:.1f}", f"{m.seconds / first.seconds:.2f}"]
            rows.append([m.case, str(m.time), m.candidate, speed[0], *memory[:2], speed[1], memory[2]])
        return rows


def _bar_cells(bar: Bar) -> list[str]:
    sign = "≥" if bar.at_least else "≤"
    return [bar.name, f"{sign} {bar.wanted:.2f}", f"{bar.measured:.2f}", "met" if bar.met else "NOT MET"]


def _rich_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title)
    for name in header:
        words = name in ("candidate", "bar", "met")
        table.add_column(name, justify="left" if words else "right", no_wrap=name == "candidate")
    for row in rows:
        table.add_row(*row)
    return table


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
