"""Semiseparable matrices in SSS representation: a state space model seen as a matrix (Theorem ``thm:ssm-sss``)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.checks import (
    require_choice,
    require_floating,
    require_ndim,
    require_one_device,
    require_positive,
    require_sizes,
)
from statedual.semiseparable import algebra, multiply
from statedual.semiseparable.algebra import Representation
from statedual.semiseparable.realization import realize
from statedual.semiseparable.transition import Transition, act, left_factor, right_factor

ALGORITHMS = {
    "recurrent": multiply.recurrent,
    "quadratic": multiply.quadratic,
    "contraction": multiply.contraction,
    "chunked": multiply.chunked,
}


@dataclass(frozen=True, eq=False)
class SemiseparableMatrix:
    """``M = SSS(a, b, c)``, a lower-triangular (T, T) matrix of order N (Definition ``def:sss``).

        M_ji = c_j^T A_j ... A_{i+1} b_i   for j >= i, zero above the diagonal

    ``a``: (T,) for scalar, (T, N) for diagonal, (T, N, N) for dense factors A_t, plain multipliers of any sign.
    ``A_0`` is never read: nothing comes before the first input. ``b``, ``c``: (T, N).

    Differentiable throughout, except ``from_dense``. Half precision computes in float32 and comes back in half.
    """

    a: Transition
    b: Float[Tensor, "time state"]
    c: Float[Tensor, "time state"]

    def __post_init__(self) -> None:
        require_floating(a=self.a, b=self.b, c=self.c)
        require_one_device(a=self.a, b=self.b, c=self.c)
        require_ndim("b", self.b, "time state")
        time, state = self.b.shape
        require_sizes("c", self.c, {"time": time, "state": state}, "b")
        if self.a.shape not in ((time,), (time, state), (time, state, state)):
            raise ValueError(
                f"a has shape {tuple(self.a.shape)}, expected {(time,)} for scalar, {(time, state)} for diagonal or "
                f"{(time, state, state)} for dense factors, as b is (time, state) = {(time, state)}"
            )

    @classmethod
    def from_dense(cls, m: Float[Tensor, "time time"], tol: float | None = None) -> "SemiseparableMatrix":
        """The minimal representation of a lower-triangular matrix: its order is ``semiseparable_rank(m)``.

        Proposition ``prop:sss``. Singular values of the blocks up to ``tol * ||m||_2`` are dropped; ``tol`` defaults
        to what rounding adds. A coarser one gives an order of at most ``semiseparable_rank(m, tol)`` and a matrix
        within ``sqrt(T) * tol * ||m||_2`` of m. The factors are dense; no gradient flows through.
        """
        return cls(*realize(m, tol))

    @property
    def order(self) -> int:
        """N, the state size of this representation; the rank of the matrix may be less."""
        return self.b.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """What a, b and c promote to."""
        return torch.promote_types(torch.promote_types(self.a.dtype, self.b.dtype), self.c.dtype)

    def dense(self) -> Float[Tensor, "time time"]:
        """The (T, T) matrix itself (``eq:ssm-matrix``)."""
        return multiply.dense(*self._working(self.dtype)).to(self.dtype)

    def matmul(
        self, x: Float[Tensor, "time *columns"], algorithm: str = "recurrent", chunk_size: int = 64
    ) -> Float[Tensor, "time *columns"]:
        """``M x`` for x of shape (T, ...): one matrix for all columns (``eq:ssm-matrix``).

        ``recurrent``: the state space model, O(TN) a column for scalar and diagonal factors. ``quadratic``: builds the
        matrix. ``chunked``: quadratic inside chunks of ``chunk_size``, a state between them. ``contraction``: the
        paper's three contractions, not for dense factors.
        """
        require_choice("algorithm", algorithm, tuple(ALGORITHMS))
        require_positive("chunk_size", chunk_size)
        require_one_device(a=self.a, x=x)
        columns = multiply.as_columns(x, len(self.b))
        dtype = torch.promote_types(self.dtype, x.dtype)
        a, b, c = self._working(dtype)
        columns = columns.to(b.dtype)
        if algorithm == "chunked":
            y = multiply.chunked(a, b, c, columns, chunk_size)
        else:
            y = ALGORITHMS[algorithm](a, b, c, columns)
        return y.reshape(x.shape).to(dtype)

    @overload
    def __matmul__(self, other: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, other: "SemiseparableMatrix") -> "SemiseparableMatrix": ...
    def __matmul__(self, other: "Tensor | SemiseparableMatrix") -> "Tensor | SemiseparableMatrix":
        """``M x``, or the product of order N + P with another one of order P (Proposition ``prop:ss-closure``)."""
        if isinstance(other, Tensor):
            return self.matmul(other)
        if isinstance(other, SemiseparableMatrix):
            return self._combined_with(other, algebra.multiply)
        return NotImplemented

    def __add__(self, other: "SemiseparableMatrix") -> "SemiseparableMatrix":
        """The sum, of order N + P; diagonal when both are scalar or diagonal (Proposition ``prop:ss-closure``)."""
        if isinstance(other, SemiseparableMatrix):
            return self._combined_with(other, algebra.add)
        return NotImplemented

    def inverse(self) -> "SemiseparableMatrix":
        """The inverse, of order N + 1, for a diagonal without zeros (Proposition ``prop:ss-closure``)."""
        a, b, c = algebra.invert(self._working(self.dtype))
        return SemiseparableMatrix(a.to(self.dtype), b.to(self.dtype), c.to(self.dtype))

    def block_factors(
        self, rows: tuple[int, int], columns: tuple[int, int]
    ) -> tuple[Float[Tensor, "rows state"], Float[Tensor, "state state"], Float[Tensor, "state columns"]]:
        """The left, centre and right factor of the block ``M[j:j', i':i]``, with rows (j, j') and columns (i', i).

            M[j:j', i':i] = [C_r^T A_{r:j}^x]_r  A_{j:i-1}^x  [A_{i-1:s}^x B_s]_s        (``eq:sss-rank-factor``)

        of inner size N, whence Lemma ``lmm:sss-rank-factor``. For every block on or below the diagonal, j >= i - 1.
        """
        (first_row, last_row), (first_column, last_column) = rows, columns
        inside = 0 <= first_column < last_column <= first_row + 1 and first_row < last_row <= len(self.b)
        if not inside:
            raise ValueError(
                f"rows {rows} and columns {columns} are not a block on or below the diagonal of a matrix of size "
                f"{len(self.b)}, expected 0 <= columns[0] < columns[1] <= rows[0] + 1 and rows[0] < rows[1] <= size"
            )
        a, b, c = self._working(self.dtype)
        center = torch.eye(self.order, dtype=a.dtype, device=a.device)
        for a_t in a[last_column : first_row + 1]:
            center = act(a_t, center)
        left = left_factor(a[first_row:last_row], c[first_row:last_row])
        right = right_factor(a[first_column:last_column], b[first_column:last_column])
        return left.to(self.dtype), center.to(self.dtype), right.to(self.dtype)

    def _working(self, dtype: torch.dtype) -> Representation:
        """a, b, c in the precision to compute a result of ``dtype`` in."""
        precision = torch.promote_types(dtype, torch.float32)
        return self.a.to(precision), self.b.to(precision), self.c.to(precision)

    def _combined_with(
        self, other: "SemiseparableMatrix", combine: Callable[[Representation, Representation], Representation]
    ) -> "SemiseparableMatrix":
        require_one_device(a=self.a, other=other.a)
        if len(other.b) != len(self.b):
            raise ValueError(f"other is a matrix of size {len(other.b)}, expected size {len(self.b)} as this one")
        dtype = torch.promote_types(self.dtype, other.dtype)
        a, b, c = combine(self._working(dtype), other._working(dtype))
        return SemiseparableMatrix(a.to(dtype), b.to(dtype), c.to(dtype))
