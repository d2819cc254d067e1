"""What each form must cost (sec. 6.3): floating-point operations, and the least bytes moved. The floors of benchmarks.

A multiplication and an addition count as two operations. Elementwise work is left out where a matrix product of the
same block dominates it, as in the paper; ``least_bytes`` reads every input once and writes every output once.
"""

from dataclasses import dataclass

from statedual.checks import require_choice, require_divides, require_positive


@dataclass(frozen=True)
class SSDShape:
    """The sizes of one call; heads_x, heads_b, heads_c default to the multi-input pattern (all x, one b, one c)."""

    batch: int
    time: int
    heads: int
    head_dim: int
    state: int
    heads_x: int | None = None
    heads_b: int = 1
    heads_c: int = 1

    def __post_init__(self) -> None:
        require_positive("heads", self.heads)
        for name in ("batch", "time", "head_dim", "state"):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"{name} is {size!r}, expected an integer of at least 0")
        for name, groups in (("x", self.heads_x), ("b", self.heads_b), ("c", self.heads_c)):
            if groups is not None:
                require_divides(name, groups, self.heads)

    @property
    def grams(self) -> int:
        """Distinct pairs of a b and a c group, as many Gram matrices are needed."""
        pairs = {(h * self.heads_b // self.heads, h * self.heads_c // self.heads) for h in range(self.heads)}
        return len(pairs)


def bmm_flops(batch: int, m: int, n: int, k: int) -> int:
    """BMM(B, M, N, K) of sec. 6.3: ``batch`` products of (m, k) by (k, n)."""
    return 2 * batch * m * n * k


@dataclass(frozen=True)
class ChunkedFlops:
    """The five parts of the chunked form, forward."""

    gram: int
    diagonal: int
    right: int
    center: int
    left: int

    @property
    def total(self) -> int:
        """All five."""
        return self.gram + self.diagonal + self.right + self.center + self.left

    @property
    def backward(self) -> int:
        """The products of the gradient. It recomputes the Gram matrix and what the past contributes, not the states.

        Then each product has two gradients: 3 gram, 2 diagonal, 2 right (those of x and b), 3 left (once more, those of
        c and of the state).
        """
        return 3 * self.gram + 2 * self.diagonal + 2 * self.right + 3 * self.left


def chunked_flops(shape: SSDShape, chunk: int) -> ChunkedFlops:
    """Sec. 6.3, with T/Q chunks of Q positions; a last chunk that is shorter counts as what it is.

    gram BMM(T/Q, Q, Q, N) a distinct pair of groups; diagonal BMM(T/Q, Q, P, Q); right BMM(T/Q, N, P, Q);
    center 2 T/Q N P; left BMM(T/Q, Q, P, N); each but the first a head.
    (The paper prints BMM(T/Q, Q, P, N) for the diagonal; the contraction runs over Q.)
    """
    require_positive("chunk", chunk)
    whole, tail = divmod(shape.time, chunk)
    p, n, sequences = shape.head_dim, shape.state, shape.batch
    lengths = [(whole, chunk), (1, tail)] if tail else [(whole, chunk)]
    per_head = sequences * shape.heads
    return ChunkedFlops(
        gram=sum(bmm_flops(sequences * shape.grams * k, q, q, n) for k, q in lengths),
        diagonal=sum(bmm_flops(per_head * k, q, p, q) for k, q in lengths),
        right=sum(bmm_flops(per_head * k, n, p, q) for k, q in lengths),
        center=sum(2 * per_head * k * n * p for k, _ in lengths),
        left=sum(bmm_flops(per_head * k, q, p, n) for k, q in lengths),
    )


def flops(shape: SSDShape, form: str, chunk: int = 64) -> int:
    """Operations of the forward pass (``ChunkedFlops.backward`` has those of the chunked form's gradient)."""
    require_choice("form", form, ("recurrent", "quadratic", "chunked"))
    per_head = shape.batch * shape.heads
    if form == "chunked":
        return chunked_flops(shape, chunk).total
    if form == "recurrent":
        # Decay and add the state (expand), contract it: 2 + 1 + 2 operations for each of T N P.
        return 5 * per_head * shape.time * shape.state * shape.head_dim
    gram = bmm_flops(shape.batch * shape.grams, shape.time, shape.time, shape.state)
    return gram + per_head * shape.time**2 + bmm_flops(per_head, shape.time, shape.head_dim, shape.time)


def step_flops(shape: SSDShape) -> int:
    """Operations of one token (inference), independent of time: O(N P) a head."""
    return 5 * shape.batch * shape.heads * shape.state * shape.head_dim


def state_elements(shape: SSDShape) -> int:
    """Numbers in the recurrent state: N P a head, whatever the time. (A cache of keys and values grows with it.)"""
    return shape.batch * shape.heads * shape.state * shape.head_dim


def least_bytes(shape: SSDShape, itemsize: int, *, backward: bool = False) -> int:
    """Every input read once, y and the final state written once; the backward reads dy too and writes all gradients.

    x, b, c, y have ``itemsize`` bytes, log_a and states 4.
    """
    heads_x = shape.heads if shape.heads_x is None else shape.heads_x
    tokens = shape.batch * shape.time
    inputs = tokens * (heads_x * shape.head_dim + (shape.heads_b + shape.heads_c) * shape.state) * itemsize
    decays = tokens * shape.heads * 4
    output = tokens * shape.heads * shape.head_dim * itemsize
    states = state_elements(shape) * 4
    forward = inputs + decays + output + states
    return forward if not backward else 2 * (inputs + decays) + output + states


def intermediate_elements(shape: SSDShape, form: str, chunk: int = 64) -> int:
    """Numbers a form holds beyond input and output if nothing is fused: the "(naive) memory" row of sec. 6.3."""
    require_choice("form", form, ("recurrent", "quadratic", "chunked"))
    require_positive("chunk", chunk)
    per_head = shape.batch * shape.heads
    if form == "recurrent":
        return 2 * per_head * shape.time * shape.state * shape.head_dim  # Z and H of eq:ssm-diagonal
    if form == "quadratic":
        return per_head * shape.time**2
    whole, tail = divmod(shape.time, chunk)
    blocks, states = whole * chunk**2 + tail**2, whole + (tail > 0)
    return per_head * (blocks + states * shape.state * shape.head_dim)
