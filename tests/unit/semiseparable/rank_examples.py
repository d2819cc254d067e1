"""Ranks without rounding: matrices of small integers, eliminated over the rationals; and every block there is."""

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch
from hypothesis import strategies as st
from torch import Tensor

from statedual.semiseparable import SemiseparableMatrix

Rows = Sequence[Sequence[int | Fraction]]


def exact(m: Tensor) -> list[list[Fraction]]:
    return [[Fraction(value) for value in row] for row in m.double().tolist()]


def exact_rank(rows: Rows) -> int:
    """Gaussian elimination."""
    left = [[Fraction(value) for value in row] for row in rows if any(row)]
    rank = 0
    while left:
        pivot, *others = left
        at = next(k for k, value in enumerate(pivot) if value)
        reduced = [[x - row[at] / pivot[at] * p for x, p in zip(row, pivot, strict=True)] for row in others]
        left = [row for row in reduced if any(row)]
        rank += 1
    return rank


def exact_inverse(rows: Rows) -> list[list[Fraction]]:
    """Forward substitution, column by column, in a lower-triangular matrix."""
    inverse = [[Fraction(0)] * len(rows) for _ in rows]
    for column in range(len(rows)):
        for t in range(column, len(rows)):
            known = sum((rows[t][s] * inverse[s][column] for s in range(column, t)), Fraction(0))
            inverse[t][column] = (int(t == column) - known) / rows[t][t]
    return inverse


def blocks(time: int) -> Iterator[tuple[int, int, int, int]]:
    """First and last row, first and last column (one past) of every contiguous block on or below the diagonal."""
    for first_row in range(time):
        for last_row, first_column in itertools.product(range(first_row + 1, time + 1), range(first_row + 1)):
            for last_column in range(first_column + 1, first_row + 2):
                yield first_row, last_row, first_column, last_column


def rank_of_all_blocks(rows: Rows) -> int:
    """Definition ``def:semiseparable-rank``, every block by itself."""
    ranks = (
        exact_rank([row[first_column:last_column] for row in rows[first_row:last_row]])
        for first_row, last_row, first_column, last_column in blocks(len(rows))
    )
    return max(ranks, default=0)


def integers(*shape: int, seed: int, largest: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-largest, largest + 1, shape, generator=generator).double()


def integer_example(kind: str, time: int, order: int, seed: int = 0) -> SemiseparableMatrix:
    """Factors whose matrix is exact in float64."""
    shape = {"scalar": (time,), "diagonal": (time, order), "dense": (time, order, order)}[kind]
    a, b, c = (integers(*size, seed=seed + k) for k, size in enumerate((shape, (time, order), (time, order))))
    return SemiseparableMatrix(a, b, c)


@st.composite
def integer_matrices(draw: st.DrawFn, times: Sequence[int] = (0, 1, 2, 3, 4, 5, 7)) -> Tensor:
    """Lower-triangular matrices of small integers: full, sparse, banded, or a sum of a few outer products."""
    time, seed = draw(st.sampled_from(times)), draw(st.integers(0, 9999))
    m = integers(time, time, seed=seed).tril()
    match draw(st.sampled_from(["full", "sparse", "banded", "outer"])):
        case "sparse":
            return m * (integers(time, time, seed=seed + 1, largest=3) > 1)
        case "banded":
            return m.triu(-draw(st.integers(0, 3)))
        case "outer":
            terms = draw(st.integers(0, 2))
            return (integers(time, terms, seed=seed) @ integers(terms, time, seed=seed + 1)).tril()
        case _:
            return m
