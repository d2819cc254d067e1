"""The examples of README.md and docs/: each page runs from top to bottom, and prints what it says it prints."""

import contextlib
import io
import linecache
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


class Example(NamedTuple):
    """A Python block of a page, and the text block that follows it, if one does."""

    line: int
    code: str
    output: str | None


def read_examples(page: str) -> list[Example]:
    """Every block fenced as python, in order; a text block belongs to it when no other block stands between."""
    examples: list[Example] = []
    previous = ""
    for block in re.finditer(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        language, body = block.groups()
        if language == "python":
            examples.append(Example(page.count("\n", 0, block.start(2)), body, None))
        elif language == "text" and previous == "python":
            examples[-1] = examples[-1]._replace(output=body)
        previous = language
    return examples


def run(page: str, name: str = "page") -> list[tuple[str, str | None]]:
    """What each example of the page prints, and what it should; all in one namespace, as a reader would type them."""
    namespace: dict[str, object] = {"__name__": name}
    results = []
    for example in read_examples(page):
        source = "\n" * example.line + example.code  # so that a traceback names the line of the page
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # compilers read it there
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(source, name, "exec"), namespace)
        results.append((printed.getvalue(), example.output))
    return results


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("page", PAGES)
def test_examples_print_what_the_page_says(page: str) -> None:
    for printed, said in run((ROOT / page).read_text(), page):
        if said is not None:
            assert printed == said


@pytest.mark.parametrize("page", PAGES)
def test_no_page_waits_to_be_filled_in(page: str) -> None:
    assert not re.search(r"^[A-Z_]{6,}$|TODO", (ROOT / page).read_text(), re.MULTILINE)


def test_pages_are_found_and_have_examples() -> None:
    with_examples = [page for page in PAGES if read_examples((ROOT / page).read_text())]
    assert {
        "README.md",
        "docs/masked_attention.md",
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
