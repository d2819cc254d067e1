"""Semiseparable matrices for tests, and the truth they are compared with: each entry by a plain loop in float64."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from statedual.semiseparable import SemiseparableMatrix

TIMES = st.sampled_from([0, 1, 2, 3, 5, 8, 13])
KINDS = ("scalar", "diagonal", "dense")


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def example(kind: str, time: int, order: int, seed: int = 0) -> SemiseparableMatrix:
    """Factors of both signs, about as large as keeps a state from growing, one in five of them zero."""
    shape = {"scalar": (time,), "diagonal": (time, order), "dense": (time, order, order)}[kind]
    a = normal(*shape, seed=seed) / max(order, 1) ** (0.5 if kind == "dense" else 0)
    a = a * (normal(time, seed=seed + 1) > -0.85).double().reshape(-1, *(1,) * (len(shape) - 1))
    return SemiseparableMatrix(a, normal(time, order, seed=seed + 2), normal(time, order, seed=seed + 3))


@st.composite
def examples(
    draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, times: st.SearchStrategy[int] = TIMES, min_order: int = 0
) -> SemiseparableMatrix:
    return example(
        draw(st.sampled_from(kinds)), draw(times), draw(st.integers(min_order, 4)), draw(st.integers(0, 10_000))
    )


def entries(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """M_ji = c_j^T A_j ... A_{i+1} b_i, one entry at a time."""
    time, order = b.shape
    m = torch.zeros(time, time, dtype=torch.float64)
    for j in range(time):
        for i in range(j + 1):
            h = b[i].double()
            for t in range(i + 1, j + 1):
                factor = a[t].double()
                h = factor @ h if factor.ndim == 2 else factor * h
            m[j, i] = sum(float(c[j, n]) * float(h[n]) for n in range(order))
    return m


def truth(m: SemiseparableMatrix) -> Tensor:
    return entries(m.a, m.b, m.c)


def error(got: Tensor, wanted: Tensor) -> float:
    """||got - wanted|| / ||wanted||, or ||got|| where zero is wanted."""
    assert got.shape == wanted.shape
    scale = torch.linalg.vector_norm(wanted.double()).item()
    return torch.linalg.vector_norm(got.double() - wanted.double()).item() / (scale or 1.0)


def leaves(m: SemiseparableMatrix) -> tuple[Tensor, Tensor, Tensor]:
    return m.a.clone().requires_grad_(), m.b.clone().requires_grad_(), m.c.clone().requires_grad_()
