"""``ssd``: the one public operation of the package, in any of its three forms."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import _register_namedtuple

from statedual.checks import require_choice
from statedual.shapes import B, C, DiagonalLogA, LogA, Offsets, State, X, Y
from statedual.ssd.backend import choose_backend
from statedual.ssd.inputs import check_inputs, compute_dtype, needs_gradient, read_offsets, without_autocast
from statedual.ssd.library import ssd_chunked
from statedual.ssd.quadratic import quadratic
from statedual.ssd.recurrent import recurrent

FORMS = ("recurrent", "quadratic", "chunked")
DEFAULT_CHUNK = 64


class SSDOutput(NamedTuple):
    """What ``ssd`` returns: the output, and the state after the last position of every sequence."""

    y: Y
    final_state: State


# So that torch.export.save can store a program that returns one.
_register_namedtuple(SSDOutput, serialized_type_name="statedual.SSDOutput")


def ssd(
    x: X,
    log_a: LogA,
    b: B,
    c: C,
    *,
    initial_state: State | None = None,
    cu_seqlens: Offsets | None = None,
    form: str = "chunked",
    backend: str = "auto",
    chunk_size: int | None = None,
    validate: bool = False,
) -> SSDOutput:
    """The state space dual layer (sec. 5): a linear recurrence with scalar decays, or attention without a softmax.

        h_t = exp(log_a_t) h_{t-1} + x_t outer b_t          y_t = h_t c_t
        Y   = (L * (C B^T)) X                               L = 1SS(exp(log_a))

    Args:
        x: (batch, time, heads_x, head_dim), the input; V of attention.
        log_a: (batch, time, heads), at most 0; -inf forgets.
        b: (batch, time, heads_b, state); K of attention.
        c: (batch, time, heads_c, state); Q of attention. heads_x, heads_b and heads_c each divide heads, and head i
            reads group i // (heads / heads_k).
        initial_state: (batch, heads, head_dim, state), or one for each packed sequence; zeros if not given.
        cu_seqlens: (num_seqs + 1,) offsets of sequences packed behind one another in a single row (batch 1).
        form: "recurrent" (time times state; the definition), "quadratic" (time squared), or "chunked" (the SSD
            algorithm: quadratic inside chunks, recurrent across; its gradient cannot be differentiated again).
        backend: "auto" or the name of one; ``choose_backend`` says what "auto" means.
        chunk_size: positions in a chunk of the chunked form; any number.
        validate: also check that no decay is positive or NaN, which costs a pass over ``log_a``.

    Returns:
        y (batch, time, heads, head_dim) in the dtype of ``x``, and final_state (sequences, heads, head_dim, state) in
        float32 (float64 if an input is). Both carry gradients to every input.

    """
    require_choice("form", form, FORMS)
    check_inputs(x, log_a, b, c, initial_state, cu_seqlens, chunk_size, validate)
    choose_backend(backend, x.device)
    if form == "chunked":
        keep = needs_gradient(x, log_a, b, c, initial_state)
        y, final, _ = ssd_chunked(x, log_a, b, c, initial_state, cu_seqlens, chunk_size or DEFAULT_CHUNK, keep)
        return SSDOutput(y, final)
    with without_autocast(x.device):
        run = recurrent if form == "recurrent" else quadratic
        return one_by_one(run, x, log_a, b, c, initial_state, read_offsets(cu_seqlens, x.shape[1]))


def one_by_one(
    run: Callable[..., tuple[Tensor, Tensor]],
    x: X,
    log_a: LogA | DiagonalLogA,
    b: B,
    c: C,
    initial_state: State | None,
    offsets: list[int] | None,
) -> SSDOutput:
    """A plain form, which autograd differentiates, on each of the packed sequences: wide inside, x's dtype outside."""
    dtype = compute_dtype(x, log_a, b, c)
    sequences = x.shape[0] if offsets is None else len(offsets) - 1
    if initial_state is None:
        initial_state = x.new_zeros(sequences, log_a.shape[2], x.shape[3], b.shape[3])
    wide, state = [t.to(dtype) for t in (x, log_a, b, c)], initial_state.to(dtype)
    if offsets is None:
        y, final = run(*wide, state)
        return SSDOutput(y.to(x.dtype), final)
    ys = [x.new_zeros(1, 0, log_a.shape[2], x.shape[3], dtype=dtype)]
    finals: list[Tensor] = [state[:0]]
    for index, (start, stop) in enumerate(itertools.pairwise(offsets)):
        y, final = run(*(t[:, start:stop] for t in wide), state[index : index + 1])
        ys.append(y)
        finals.append(final)
    return SSDOutput(torch.cat(ys, 1).to(x.dtype), torch.cat(finals))
