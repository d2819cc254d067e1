"""The Makefile, its environment, and what continuous integration calls."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def run(*command: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """As from a shell of its own, not as from the ``make test`` that runs this."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that make reads, without an environment."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_help_lists_every_target() -> None:
    (targets,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    done = run("make", "help")
    listed = [line.removeprefix("make ").split("\t")[0] for line in done.stdout.splitlines()]
    assert sorted(listed) == sorted(targets.split())
    assert run("make").stdout == done.stdout  # what `make` alone does


@pytest.mark.parametrize("target", ["demo", "test", "lint", "types", "bench"])
def test_the_environment_is_made_first_and_once(clone: Path, target: str) -> None:
    last = {"test": "pytest", "lint": "ruff", "types": "mypy"}.get(target, f"statedual {target}")
    fresh = run("make", "-n", target, folder=clone).stdout
    assert -1 < fresh.find("-m venv") < fresh.find("pip install") < fresh.find(f".venv/bin/{last}")
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".installed").touch()
    again = run("make", "-n", target, folder=clone).stdout
    assert "pip install" not in again
    assert f".venv/bin/{last}" in again


def test_test_is_lint_and_types_and_tests() -> None:
    commands = run("make", "-n", "test").stdout
    for command in ("ruff check", "ruff format --check", "mypy", "lint-imports", "pytest"):
        assert f".venv/bin/{command}" in commands


def test_torch_of_the_makefile_is_one_that_the_package_takes() -> None:
    (ours,) = re.findall(r"^TORCH := (\S+)$", MAKEFILE, re.MULTILINE)
    (wanted,) = re.findall(r'^ +"(torch\b[^"]*)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert Requirement(wanted).specifier.contains(ours)


@pytest.mark.parametrize("status", [0, 3])
def test_continuous_integration_runs_make_test_in_the_root(tmp_path: Path, status: int) -> None:
    fake = tmp_path / "make"
    fake.write_text(f'#!/bin/sh\necho "$PWD: make $*"\nexit {status}\n')
    fake.chmod(0o755)
    done = run(str(ROOT / ".ci" / "run"), folder=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (done.stdout, done.returncode) == (f"{ROOT}: make test\n", status), done.stderr
