"""Inputs of ``diagonal_ssm`` for tests, and the truth they are compared with: the recurrence as a loop in float64."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from unit.ssd import ssd_examples
from unit.ssd.ssd_examples import PATTERNS, TIMES, Example, Results, decays, divisors

from statedual.selective_scan import diagonal_ssm

# The recurrent form, and the chunked one on either side of the head_dim from which on matrix products win.
PATHS = {"recurrent": ("recurrent", 8), "steps": ("chunked", 7), "products": ("chunked", 8)}
# In "by_channel" every channel of the state has a magnitude of its own, all other kinds draw for each number.
DECAYS = (*ssd_examples.DECAYS, "by_channel")
MAGNITUDES = (0, -1e-4, -30, -1e4, -math.inf)
CHUNKS = st.one_of(st.sampled_from([16, 24, 33, 63, 64, 65, 100, 200, 255, 256]), st.integers(1, 300))


def example(
    time: int,
    heads: int = 6,
    groups: tuple[int, int, int] = PATTERNS["multi_input"],
    *,
    state: int = 3,
    kind: str = "mixed",
    seed: int = 0,
    **options: Any,
) -> Example:
    """Random inputs as for ``ssd``, with decays (batch, time, heads, state)."""
    scalar = ssd_examples.example(time, heads, groups, state=state, kind="none", seed=seed, **options)
    batch, generator = scalar.log_a.shape[0], torch.Generator().manual_seed(seed + 1)
    if kind == "by_channel":
        place = torch.arange(heads).unsqueeze(1) + torch.arange(state)
        log_a = torch.tensor(MAGNITUDES).double()[place % len(MAGNITUDES)].expand(batch, time, -1, -1)
    else:
        log_a = decays(kind, (batch, time, heads * state), generator).unflatten(2, (heads, state))
    return replace(scalar, log_a=log_a.to(scalar.log_a.dtype).contiguous())


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
        head_dim=draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 12, 16])),
        state=draw(st.integers(1, 5)),
        kind=draw(st.sampled_from(DECAYS)),
        dtype=draw(st.sampled_from(dtypes)),
        initial=draw(st.booleans()),
        offsets=offsets,
        seed=draw(st.integers(0, 9999)),
    )


def recurrence(
    x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, initial: Tensor | None, offsets: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """h_t[p, n] = exp(log_a_t[n]) h_{t-1}[p, n] + x_t[p] b_t[n], y_t[p] = sum_n h_t[p, n] c_t[n], head by head."""
    heads = log_a.shape[2]
    x, b, c = (t[:, :, [i // (heads // t.shape[2]) for i in range(heads)]] for t in (x, b, c))
    if offsets is None:
        return _one_row(x, log_a, b, c, initial)
    ys, finals = [x[:, :0]], [x.new_zeros(0, heads, x.shape[3], b.shape[3])]
    for k, (start, stop) in enumerate(itertools.pairwise(offsets)):
        own = None if initial is None else initial[k : k + 1]
        y, final = _one_row(*(t[:, start:stop] for t in (x, log_a, b, c)), own)
        ys.append(y)
        finals.append(final)
    return torch.cat(ys, 1), torch.cat(finals)


def _one_row(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor]:
    if h is None:
        h = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[3])
    y = [x[:, :0]]
    for x_t, log_a_t, b_t, c_t in zip(x.unbind(1), log_a.unbind(1), b.unbind(1), c.unbind(1), strict=True):
        h = torch.addcmul(log_a_t.exp().unsqueeze(-2) * h, x_t.unsqueeze(-1), b_t.unsqueeze(-2))
        y.append(torch.einsum("bhpn,bhn->bhp", h, c_t).unsqueeze(1))
    return torch.cat(y, 1), h


def differentiated(given: Example, y: Tensor, final: Tensor, leaves: list[Tensor]) -> Results:
    """Both outputs of a call on ``leaves``, with the gradients that ``given`` sends back through both."""
    pairs = [(out, grad) for out, grad in ((y, given.grad_y), (final, given.grad_final)) if out.requires_grad]
    outputs, grads = zip(*pairs, strict=True) if pairs else ((), ())  # without time and state: constants
    gradients = torch.autograd.grad(outputs, leaves, grads, allow_unused=True, materialize_grads=True)
    return Results(y.detach(), final.detach(), *gradients, *([None] if len(leaves) == 4 else []))


def truth(given: Example) -> Results:
    wide = given.double()
    leaves = [t.requires_grad_() for t in wide.tensors()]
    y, final = recurrence(*leaves[:4], leaves[4] if leaves[4:] else None, given.offsets)
    return differentiated(wide, y, final, leaves)


def results(given: Example, form: str, chunk_size: int | None = None) -> Results:
    leaves = [t.clone().requires_grad_() for t in given.tensors()]
    initial = leaves[4] if leaves[4:] else None
    y, final = diagonal_ssm(*leaves[:4], initial_state=initial, form=form, chunk_size=chunk_size, **given.options())
    return differentiated(given, y, final, leaves)
