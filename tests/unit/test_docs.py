"""The examples of README.md and docs/: each page runs from top to bottom, and prints what it says it prints."""

import contextlib
import io
import linecache
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from statedual.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


# Of the commands in console blocks, these are run; the others install, measure for minutes, or are for people.
RUN = re.compile(r"\$ statedual (?:info|convert|generate)\b")


class Example(NamedTuple):
    """A block of a page that is run: Python, and the text block that follows it, or a command, and what follows it."""

    line: int
    code: str
    output: str | None
    command: bool = False


def read_examples(page: str) -> list[Example]:
    """Every block fenced as python, in order; a text block belongs to it when no other block stands between.

    And every command of ``RUN`` in a block fenced as console, with the lines behind it.
    """
    examples: list[Example] = []
    previous = ""
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        language, body = block.groups()
        line = page.count("\n", 0, block.start(2))
        if language == "python":
            examples.append(Example(line, body, None))
        elif language == "text" and previous == "python":
            examples[-1] = examples[-1]._replace(output=body)
        elif language == "console":
            for command in re.finditer(r"^\$ .*\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
                if RUN.match(command[0]):
                    code = command[0].splitlines()[0].removeprefix("$ ")
                    examples.append(Example(line, code, command[1] or None, command=True))
        previous = language
    return examples


def run(page: str, name: str = "page") -> list[tuple[str, str | None]]:
    """What each example of the page prints, and what it should; all in one namespace, as a reader would type them."""
    namespace: dict[str, object] = {"__name__": name}
    results = []
    for example in read_examples(page):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if example.command:
                assert main(shlex.split(example.code)[1:]) == 0, example.code
            else:
                source = "\n" * example.line + example.code  # so that a traceback names the line of the page
                lines = source.splitlines(keepends=True)
                linecache.cache[name] = (len(source), None, lines, name)  # compilers read it there
                exec(compile(source, name, "exec"), namespace)
        results.append((printed.getvalue(), example.output))
    return results


def as_said(printed: str, said: str) -> bool:
    """``said`` is what was printed; a line ``...`` stands for any number of lines."""
    parts = re.split(r"^\.\.\.\n", said, flags=re.MULTILINE)
    return bool(re.fullmatch("(?:.*\n)*".join(re.escape(part) for part in parts), printed))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("page", PAGES)
def test_examples_print_what_the_page_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for printed, said in run((ROOT / page).read_text(), page):
        if said is not None and not as_said(printed, said):
            assert printed == said


@pytest.mark.parametrize("page", PAGES)
def test_no_page_waits_to_be_filled_in(page: str) -> None:
    assert not re.search(r"^[A-Z_]{6,}$|TODO", (ROOT / page).read_text(), re.MULTILINE)


def test_pages_are_found_and_have_examples() -> None:
    with_examples = [page for page in PAGES if read_examples((ROOT / page).read_text())]
    assert {
        "README.md",
        "docs/masked_attention.md",
        "docs/checkpoints.md",
        "docs/generation.md",
        "docs/models.md",
        "docs/selective_scan.md",
        "docs/semiseparable.md",
        "docs/ssd.md",
    } <= set(with_examples)


PAGE = """# Title

```python
x = 1
print(x)
```

Prose.

```text
1
```

```text
not an output
```

```console
$ python
```

```python
print(x + 1)
```

```python
x = 3
```

```console
$ true
```

```text
not an output either
```
"""


def test_blocks_share_a_namespace_and_outputs_follow_their_block() -> None:
    assert [(example.line, example.output) for example in read_examples(PAGE)] == [(3, "1\n"), (22, None), (26, None)]
    assert run(PAGE) == [("1\n", "1\n"), ("2\n", None), ("", None)]


def test_an_error_names_the_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("Text.\n\n```python\nx = 0\n1 / x\n```\n", "broken.md")
    assert caught.traceback[-1].lineno + 1 == 5


def test_commands_are_run_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = "```console\n$ pip install x\n$ statedual info mamba2-130m\n...\n$ make test\nno\n```\n"
    ((printed, said),) = run(page)
    assert "128,989,632" in printed
    assert said == "...\n"


@pytest.mark.parametrize(
    ("printed", "said", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a\nb\nc\n", "a\n...\nc\n", True),
        ("a\nb\nd\n", "a\n...\nc\n", False),
        ("a\n", "a\n...\n", True),
        ("a.\n", "a.\n", True),
        ("ab\n", "a.\n", False),
    ],
)
def test_dots_stand_for_lines(printed: str, said: str, same: bool) -> None:
    assert as_said(printed, said) == same
