"""docs/paper_map.md points at what exists: every file, symbol and test, and every labelled item of the paper."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "paper_map.md"

# The labels of definitions, lemmas, propositions, theorems, corollaries, remarks, equations and listings: sections 2 to
# 7, appendices B and C. The labels of tables of models: sections 9.2 and 9.4, appendix D.
LABELS = """
    eq:ssm eq:ssm:1 eq:ssm:2 eq:s6 eq:s6:1 eq:s6:2
    def:sequence-transformation def:ssm def:matrix-transformation

    eq:ssm-matrix def:semiseparable-rank def:sss eq:sss lmm:sss-rank-factor eq:sss-rank-factor prop:sss
    eq:1ss eq:1ss-recurrence thm:ssm-sss prop:ss-mvm
    eq:ssm-diagonal eq:ssm-diagonal:1 eq:ssm-diagonal:2 eq:ssm-diagonal:3 thm:ssm-efficiency

    eq:kernel-attention rmk:attention-input
    eq:sha-quad-matrix eq:sha-quad-0 eq:sha eq:sha-quad eq:sha-quad:1 eq:sha-quad:2 eq:sha-quad:3
    eq:sha-lin-matrix prop:linear-attention eq:sha-lin eq:sha-lin:1 eq:sha-lin:2 eq:sha-lin:3 def:sma

    eq:ssm-quad cor:1ss-sma thm:ss-sma

    thm:algorithm listing

    fig:architecture def:head-pattern eq:multihead eq:multiquery eq:multikey eq:multivalue prop:mamba-multihead

    table:downstream_zeroshot tab:ssd_attn table:hybrid_eval
    tab:ablations-architecture tab:ablations-heads tab:ablations-kernel tab:ablations-kernel-based tab:gpt3

    eq:ssm-scan eq:scan:associative-operator

    prop:ss-closure eq:efficient-ar thm:ss-sma-formal
""".split()  # noqa: SIM905 - as a list it takes 51 lines


class Row(NamedTuple):
    """One row of a table ``| item | code | test |``."""

    item: str
    code: list[str]
    test: list[str]


def read_rows(page: str) -> list[Row]:
    """The rows of every table of the page whose header is item, code, test."""
    rows, inside = [], False
    for line in page.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if [cell.lower() for cell in cells] == ["item", "code", "test"]:
            inside = True
        elif inside and not all(set(cell) <= set(":-") for cell in cells):
            if len(cells) != 3:
                raise ValueError(f"expected 3 cells, got {len(cells)}: {line}")
            rows.append(Row(cells[0], re.findall(r"`([^`]+)`", cells[1]), re.findall(r"`([^`]+)`", cells[2])))
    return rows


def symbols(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """What a module or class body defines: functions, classes with all inside them, and assigned names."""
    names = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            names |= {prefix + node.name} | symbols(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(prefix + node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {prefix + t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    return names


def broken(reference: str, folder: str, root: Path) -> str | None:
    """What is wrong with ``folder/file.py::symbol``, or None."""
    file, _, symbol = reference.partition("::")
    if not file.startswith(folder + "/"):
        return f"{reference} is not under {folder}/"
    if not (root / file).is_file():
        return f"{file} does not exist"
    known = symbols(ast.parse((root / file).read_text()).body)
    return None if not symbol or symbol.replace("::", ".") in known else f"{file} has no {symbol}"


def faults(page: str, root: Path = ROOT) -> list[str]:
    """Everything that is wrong with the page."""
    found, seen = [], set()
    for row in read_rows(page):
        problems = [broken(code, "statedual", root) for code in row.code]
        for test in row.test:
            named = test.rpartition("::")[2].startswith("test_") and "::" in test
            problems.append(broken(test, "tests", root) if named else f"{test} does not name a test")
        if not row.code:
            problems.append("no code")
        if not row.test:
            problems.append("no test")
        if row.item in seen:
            problems.append("occurs twice")
        seen.add(row.item)
        found += [f"{row.item}: {problem}" for problem in problems if problem]
    return found


def missing(page: str, labels: list[str]) -> list[str]:
    """The labels that no item of the page names in full."""
    items = "\n".join(row.item for row in read_rows(page))
    return [label for label in labels if not re.search(rf"(?<![\w:-]){re.escape(label)}(?![\w-]|:\w)", items)]


def test_every_row_names_what_exists() -> None:
    assert faults(PAGE.read_text()) == []


def test_every_labelled_item_has_a_row() -> None:
    assert missing(PAGE.read_text(), LABELS) == []


HEADER = "| item | code | test |\n|---|---|:--|\n"
GOOD_CODE, GOOD_TEST = "`statedual/layer.py::Layer.size`", "`tests/test_layer.py::test_size`"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package of one module, with one test."""
    (tmp_path / "statedual").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "statedual/layer.py").write_text(
        "from os import sep\nWIDTH, DEPTH = 1, 2\n\n\nclass Layer:\n    size: int = 3\n\n    def run(self): ...\n"
    )
    (tmp_path / "tests/test_layer.py").write_text(
        "def test_size(): ...\n\n\nclass TestRun:\n    def test_twice(self): ...\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("code", "test"),
    [
        (GOOD_CODE, GOOD_TEST),
        ("`statedual/layer.py`", GOOD_TEST),
        ("`statedual/layer.py::DEPTH`<br>`statedual/layer.py::Layer`", GOOD_TEST),
        ("see `statedual/layer.py::Layer.run`", "`tests/test_layer.py::TestRun::test_twice`<br>" + GOOD_TEST),
    ],
)
def test_good_rows_pass(house: Path, code: str, test: str) -> None:
    page = f"{HEADER}| Def 1 | {code} | {test} |\n"
    assert len(read_rows(page)) == 1
    assert faults(page, house) == []


