"""``statedual info``: what a model is made of, and what it costs."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import torch
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from statedual.models.checkpoints import load
from statedual.models.config import ModelConfig
from statedual.models.cost import flops_per_token, parameters, state_bytes, weight_bytes
from statedual.models.sizes import NAMES, named

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def info(model: Positional[Annotated[str | None, arg(metavar="[MODEL]")]] = None, context: int = 0) -> int:
    """Show the blocks of a model, its parameters, the memory of its weights and states, its operations a token.

    Args:
        model: a name, or the folder of a checkpoint; all names if not given.
        context: tokens that a sequence has behind it, which count where there is attention.

    Returns:
        0.

    """
    console = Console()
    if model is None:
        console.print(_all_names())
    else:
        console.print(_one_model(model, _configuration(model), context))
    return 0


def _configuration(model: str) -> ModelConfig:
    if Path(model).is_dir():
        return load(model).config  # weights are mapped from the files, and hardly looked at
    try:
        return named(model)
    except ValueError as error:
        raise ValueError(f"{error} (There is no folder of that name either.)") from None


def _all_names() -> Table:
    table = Table(title="Models by name", caption="statedual info NAME has more of one")
    table.add_column("name", no_wrap=True, min_width=max(map(len, NAMES)))
    table.add_column("d_model", justify="right")
    table.add_column("blocks")
    table.add_column("parameters", justify="right")
    for name in NAMES:
        config = named(name)
        table.add_row(name, str(config.d_model), _blocks(config), f"{parameters(config):,}")
    return table


def _one_model(title: str, config: ModelConfig, context: int) -> Table:
    behind = f" behind {context:,} tokens" if context else ""
    padded = "" if config.padded_vocab_size == config.vocab_size else f", padded to {config.padded_vocab_size:,}"
    table = Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("blocks", _blocks(config))
    table.add_row("d_model", f"{config.d_model:,}")
    table.add_row("vocabulary", f"{config.vocab_size:,}{padded}")
    table.add_row("parameters", f"{parameters(config):,}")
    table.add_row("operations a token" + behind, f"{flops_per_token(config, context):,} FLOPs")
    for name, dtype in DTYPES.items():
        table.add_section()
        table.add_row(f"weights in {name}", f"{weight_bytes(config, dtype):,} bytes")
        table.add_row("state of a sequence" + behind, f"{state_bytes(config, dtype, context):,} bytes")
    return table


def _blocks(config: ModelConfig) -> str:
    """How many there are of each kind: "58 mamba2, 6 attention"."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(block.kind for block in config.blocks).items())
