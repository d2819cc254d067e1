"""The algorithms of app. B: seven ways to multiply by a 1-SS matrix (``sec:scan``).

Every mode is a function ``(a, b) -> h`` with time first, ``h_t = a_t h_{t-1} + b_t`` (``eq:ssm-scan``) and
``h_{-1} = 0``, so that ``a_0`` has no effect. ``a`` broadcasts against ``b`` in all axes but time. Nothing is
divided and nothing is written in place: zero decays are exact, and autograd sees plain products and sums.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def combine(later: tuple[Tensor, Tensor], earlier: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The associative operator of the scan, ``(a_t, b_t) * (a_s, b_s) = (a_t a_s, a_t b_s + b_t)``.

    ``eq:scan:associative-operator``: the top row of the product of the matrices ``[[a, b], [0, 1]]``.
    """
    (a_later, b_later), (a_earlier, b_earlier) = later, earlier
    return a_later * a_earlier, torch.addcmul(b_later, a_later, b_earlier)


def increment(
    a: Float[Tensor, "time ..."], b: Float[Tensor, "time *batch"], state: Float[Tensor, "..."]
) -> Float[Tensor, "time *batch"]:
    """``b`` with ``a_0 state + b_0`` in place of ``b_0``: a scan of the result continues from ``state``."""
    return torch.cat([torch.addcmul(b[:1], a[:1], state), b[1:]])


def sequential(a: Float[Tensor, "time ..."], b: Float[Tensor, "time *batch"]) -> Float[Tensor, "time *batch"]:
    """The recurrence as it is written, one step at a time (``sec:scan:recurrence``)."""
    states = [b[0]]
    for decay, entry in zip(a[1:].unbind(), b[1:].unbind(), strict=True):
        states.append(torch.addcmul(entry, decay, states[-1]))
    return torch.stack(states)


def dilated(a: Float[Tensor, "time ..."], b: Float[Tensor, "time *batch"]) -> Float[Tensor, "time *batch"]:
    """Information travels 1, 2, 4, ... steps at a time: Hillis and Steele's scan.

    After the pass of stride k, ``h_t`` sums the last 2k entries, and ``decay`` holds ``a_t ... a_{t-2k+1}``
    for ``t >= 2k`` only, the targets of the next pass.
    """
    h, decay, stride = b, a[1:], 1
    while stride < len(b):
        h = torch.cat([h[:stride], torch.addcmul(h[stride:], decay, h[:-stride])])
        decay = decay[stride:] * decay[:-stride]
        stride *= 2
    return h


def default_chunk(time: int) -> int:
    """The chunk length of ``state_passing`` when none is given: the square root of ``time``, rounded up."""
    return math.isqrt(max(time, 1) - 1) + 1


def state_passing(
    a: Float[Tensor, "time ..."], b: Float[Tensor, "time *batch"], chunk: int | None = None
) -> Float[Tensor, "time *batch"]:
    """Chunk after chunk: the final state of one increments the first entry of the next.

        [h_L; h_R] = [M_L b_L; M_R b_R'],    b_R' = b_R with a_k h_{k-1} + b_k in place of b_k

    A chunk is solved as a black box, here by ``associative``.
    """
    chunk = chunk or default_chunk(len(b))
    solved: list[Tensor] = []
    for a_chunk, b_chunk in zip(torch.split(a, chunk), torch.split(b, chunk), strict=True):
        entries = increment(a_chunk, b_chunk, solved[-1][-1]) if solved else b_chunk
        solved.append(associative(a_chunk, entries))
    return torch.cat(solved)


def recurrent(a: Float[Tensor, "time ..."], b: Float[Tensor, "time *batch"]) -> Float[Tensor, "time *batch"]:
    """The fully recurrent mode: state passing with chunks of one step."""
    return state_passing(a, b, chunk=1)