@pytest.mark.parametrize(
    ("code", "test", "fault"),
    [
        ("`statedual/other.py::Layer`", GOOD_TEST, "statedual/other.py does not exist"),
        ("`statedual/layer.py::Other`", GOOD_TEST, "statedual/layer.py has no Other"),
        ("`statedual/layer.py::Layer.other`", GOOD_TEST, "statedual/layer.py has no Layer.other"),
        ("`statedual/layer.py::run`", GOOD_TEST, "statedual/layer.py has no run"),
        ("`statedual/layer.py::sep`", GOOD_TEST, "statedual/layer.py has no sep"),
        (f"{GOOD_CODE}<br>`statedual/layer.py::Other`", GOOD_TEST, "statedual/layer.py has no Other"),
        ("`layer.py::Layer`", GOOD_TEST, "layer.py::Layer is not under statedual/"),
        (GOOD_CODE, "`tests/test_other.py::test_size`", "tests/test_other.py does not exist"),
        (GOOD_CODE, "`tests/test_layer.py::test_other`", "tests/test_layer.py has no test_other"),
        (GOOD_CODE, "`tests/test_layer.py`", "tests/test_layer.py does not name a test"),
        (GOOD_CODE, "`tests/test_layer.py::TestRun`", "tests/test_layer.py::TestRun does not name a test"),
        (GOOD_CODE, "by inspection", "no test"),
        ("-", GOOD_TEST, "no code"),
    ],
)
def test_bad_rows_fail(house: Path, code: str, test: str, fault: str) -> None:
    assert faults(f"{HEADER}| Def 1 | {code} | {test} |\n", house) == [f"Def 1: {fault}"]


def test_an_item_that_occurs_twice_fails(house: Path) -> None:
    row = f"| Def 1 | {GOOD_CODE} | {GOOD_TEST} |\n"
    assert faults(f"{HEADER}{row}\nText.\n\n{HEADER}{row}", house) == ["Def 1: occurs twice"]


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 3 cells, got 2"):
        read_rows(f"{HEADER}| Def 1 | {GOOD_CODE} |\n")


def test_a_label_counts_only_in_full_and_only_as_an_item() -> None:
    page = f"`eq:d` in the text\n\n{HEADER}| `eq:a-b`, `eq:c:1` | {GOOD_CODE} `eq:e` | {GOOD_TEST} |\n"
    assert missing(page, ["eq:a", "eq:a-b", "eq:c", "eq:c:1", "eq:d", "eq:e"]) == ["eq:a", "eq:c", "eq:d", "eq:e"]
