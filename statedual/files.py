"""Output files that are whole or absent: an interrupted run leaves nothing half-written behind."""

import os
import uuid
from pathlib import Path


def unfinished_name() -> str:
    """What something is called until it is whole: short, hidden, and another one in every process and thread."""
    return f".statedual-{uuid.uuid4().hex}"


def write_whole(out: Path, content: bytes) -> None:
    """Write beside ``out``, then rename; the folder is made."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder, expected the name of a file to write")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(unfinished_name())
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, out)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