def block(a: Float[Tensor, "time ..."], b: Float[Tensor, "time *batch"]) -> Float[Tensor, "time *batch"]:
    """Recursive halving, all halves of a level at once: each level adds its rank-1 lower-left quadrants.

    Halves are aligned blocks of 1, 2, 4, ... steps. Joining two of them adds to the right one
    ``(a_t ... a_k) h_{k-1}``, where k is its first step; ``decay`` carries these products from level to level.
    The last pair is shorter when ``time`` is no power of two: its right half may be cut, or be missing.
    """
    h, decay, half = b, a, 1
    while half < len(b):
        whole = len(b) - len(b) % (2 * half)
        full = _join(_in_pairs(decay[:whole], half), _in_pairs(h[:whole], half), half)
        cut = _join(decay[whole:].unsqueeze(0), h[whole:].unsqueeze(0), half)
        decay, h = (torch.cat([x.flatten(0, 1), y.squeeze(0)]) for x, y in zip(full, cut, strict=True))
        half *= 2
    return h


def _in_pairs(x: Float[Tensor, "time ..."], half: int) -> Float[Tensor, "pairs length ..."]:
    return x.reshape(len(x) // (2 * half), 2 * half, *x.shape[1:])


def _join(
    decay: Float[Tensor, "pairs length ..."], h: Float[Tensor, "pairs length *batch"], half: int
) -> tuple[Float[Tensor, "pairs length ..."], Float[Tensor, "pairs length *batch"]]:
    """Pass the last state and the last product of each pair's left half to its right half."""
    last = slice(half - 1, half)
    right = decay[:, half:]
    return (
        torch.cat([decay[:, :half], right * decay[:, last]], 1),
        torch.cat([h[:, :half], torch.addcmul(h[:, half:], right, h[:, last])], 1),
    )


def associative(a: Float[Tensor, "time ..."], b: Float[Tensor, "time *batch"]) -> Float[Tensor, "time *batch"]:
    """Three stages: solve pairs, scan their second elements at half the length, broadcast back.

    ``sec:scan:associative``. The half-size problem gives ``h`` at the odd steps; an even step is one step
    from the odd one before it.
    """
    pairs = len(b) // 2
    if pairs == 0:
        return b
    odd = associative(*combine((a[1::2], b[1::2]), (a[: 2 * pairs : 2], b[: 2 * pairs : 2])))
    later = b[2::2]
    even = torch.cat([b[:1], torch.addcmul(later, a[2::2], odd[: len(later)])])
    return _interleave(even, odd)


def blelloch(a: Float[Tensor, "time ..."], b: Float[Tensor, "time *batch"]) -> Float[Tensor, "time *batch"]:
    """The classical parallel scan: an up-sweep and a down-sweep of a binary tree (``sec:scan:classical:parallel``).

    The up-sweep combines siblings; one without a sibling rises as it is. The down-sweep gives every node the
    state that enters it: a left child what enters its parent, a right child that state carried through its left
    sibling. The state that enters step t is ``h_{t-1}``, and the root has the last one.
    """
    levels = [(a, b)]
    while len(b) > 1:
        pairs = 2 * (len(b) // 2)
        parents = combine((a[1:pairs:2], b[1:pairs:2]), (a[:pairs:2], b[:pairs:2]))
        a, b = (torch.cat([parent, x[pairs:]]) for parent, x in zip(parents, (a, b), strict=True))
        levels.append((a, b))
    _, last = levels.pop()
    entering = torch.zeros_like(last)
    for a, b in reversed(levels):
        pairs = len(b) // 2
        right = torch.addcmul(b[: 2 * pairs : 2], a[: 2 * pairs : 2], entering[:pairs])
        entering = _interleave(entering, right)
    return torch.cat([entering[1:], last])


def _interleave(even: Float[Tensor, "evens *batch"], odd: Float[Tensor, "odds *batch"]) -> Float[Tensor, "time *batch"]:
    """``even_0, odd_0, even_1, odd_1, ...``; ``even`` may be longer by one."""
    pairs = len(odd)
    return torch.cat([torch.stack([even[:pairs], odd], 1).flatten(0, 1), even[pairs:]])


MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sequential": sequential,
    "associative": associative,
    "dilated": dilated,
    "state_passing": state_passing,
    "recurrent": recurrent,
    "block": block,
    "blelloch": blelloch,
}
