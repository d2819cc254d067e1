"""What importing the package does, and what it does not."""

import ast
import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "statedual").rglob("*.py"))
PACKAGES = [file for file in FILES if file.name == "__init__.py"]


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = [module_name(file) for file in FILES]
# What people compute with; commands and benchmarks stand above.
LIBRARY = [name for name in MODULES if not re.match(r"statedual\.(benchmarks|commands|demo|cli|__main__)\b", name)]

LIGHT = f"""
import sys

def no_network(event: str, arguments: tuple) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise OSError(event)

sys.addaudithook(no_network)
import importlib
for name in {LIBRARY}:
    importlib.import_module(name)
print(*sorted({{"matplotlib", "tyro", "rich", "scipy"}} & set(sys.modules)))
"""

EACH_FIRST = f"""
import importlib, os, sys
import einops, jaxtyping, numpy, rich.progress, rich.table, torch, tyro.extras  # once, for speed

for name in {MODULES}:
    assert "statedual" not in sys.modules
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_library_imports_no_command_line_and_no_plots_and_asks_no_network() -> None:
    assert run(LIGHT) == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each module is imported in a fork")
def test_every_module_can_be_the_first_that_is_imported() -> None:
    assert run(EACH_FIRST) == ""


def imported(tree: ast.AST) -> set[str]:
    """The first word of every import below ``tree``."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


def test_every_import_is_a_dependency_and_matplotlib_stands_inside_functions() -> None:
    requirements = [Requirement(text) for text in requires("statedual") or [] if "extra ==" not in text]
    needed = {requirement.name.replace("-", "_") for requirement in requirements}
    assert {"torch", "numpy", "einops", "jaxtyping"} <= needed
    for file in FILES:
        tree = ast.parse(file.read_text())
        foreign = imported(tree) - sys.stdlib_module_names - {"statedual"}
        assert foreign <= needed | {"matplotlib"}, file
        at_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert "matplotlib" not in imported(ast.Module(at_import, [])), file


@pytest.mark.parametrize("package", PACKAGES, ids=module_name)
def test_a_package_exports_by_name_what_it_lists(package: Path) -> None:
    body = ast.parse(package.read_text()).body
    aliases = [alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in aliases)  # `name as name`: meant for others
    listed = getattr(importlib.import_module(module_name(package)), "__all__", [])
    assert sorted(listed) == sorted(alias.name for alias in aliases)
    for name in listed:
        assert hasattr(sys.modules[module_name(package)], name)


def test_ssd_is_the_function_and_its_folder_is_imported_from() -> None:
    """The one name that is both: what is public is the function, whatever was imported before."""
    code = """
import statedual.ssd.cost
import statedual
from statedual.ssd import ssd, ssd_step
from statedual.ssd.cost import SSDShape
assert statedual.ssd is ssd and callable(ssd)
"""
    assert run(code) == ""
