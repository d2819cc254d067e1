"""The semiseparable rank of a dense matrix, straight from its definition."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.checks import require_floating, require_ndim


def semiseparable_rank(m: Float[Tensor, "time time"], tol: float | None = None) -> int:
    """The largest rank on or below the diagonal of a lower-triangular matrix (Definition ``def:semiseparable-rank``).

    Every submatrix on or below the diagonal lies inside one of the T blocks ``m[t:, :t+1]``, so these are enough.
    Singular values up to ``tol * ||m||_2`` count as zero; ``tol`` defaults to what rounding adds (``with_threshold``).
    One singular value decomposition a block: a definition, not a fast path.
    """
    require_lower_triangular(m)
    m, threshold = with_threshold(m, tol)
    ranks = [(torch.linalg.svdvals(m[t:, : t + 1]) > threshold).sum() for t in range(len(m))]
    return int(max(ranks, default=0))


def require_lower_triangular(m: Tensor) -> None:
    """``m`` is a floating square matrix with exact zeros above its diagonal."""
    require_floating(m=m)
    require_ndim("m", m, "time time")
    if m.shape[0] != m.shape[1]:
        raise ValueError(f"m has shape {tuple(m.shape)}, expected a square matrix")
    if not m.isfinite().all():
        raise ValueError("m has entries that are inf or NaN, expected finite ones: they have no rank")
    above = m.triu(1).nonzero()
    if len(above):
        raise ValueError(
            f"m has {len(above)} nonzero entries above the diagonal, the first at {tuple(above[0].tolist())}, "
            "expected a lower-triangular matrix; take m.tril() if the upper part does not matter"
        )


def with_threshold(m: Tensor, tol: float | None) -> tuple[Tensor, Tensor]:
    """``m`` in working precision, and the singular value of its blocks from which on they count: ``tol * ||m||_2``.

    ``tol`` defaults to T times the working precision, as is usual for decompositions. The entries themselves, when they
    are half precision, come rounded by up to ``eps / 2``, which changes a norm by sqrt(T) times that.
    """
    if tol is not None and not tol >= 0:
        raise ValueError(f"tol is {tol}, expected a number of at least 0, or None for a default")
    given = torch.finfo(m.dtype).eps
    m = m.to(torch.promote_types(m.dtype, torch.float32))
    rounding = max(len(m) * torch.finfo(m.dtype).eps, math.sqrt(len(m)) * given)
    norm = torch.linalg.matrix_norm(m, ord=2) if m.numel() else m.new_zeros(())
    return m, (rounding if tol is None else tol) * norm
