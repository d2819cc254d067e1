"""Inputs of ``ssd`` for tests, and the truth they are compared with: the recurrence as a plain loop in float64."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from statedual.ssd import ssd

FORMS = ("recurrent", "quadratic", "chunked")
# Sec. 7.2, as (heads_x, heads_b, heads_c). In the last one neither of b and c divides the other.
PATTERNS = {
    "multi_input": (6, 1, 1),
    "multi_contract": (1, 1, 6),
    "multi_expand": (1, 6, 1),
    "multi_head": (6, 6, 6),
    "multi_state": (1, 1, 1),
    "grouped": (6, 2, 3),
}
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
DECAYS = ("mixed", "usual", "none", "forget", "strong", "strong_then_weak", "weak_then_strong")
NAMES = ("y", "final_state", "x", "log_a", "b", "c", "initial_state")


@dataclass(frozen=True)
class Example:
    """The arguments of one call, and the gradients that come back to its two results."""

    x: Tensor
    log_a: Tensor
    b: Tensor
    c: Tensor
    initial_state: Tensor | None
    offsets: list[int] | None
    grad_y: Tensor
    grad_final: Tensor

    @property
    def bound(self) -> float:
        return BOUNDS[self.x.dtype]

    def tensors(self) -> list[Tensor]:
        given = [self.x, self.log_a, self.b, self.c]
        return given if self.initial_state is None else [*given, self.initial_state]

    def options(self) -> dict[str, Tensor]:
        return {} if self.offsets is None else {"cu_seqlens": torch.tensor(self.offsets)}

    def double(self) -> "Example":
        """The same numbers: those that half precision has already rounded."""
        wide = {name: value.double() for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **wide)


def decays(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator)
    place = torch.arange(shape[1]).view(1, -1, 1).expand(shape)
    match kind:
        case "mixed":
            values = torch.tensor([0, 0, 0, -1e-4, -1e-4, -1e-4, -0.1, -0.5, -2, -30, -1e4, -math.inf])
            return values.double()[torch.randint(len(values), shape, generator=generator)]
        case "usual":
            return -uniform
        case "none":
            return torch.zeros_like(uniform)
        case "forget":
            return torch.full_like(uniform, -math.inf)
        case "strong":
            return -10 - 30 * uniform
        case "strong_then_weak":
            return torch.where(place % 16 < 4, -1e4 * uniform, -1e-3 * uniform)
        case "weak_then_strong":
            return torch.where(place < shape[1] // 2, -1e-3 * uniform, -30 * uniform)
    raise ValueError(kind)


def example(
    time: int,
    heads: int = 6,
    groups: tuple[int, int, int] = PATTERNS["multi_input"],
    *,
    batch: int = 1,
    head_dim: int = 4,
    state: int = 3,
    kind: str = "mixed",
    dtype: torch.dtype = torch.float32,
    initial: bool = True,
    offsets: list[int] | None = None,
    seed: int = 0,
) -> Example:
    """Random inputs. Decays and states are float32, or float64 where ``dtype`` is."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def normal(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)

    states = (batch if offsets is None else len(offsets) - 1, heads, head_dim, state)
    return Example(
        normal(batch, time, groups[0], head_dim),
        decays(kind, (batch, time, heads), generator).to(wide),
        normal(batch, time, groups[1], state),
        normal(batch, time, groups[2], state),
        normal(*states, dtype=wide) if initial else None,
        offsets,
        normal(batch, time, heads, head_dim),
        normal(*states, dtype=wide),
    )


def divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]


TIMES = st.one_of(st.sampled_from([0, 1, 2, 3, 15, 16, 17, 63, 64, 65]), st.integers(0, 150))
CHUNKS = st.one_of(st.sampled_from([16, 32, 64, 128, 256]), st.integers(1, 300))


@st.composite
def examples(draw: st.DrawFn, dtypes: Sequence[torch.dtype] = (torch.float32,), packed: bool = False) -> Example:
    heads = draw(st.integers(1, 8))
    groups = tuple(draw(st.sampled_from(divisors(heads))) for _ in range(3))
    lengths = draw(st.lists(st.one_of(st.just(0), st.integers(0, 70)), max_size=5)) if packed else []
    offsets = [sum(lengths[:k]) for k in range(len(lengths) + 1)] if packed else None
    return example(
        offsets[-1] if offsets else draw(TIMES),
        heads,
        groups,
        batch=1 if packed else draw(st.integers(0, 3)),
        head_dim=draw(st.integers(1, 5)),
        state=draw(st.integers(1, 5)),
        kind=draw(st.sampled_from(DECAYS)),
        dtype=draw(st.sampled_from(dtypes)),
        initial=draw(st.booleans()),
        offsets=offsets,
        seed=draw(st.integers(0, 9999)),
    )


