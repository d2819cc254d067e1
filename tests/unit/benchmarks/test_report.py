"""Bars are met in the right direction, and a report says the same as a table, as Markdown and as JSON."""

import io
import json
import math
from dataclasses import asdict

import pytest
from benchmark_examples import measurement
from rich.console import Console

from statedual.benchmarks.report import Bar, Report, growth_bars, memory_bar, speed_bar

OURS = measurement("ours", seconds=0.002, mib=3)
PEER = measurement("peer", seconds=0.005, mib=12)
FLOOR = measurement("floor: bytes", seconds=0.001, mib=None)


def report(*bars: Bar) -> Report:
    return Report("ssd", {"processor": "one of them", "threads": "2"}, [OURS, PEER, FLOOR], list(bars))


def test_at_least_asks_for_no_less_and_at_most_for_no_more() -> None:
    for measured, less, more in ((1.99, False, True), (2.0, True, True), (2.01, True, False), (math.nan, False, False)):
        assert Bar("", measured, 2.0, at_least=True).met is less
        assert Bar("", measured, 2.0, at_least=False).met is more


def test_speed_is_the_peers_time_over_ours() -> None:
    bar = speed_bar(OURS, PEER, at_least=2.4)
    assert bar.measured == pytest.approx(2.5)
    assert bar.met
    assert not speed_bar(OURS, PEER, at_least=2.6).met
    assert not speed_bar(PEER, OURS, at_least=1.0).met
    assert "forward" in bar.name
    assert "peer" in bar.name


def test_memory_is_ours_over_the_peers() -> None:
    bar = memory_bar(OURS, PEER, at_most=0.25)
    assert bar.measured == 0.25
    assert bar.met
    assert not memory_bar(OURS, PEER, at_most=0.24).met
    assert not memory_bar(PEER, OURS, at_most=1.0).met


def test_growth_is_the_longer_over_the_shorter_for_time_and_for_memory() -> None:
    short, long = measurement(time=64, seconds=1.0, mib=2), measurement(time=128, seconds=3.0, mib=4)
    time, memory = growth_bars(short, long, at_most=2.1)
    assert (time.measured, time.met) == (3.0, False)
    assert (memory.measured, memory.met) == (2.0, True)
    assert time.name != memory.name
    for bar in (time, memory):
        assert "128 over 64" in bar.name


def test_a_report_is_met_when_every_bar_is() -> None:
    met, missed = Bar("a", 2.0, 1.0, at_least=True), Bar("b", 2.0, 1.0, at_least=False)
    assert report().met
    assert report(met, met).met
    assert not report(met, missed).met
    assert not report(missed, met).met


def test_json_gives_every_number_back() -> None:
    given = report(Bar("a", 1 / 3, 1.0, at_least=True), Bar("b", 0.1, 0.7, at_least=False))
    read = json.loads(given.json())
    met = [bar.pop("met") for bar in read["bars"]]
    assert met == [False, True]
    assert [Bar(**bar) for bar in read["bars"]] == given.bars
    assert [type(OURS)(**found) for found in read["measurements"]] == given.measurements
    assert (read["suite"], read["setting"]) == (given.suite, given.setting)
    assert set(read) == set(asdict(given))
    assert given.json().endswith("}\n")


def read_tables(markdown: str) -> list[list[dict[str, str]]]:
    """The rows of each table, by their header."""
    tables = []
    for block in markdown.split("\n\n"):
        lines = [line.strip("|").split("|") for line in block.splitlines() if line.startswith("|")]
        header, *rows = [[cell.strip() for cell in line] for line in lines] or [[]]
        if header:
            assert set(rows.pop(0)) == {"---"}
            tables.append([dict(zip(header, row, strict=True)) for row in rows])
    return tables


def test_markdown_says_the_setting_and_both_tables() -> None:
    page = report(Bar("forward: speed", 2.5, 1.8, at_least=True), Bar("memory", 0.5, 0.33, at_least=False)).markdown()
    assert page.startswith("# statedual bench ssd\n\n- processor: one of them\n- threads: 2\n")
    found, bars = read_tables(page)
    assert [(row["case"], row["time"], row["candidate"]) for row in found] == [
        ("forward", "64", name) for name in ("ours", "peer", "floor: bytes")
    ]
    assert [row["ms"] for row in found] == ["2.0", "5.0", "1.0"]
    assert [row["ms / ours"] for row in found] == ["1.00", "2.50", "0.50"]
    assert [list(row.values()).count("") for row in found[:2]] == [0, 0]
    assert bars == [
        {"bar": "forward: speed", "wanted": "≥ 1.80", "measured": "2.50", "met": "met"},
        {"bar": "memory", "wanted": "≤ 0.33", "measured": "0.50", "met": "NOT MET"},
    ]


def test_memory_is_in_mib_and_a_floor_has_none() -> None:
    found, _ = read_tables(report(Bar("a", 1.0, 1.0, at_least=True)).markdown())
    mib = [[value for name, value in row.items() if "MiB" in name] for row in found]
    assert mib[0][0] == "3.0"
    assert mib[1][0] == "12.0"
    assert {"1.00"} == {value for name, value in found[0].items() if name.endswith("/ ours")}
    assert found[1]["MiB / ours"] == "4.00"
    assert set(mib[2]) == {""}


def test_ours_is_the_first_of_each_case_and_length() -> None:
    again = [measurement("ours", time=128, seconds=4.0), measurement("peer", time=128, seconds=6.0)]
    other = [measurement("ours", case="backward", seconds=5.0), measurement("peer", case="backward", seconds=20.0)]
    found, *_ = read_tables(Report("ssd", {}, [OURS, PEER, *again, *other], []).markdown())
    assert [row["ms / ours"] for row in found] == ["1.00", "2.50", "1.00", "1.50", "1.00", "4.00"]


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_each_candidate_and_each_bar_in_one_line(width: int) -> None:
    case = "forward + backward by length"
    named = {"diagonal_ssm chunked": 12.3, "recurrent loop": 1234.5, "floor: operations": None}
    found = [measurement(name, case=case, time=65536, seconds=0.1234, mib=mib) for name, mib in named.items()]
    given = Report("ssd", {}, found, [Bar("forward: speed over Listing 1", 1.5, 1.8, at_least=True)])
    console = Console(width=width, file=io.StringIO())
    console.print(*given.tables())
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for table in read_tables(given.markdown()):
        for row in table:
            cells = [cell for name, cell in row.items() if name != "case"]
            assert any(all(cell in line for cell in cells) for line in lines), cells
