"""``statedual convert``: a checkpoint in another layout."""

from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from tyro.conf import Positional

from statedual.models.checkpoints.convert import convert as convert_checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def convert(
    source: Positional[str],
    target: Positional[Path],
    layout: Literal["statedual", "transformers", "state-spaces"],
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    check: bool = False,
) -> int:
    """Write a checkpoint in another layout, with its tokenizer.

    Args:
        source: a folder, or owner/name of the hub; every layout that can be loaded.
        target: the new folder.
        layout: "transformers" for Mamba2ForCausalLM and MambaForCausalLM, "state-spaces" for mamba_ssm.
        dtype: of the matrices; as they are if not given.
        check: load what was written and compare the logits of random tokens.

    Returns:
        0.

    """
    difference = convert_checkpoint(
        source, target, layout=layout, dtype=None if dtype is None else DTYPES[dtype], check=check
    )
    console = Console()
    console.print(f"Wrote {target}", soft_wrap=True, markup=False, highlight=False)
    if difference is not None:
        console.print(f"Largest difference of logits before and after: {difference:.1e}", highlight=False)
    return 0