class Results(NamedTuple):
    """Both outputs, and the gradients of every input (None for an initial state that was not given)."""

    y: Tensor
    final_state: Tensor
    x: Tensor
    log_a: Tensor
    b: Tensor
    c: Tensor
    initial_state: Tensor | None


def recurrence(
    x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, state: Tensor | None, offsets: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = exp(log_a_t) h_{t-1} + x_t outer b_t, y_t = h_t c_t; head i reads group i // (heads / groups)."""
    heads = log_a.shape[2]
    x, b, c = (t[:, :, [i // (heads // t.shape[2]) for i in range(heads)]] for t in (x, b, c))
    if offsets is None:
        return _one_row(x, log_a, b, c, state)
    rows = []
    for k, (start, stop) in enumerate(itertools.pairwise(offsets)):
        own = None if state is None else state[k : k + 1]
        rows.append(_one_row(*(t[:, start:stop] for t in (x, log_a, b, c)), own))
    if not rows:
        return torch.zeros_like(x[..., :1].expand_as(x)), x.new_zeros(0, heads, x.shape[3], b.shape[3])
    return torch.cat([y for y, _ in rows], 1), torch.cat([final for _, final in rows])


def _one_row(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    batch, _, heads, head_dim = x.shape
    h = x.new_zeros(batch, heads, head_dim, b.shape[3]) if state is None else state
    sources = x.unsqueeze(-1) * b.unsqueeze(-2)
    states = []
    for a_t, source in zip(log_a.exp()[..., None, None].unbind(1), sources.unbind(1), strict=True):
        h = a_t * h + source
        states.append(h)
    stacked = torch.stack(states, 1) if states else sources
    return (stacked * c.unsqueeze(-2)).sum(-1), h


def truth(given: Example) -> Results:
    wide = given.double()
    leaves = [t.requires_grad_() for t in wide.tensors()]
    initial = leaves[4] if len(leaves) > 4 else None
    y, final = recurrence(*leaves[:4], initial, given.offsets)
    return _with_gradients(wide, leaves, y, final)


def results(given: Example, form: str, chunk_size: int | None = None) -> Results:
    leaves = [t.clone().requires_grad_() for t in given.tensors()]
    initial = leaves[4] if len(leaves) > 4 else None
    y, final = ssd(*leaves[:4], initial_state=initial, form=form, chunk_size=chunk_size, **given.options())
    return _with_gradients(given, leaves, y, final)


def _with_gradients(given: Example, leaves: list[Tensor], y: Tensor, final: Tensor) -> Results:
    # Where time is 0 and no state was given, the results are constants.
    pairs = [(out, grad) for out, grad in ((y, given.grad_y), (final, given.grad_final)) if out.requires_grad]
    outputs, grads = zip(*pairs, strict=True) if pairs else ((), ())
    gradients = torch.autograd.grad(outputs, leaves, grads, allow_unused=True, materialize_grads=True)
    return Results(y.detach(), final.detach(), *gradients, *([None] if len(leaves) == 4 else []))


def error(got: Tensor, wanted: Tensor) -> float:
    """||got - wanted|| / ||wanted||; inf unless all of ``got`` is finite, and where zero is wanted but not returned.

    What is too small for a normal number of ``got``'s dtype counts as zero: there it has no digits to compare.
    """
    assert got.shape == wanted.shape
    if not got.isfinite().all():
        return math.inf
    got, tiny = got.double(), torch.finfo(got.dtype).smallest_normal
    wanted = torch.where(wanted.abs() < tiny, 0.0, wanted.double())
    if not wanted.any():
        return math.inf if (got.abs() > tiny).any() else 0.0
    return (torch.linalg.vector_norm(got - wanted) / torch.linalg.vector_norm(wanted)).item()


def assert_equal(got: Results, wanted: Results, given: Example) -> None:
    """Within the bounds of DESIGN sec. 6, each tensor by itself; what depends on nothing is exactly zero."""
    errors = {
        name: error(one, other)
        for name, one, other in zip(NAMES, got, wanted, strict=True)
        if one is not None and other is not None
    }
    assert len(errors) == 6 + (given.initial_state is not None)
    assert max(errors.values()) < given.bound, errors
    assert not got.log_a[given.log_a == -math.inf].any(), "a decay of -inf has a gradient"
    assert got.y.dtype == given.x.dtype
    assert got.final_state.dtype == given.log_a.dtype
