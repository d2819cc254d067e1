"""``statedual demo``: what it shows is true, and what were wrong would be seen."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from statedual import demo as module
from statedual.cli import main
from statedual.ssd import SSDOutput, ssd

PNG = b"\x89PNG\r\n\x1a\n"
FORMS = ("recurrent", "quadratic", "chunked")


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo as it is, on lengths that take no time."""
    agreement = module.agreement
    monkeypatch.setattr(module, "agreement", lambda time: agreement(time // 20))
    monkeypatch.setattr(module, "LENGTHS", (8, 16))
    monkeypatch.setenv("COLUMNS", "80")


def print_table(table: object, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def change(monkeypatch: pytest.MonkeyPatch, form: str, change_it: Callable[..., SSDOutput]) -> None:
    """One form is wrong in float32; float64 stays the truth."""

    def changed(*tensors: Tensor, form: str = "chunked", wrong: str = form) -> SSDOutput:
        wrong_here = form == wrong and tensors[0].dtype == torch.float32
        return change_it(*tensors, form=form) if wrong_here else ssd(*tensors, form=form)

    monkeypatch.setattr(module, "ssd", changed)


def rows(found: dict) -> dict[tuple[str, str], int]:
    """How many values of each row of the table are marked."""
    lines = [line.split("│")[1:-1] for line in print_table(module.agreement_table(found)).splitlines() if "│" in line]
    return {(line[0].strip(), line[1].strip()): sum("too large" in cell for cell in line) for line in lines}


def test_every_form_agrees_with_the_recurrence_within_the_tolerance() -> None:
    assert {torch.float32: 1e-5, torch.float64: 1e-12} == module.TOLERANCE
    found = module.agreement(time=200)
    assert list(found) == [(dtype, form) for dtype in (torch.float32, torch.float64) for form in FORMS]
    for (dtype, form), values in found.items():
        assert list(values) == ["output y", "final state", "gradients"]
        assert max(values.values()) <= module.TOLERANCE[dtype], form
    for form in FORMS:
        assert min(found[torch.float32, form].values()) > 0  # compared with float64, not with itself
    assert set(rows(found).values()) == {0}


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_output_is_too_large(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*tensors: Tensor, form: str) -> SSDOutput:
        y, final_state = ssd(*tensors, form=form)
        return SSDOutput(y + 1e-3, final_state)

    change(monkeypatch, form, wrong)
    marked = rows(module.agreement(time=50))
    assert marked.pop(("float32", form)) == 1
    assert set(marked.values()) == {0}


@pytest.mark.parametrize("factor", [1.001, float("nan")])
@pytest.mark.parametrize("place", range(4), ids=["x", "log_a", "b", "c"])
def test_a_wrong_gradient_is_too_large(place: int, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst of four counts, and NaN is worse than any number, wherever it stands."""

    def wrong(*tensors: Tensor, form: str) -> SSDOutput:
        leaves = [tensor.view_as(tensor) for tensor in tensors]
        leaves[place].register_hook(lambda gradient: gradient * factor)
        return ssd(*leaves, form=form)

    change(monkeypatch, "chunked", wrong)
    marked = rows(module.agreement(time=50))
    assert marked.pop(("float32", "chunked")) == 1
    assert set(marked.values()) == {0}


def test_growth_times_every_form_at_every_length() -> None:
    found = module.growth((8, 16), Console(file=io.StringIO()))
    assert list(found) == [8, 16]
    for seconds in found.values():
        assert list(seconds) == list(FORMS)
        assert min(seconds.values()) > 0


def test_growth_is_told_from_one_length_to_the_next() -> None:
    times = {
        256: dict(zip(FORMS, (0.001, 0.010, 0.0005), strict=True)),
        512: dict(zip(FORMS, (0.002, 0.040, 0.0005), strict=True)),
        1024: dict(zip(FORMS, (0.005, 0.120, 0.001), strict=True)),
    }
    lines = print_table(module.growth_table(times)).splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert cells == [
        ["256", "1.0", "10.0", "0.5"],
        ["512", "2.0 (2.0x)", "40.0 (4.0x)", "0.5 (1.0x)"],
        ["1024", "5.0 (2.5x)", "120.0 (3.0x)", "1.0 (2.0x)"],
    ]


def test_tables_fit_a_terminal_of_80_columns() -> None:
    times = dict.fromkeys((256, 4096), dict.fromkeys(FORMS, 12.3456))
    right = dict.fromkeys(("output y", "final state", "gradients"), 1e-13)
    found = {(dtype, form): right for dtype in module.TOLERANCE for form in FORMS}
    for table, row_count in ((module.growth_table(times), 2), (module.agreement_table(found), 6)):
        lines = print_table(table, width=80).splitlines()
        assert sum(line.startswith("│") for line in lines) == row_count  # no row takes two lines
        assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("_small")
def test_both_tables_and_the_picture_come_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "picture.png"
    assert not main(["demo", "--out", str(out)])
    shown = capsys.readouterr().out
    for words in ("float64", "agrees to", "Time as the length doubles", *FORMS, str(out)):
        assert words in shown
    assert "too large" not in shown
    assert out.read_bytes().startswith(PNG)
    assert out.read_bytes().endswith(b"IEND\xaeB`\x82")  # whole
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("name", ["runs [old]", "runs[/]"])
def test_a_path_with_brackets_is_told_as_it_is(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / name / "picture.png"
    main(["demo", "--out", str(out)])
    assert str(out) in capsys.readouterr().out


@pytest.mark.usefixtures("_small")
def test_without_matplotlib_the_demo_runs_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    main(["demo", "--out", str(tmp_path / "picture.png")])
    shown = capsys.readouterr().out
    assert "Time as the length doubles" in shown
    assert "matplotlib is missing" in shown
    assert list(tmp_path.iterdir()) == []
    # On one line, as a command has to be.
    assert "pip install 'statedual[plots]'" in shown


def test_another_missing_module_is_not_taken_for_matplotlib(tmp_path: Path) -> None:
    def draw(_: Path) -> None:
        raise ModuleNotFoundError("No module named 'kiwisolver'", name="kiwisolver")

    with pytest.raises(ModuleNotFoundError, match="kiwisolver"):
        module.draw_if_possible(draw, tmp_path / "picture.png", "Picture", Console(file=io.StringIO()))


def test_the_matrix_is_a_mask_times_a_product_of_low_rank() -> None:
    """M = L * (C B^T): what is left after division by L has rank STATE in every block below the diagonal, as M has."""
    mask, matrix = module.example_matrix()
    assert mask.shape == matrix.shape == (module.TIME, module.TIME)
    assert not mask.triu(1).any()
    assert not matrix.triu(1).any()
    assert torch.equal(mask.diagonal(), torch.ones(module.TIME, dtype=torch.float64))
    decays = mask.diagonal(-1)
    for t, s in ((1, 0), (20, 5), (47, 0), (40, 39)):
        torch.testing.assert_close(mask[t, s], decays[s:t].prod(), rtol=1e-12, atol=0)
    for middle in range(12, 48, 12):
        for block in (matrix[middle:, :middle], matrix[middle:, :middle] / mask[middle:, :middle]):
            assert torch.linalg.matrix_rank(block, rtol=1e-10) == module.STATE
