"""A file is whole or absent, whatever happens while it is written."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from statedual.files import write_whole

every_interruption = pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, MemoryError])


def interrupt(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    """Half of the bytes are written; then it happens."""
    write = Path.write_bytes

    def half(path: Path, content: bytes) -> int:
        write(path, content[: len(content) // 2])
        raise error

    monkeypatch.setattr(Path, "write_bytes", half)


def test_folders_are_made(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "report.json"
    write_whole(out, b"\x00{}\n")
    assert out.read_bytes() == b"\x00{}\n"
    assert [path.name for path in out.parent.iterdir()] == ["report.json"]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    out.write_bytes(b"a longer text of before")
    write_whole(out, b"new")
    assert out.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [out]


@every_interruption
def test_an_interruption_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    interrupt(monkeypatch, error)
    with pytest.raises(error):
        write_whole(tmp_path / "report.json", b"never whole")
    assert list(tmp_path.iterdir()) == []


@every_interruption
def test_an_interruption_leaves_the_file_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    out = tmp_path / "report.json"
    out.write_bytes(b"whole")
    interrupt(monkeypatch, error)
    with pytest.raises(error):
        write_whole(out, b"never whole")
    assert out.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_in_the_place_of_the_file_stays(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    out.mkdir()
    with pytest.raises(ValueError, match=r"report\.json is a folder, expected the name of a file"):
        write_whole(out, b"text")
    assert list(tmp_path.iterdir()) == [out]


def test_threads_do_not_share_what_is_unfinished(tmp_path: Path) -> None:
    """One name for every process would have them write into each other's files."""
    out = tmp_path / "state"
    contents = [bytes([number]) * 200_000 for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(partial(write_whole, out), contents * 25):
            assert out.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [out]


def test_a_name_as_long_as_the_system_allows(tmp_path: Path) -> None:
    write_whole(tmp_path / ("x" * 250), b"whole")
    assert (tmp_path / ("x" * 250)).read_bytes() == b"whole"
