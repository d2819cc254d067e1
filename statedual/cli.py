"""The ``statedual`` command."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from tyro.extras import SubcommandApp

from statedual.benchmarks.bench import bench
from statedual.commands.convert import convert
from statedual.commands.generate import generate
from statedual.commands.info import info
from statedual.demo import demo

DESCRIPTION = "State space duality for PyTorch. `statedual --version` prints the version."


def main(arguments: Sequence[str] | None = None) -> int | None:
    """Run a subcommand and return its exit status. What a user can cause ends in a message, not in a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"statedual {version('statedual')}")
        return 0
    app = SubcommandApp()
    app.command(demo)
    app.command(bench)
    app.command(info)
    app.command(generate)
    app.command(convert)
    try:
        status: int | None = app.cli(prog="statedual", description=DESCRIPTION, args=arguments)
    except KeyboardInterrupt:
        print("statedual: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that closing it says nothing more
        return 141
    except (ValueError, OSError) as error:
        print(f"statedual: {error}", file=sys.stderr)
        return 2
    return status
