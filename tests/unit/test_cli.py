"""The ``statedual`` command: its words, its exit statuses, and no traceback for what a user can cause."""

from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
import torch

from statedual import cli
from statedual.cli import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """``statedual demo`` ends so."""

    def demo() -> None:
        raise error

    monkeypatch.setattr(cli, "demo", demo)


def test_the_installed_command_is_main() -> None:
    (script,) = entry_points(group="console_scripts", name="statedual")
    assert script.load() is main


def test_version(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"statedual {version('statedual')}\n", "")
    monkeypatch.setattr("sys.argv", ["statedual", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"statedual {version('statedual')}\n"


def test_help_lists_the_subcommands(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    shown, told = capsys.readouterr()
    assert shown.startswith("usage: statedual ")
    for words in ("demo ", "bench ", "three forms", "speed and memory"):
        assert words in shown
    assert told == ""


@pytest.mark.parametrize("command", ["demo", "bench"])
def test_help_of_a_subcommand_explains_its_options(command: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: statedual {command} ")
    assert "--out" in shown


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["demo", "--nonsense"], ["bench", "--repeats", "many"]])
def test_wrong_usage_ends_with_status_2_and_says_where_help_is(arguments: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    shown, told = capsys.readouterr()
    assert shown == ""
    for word in arguments[-1:] or ["demo", "bench"]:
        assert word in told
    assert "statedual" in told
    assert "--help" in told


def test_an_unknown_subcommand_is_told_the_known_ones(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "demo, bench" in capsys.readouterr().err


def test_a_value_error_is_a_message(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    fail_with(monkeypatch, ValueError("repeats is 0"))
    assert main(["demo"]) == 2
    assert capsys.readouterr() == ("", "statedual: repeats is 0\n")


def test_an_interruption_is_a_message(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["demo"]) == 130
    assert capsys.readouterr() == ("", "statedual: interrupted\n")


def test_a_mistake_of_ours_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["demo"])


@pytest.mark.parametrize("status", [None, 0, 1])
def test_the_status_of_a_subcommand_is_that_of_the_command(status: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def bench() -> int | None:
        return status

    monkeypatch.setattr(cli, "bench", bench)
    assert main(["bench"]) == status


def test_a_folder_that_cannot_be_made_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """A file stands where the folder should be. (Little is computed on the way there.)"""
    (tmp_path / "file").touch()
    monkeypatch.setattr("statedual.demo.LENGTHS", (8,))
    monkeypatch.setattr("statedual.demo.agreement", lambda **_: {(torch.float32, "chunked"): {"output y": 0.0}})
    assert main(["demo", "--out", str(tmp_path / "file" / "picture.png")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("statedual: ")
    assert str(tmp_path / "file") in told
