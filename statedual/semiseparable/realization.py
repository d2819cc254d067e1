"""A dense matrix as a minimal SSS representation: Proposition ``prop:sss``, executed."""

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.semiseparable.algebra import Representation
from statedual.semiseparable.rank import require_lower_triangular, with_threshold


@torch.no_grad()
def realize(m: Float[Tensor, "time time"], tol: float | None = None) -> Representation:
    """A representation of the lower-triangular ``m`` whose order is its semiseparable rank.

    Every block on or below the diagonal is factored through a state, ``m[t:, :t+1] = O_t R_t``: R_t says how the
    inputs so far make the state h_t, O_t how the outputs to come read it. The next pair needs one SVD,

        [O_t[1:], m[t+1:, t+1]] = U S V^T,      O_{t+1} = U S,      [A_{t+1}, b_{t+1}] = V^T,      c_t = O_t[0]

    of a matrix with as many columns as the order plus one. The rows of R_t = [A_t R_{t-1}, b_t] stay orthonormal
    (input-normal form), so these are the singular values of the block itself, and cutting those up to
    ``tol * ||m||_2`` gives a state of the block's numerical rank. Smaller states are filled up with zeros.

    What is cut is missing from the blocks to come: with a coarse ``tol`` their singular values shrink, and the order
    may stay below ``semiseparable_rank(m, tol)``. The cuts of two steps have orthogonal rows, so that all of them
    change m by at most ``sqrt(T) * tol * ||m||_2``.
    """
    require_lower_triangular(m)
    dtype = m.dtype
    m, threshold = with_threshold(m, tol)
    reads = m.new_zeros(len(m) + 1, 0)
    steps = []
    for t in range(len(m)):
        left, singular, right = torch.linalg.svd(torch.cat([reads[1:], m[t:, t : t + 1]], dim=1), full_matrices=False)
        kept = singular > threshold
        reads = left[:, kept] * singular[kept]
        steps.append((right[kept, :-1], right[kept, -1], reads[0]))

    order = max((len(b_t) for _, b_t, _ in steps), default=0)
    a, b, c = m.new_zeros(len(m), order, order), m.new_zeros(len(m), order), m.new_zeros(len(m), order)
    for t, (a_t, b_t, c_t) in enumerate(steps):
        a[t, : a_t.shape[0], : a_t.shape[1]] = a_t
        b[t, : len(b_t)] = b_t
        c[t, : len(c_t)] = c_t
    return a.to(dtype), b.to(dtype), c.to(dtype)
