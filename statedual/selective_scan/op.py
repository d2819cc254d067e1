"""``diagonal_ssm``: the selective state space model, with a decay for every channel of the state."""

from statedual.checks import require_choice
from statedual.selective_scan.library import diagonal_ssm_products, diagonal_ssm_steps
from statedual.shapes import B, C, DiagonalLogA, Offsets, State, X
from statedual.ssd.backend import choose_backend
from statedual.ssd.inputs import check_inputs, needs_gradient, read_offsets, without_autocast
from statedual.ssd.op import SSDOutput, one_by_one
from statedual.ssd.recurrent import recurrent

FORMS = ("recurrent", "chunked")
# From this head_dim on matrix products win; below it, steps. And the best chunk. Measured on two CPU cores.
WIDE = 8
DEFAULT_CHUNK = 32
# A product of decays is off by up to 3e-8 for each in float32.
LONGEST_CHUNK = 256


def diagonal_ssm(
    x: X,
    log_a: DiagonalLogA,
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
    """The selective SSM with diagonal A (sec. 2, eq:s6): ``ssd`` with a decay for every channel of the state.

        h_t = exp(log_a_t) * h_{t-1} + x_t outer b_t          y_t = h_t c_t

    head_dim 1 is the S6 layer of Mamba-1, head_dim 64 gated linear attention.

    Args:
        x: (batch, time, heads_x, head_dim), the input.
        log_a: (batch, time, heads, state), at most 0; -inf forgets.
        b: (batch, time, heads_b, state).
        c: (batch, time, heads_c, state). heads_x, heads_b and heads_c each divide heads, and head i reads group
            i // (heads / heads_k).
        initial_state: (batch, heads, head_dim, state), or one for each packed sequence; zeros if not given.
        cu_seqlens: (num_seqs + 1,) offsets of sequences packed behind one another in a single row (batch 1).
        form: "recurrent" (the definition) or "chunked" (exact as well: products inside chunks for wide heads, steps for
            narrow ones, and a gradient that keeps states at chunk borders only and cannot be differentiated again).
        backend: "auto" or the name of one; ``choose_backend`` says what "auto" means.
        chunk_size: positions in a chunk of the chunked form; any number, for wide heads at most 256.
        validate: also check that no decay is positive or NaN, which costs a pass over ``log_a``.

    Returns:
        y (batch, time, heads, head_dim) in the dtype of ``x``, and final_state (sequences, heads, head_dim, state) in
        float32 (float64 if an input is). Both carry gradients to every input.

    """
    require_choice("form", form, FORMS)
    check_inputs(x, log_a, b, c, initial_state, cu_seqlens, chunk_size, validate, diagonal=True)
    choose_backend(backend, x.device)
    if form == "recurrent":
        with without_autocast(x.device):
            return one_by_one(recurrent, x, log_a, b, c, initial_state, read_offsets(cu_seqlens, x.shape[1]))
    keep = needs_gradient(x, log_a, b, c, initial_state)
    chunk = chunk_size or DEFAULT_CHUNK
    if x.shape[3] < WIDE:
        y, final, _ = diagonal_ssm_steps(x, log_a, b, c, initial_state, cu_seqlens, chunk, keep)
    else:
        chunk = min(chunk, LONGEST_CHUNK)
        y, final, _ = diagonal_ssm_products(x, log_a, b, c, initial_state, cu_seqlens, chunk, keep)
    return SSDOutput(y, final)
