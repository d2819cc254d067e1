"""A semiseparable mask absorbed into the queries and keys of a larger problem (sec. 5.2, the closing remark)."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from statedual.checks import require_floating, require_one_device
from statedual.masked_attention.masks import Semiseparable


class Absorbed(NamedTuple):
    """``absorb``'s result: plain decays a, and q and k with order * state features."""

    a: Float[Tensor, "..."]
    q: Float[Tensor, "*batch time features"]
    k: Float[Tensor, "*batch source features"]


def absorb(
    mask: Semiseparable, q: Float[Tensor, "*#batch time state"], k: Float[Tensor, "*#batch source state"]
) -> Absorbed:
    """Attention with a semiseparable mask of order K and N features as a plain SSM with N * K.

        L_ts (q_t . k_s) = (q_t ⊗ c_t)^T (I_N ⊗ A_t ... A_{s+1}) (k_s ⊗ b_s)

    So the mask's own expansion by b and contraction by c join those by k and q. For scalar a the result is 1-SS
    attention with the mask 1SS(a), a (*batch, time), and the larger q and k. For diagonal a it is a diagonal SSM:
    a (*batch, time, N * K), one decay for each of the N * K states, with q in the place of C and k in that of B.
    """
    require_floating(q=q, k=k)
    if not isinstance(mask, Semiseparable):
        raise ValueError(f"mask is {mask!r:.60}, expected Semiseparable(a, b, c)")
    require_one_device(q=q, k=k, **mask.tensors())
    state = q.shape[-1]
    if k.shape[-1] != state:
        raise ValueError(f"k has {k.shape[-1]} features, expected {state} as in q")
    mask.require_lengths(q.shape[-2], k.shape[-2])
    if mask.a.ndim > mask.b.ndim:
        raise ValueError(
            f"mask.a has shape {tuple(mask.a.shape)}, expected scalar (*batch, time) or diagonal (*batch, time, order) "
            "factors; a dense A_t mixes its states: diagonalise it first"
        )
    larger_q = (q[..., :, None] * mask.c[..., None, :]).flatten(-2)
    larger_k = (k[..., :, None] * mask.b[..., None, :]).flatten(-2)
    is_scalar = mask.a.ndim < mask.b.ndim
    return Absorbed(mask.a if is_scalar else mask.a.tile(state), larger_q, larger_k)
