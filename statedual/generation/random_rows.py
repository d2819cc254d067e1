"""Random numbers that belong to a row: what is drawn for one does not depend on what else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import torch


def row_generators(seed: int | Sequence[int] | None, rows: int) -> list[torch.Generator]:
    """One generator a row. An integer: row i has seed + i. A list: a seed for every row. None: drawn by PyTorch."""
    generators = [torch.Generator() for _ in range(rows)]
    if seed is None:
        seed = torch.randint(2**63 - 1, (rows,)).tolist()  # so that torch.manual_seed makes them known
    if isinstance(seed, bool | str) or not isinstance(seed, Integral | Sequence):
        raise ValueError(f"seed is {seed!r}, expected an integer, or a list with one for every row")
    seeds = [int(seed) + row for row in range(rows)] if isinstance(seed, Integral) else list(seed)
    if len(seeds) != rows:
        raise ValueError(f"seed has {len(seeds)} integers, expected {rows}, one for every row, or a single integer")
    for row, (generator, value) in enumerate(zip(generators, seeds, strict=True)):
        if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= value < 2**63:
            raise ValueError(f"seed of row {row} is {value!r}, expected an integer, at least 0 and below 2^63")
        generator.manual_seed(int(value))
    return generators


def uniform(generator: torch.Generator) -> float:
    """The next number of a row, at least 0 and below 1, with the 53 bits of a float64."""
    return torch.rand((), generator=generator, dtype=torch.float64).item()
