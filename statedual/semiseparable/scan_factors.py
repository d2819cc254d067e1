"""The structured factorisations of the 1-SS matrix that the scan modes are (``sec:scan``)."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from statedual.checks import require_choice, require_floating, require_ndim
from statedual.semiseparable.one_semiseparable import one_semiseparable
from statedual.semiseparable.scan_modes import default_chunk

Pattern = Bool[Tensor, "time time"]


def scan_factors(a: Float[Tensor, " time"], mode: str) -> list[Float[Tensor, "time time"]]:
    """The matrices whose product, leftmost first, is ``one_semiseparable(a)``: what ``scan`` applies in ``mode``.

    A factor is the 1-SS matrix with all entries erased but the diagonal and a pattern below it, as app. B draws
    them. Below, "t <- s" is an entry at row t, column s, with the value ``a_t ... a_{s+1}``:

        sequential, recurrent   a factor for each step t from the last to the first: t <- t - 1
        state_passing           for each chunk from the last: its own 1-SS block; before it, the increment of its
                                first step k <- k - 1
        dilated                 strides k = ..., 4, 2, 1: t <- t - k for all t
        block                   half lengths k = ..., 4, 2, 1: every step t of a right half <- the last of its left
        associative             stage 3, t <- t - k for t + 1 an odd multiple of k, k = 1, 2, 4, ...; then
                                stage 1, t <- t - k for t + 1 a multiple of 2k, k = ..., 4, 2, 1

    ``blelloch`` has the same up-sweep as the stages 1, but its down-sweep exchanges siblings, and its result is
    shifted by one step; see ``_blelloch``. Factors that would be the identity are left out, unless it is the only one.
    """
    require_choice("mode", mode, (*_PATTERNS, "blelloch"))
    require_floating(a=a)
    require_ndim("a", a, "time")
    if len(a) == 0:
        raise ValueError("a has shape (0,), expected at least one step; a matrix of size 0 has no factors")
    dense = one_semiseparable(a)
    if mode == "blelloch":
        return _blelloch(dense)
    target = torch.arange(len(a), device=a.device).unsqueeze(1)
    source = target.mT
    below = [pattern for pattern in _PATTERNS[mode](target, source) if pattern.any()]
    zero = torch.zeros_like(dense)
    return [torch.where(pattern | (target == source), dense, zero) for pattern in below] or [dense]


def _strides(time: int) -> list[int]:
    """1, 2, 4, ... below ``time``."""
    return [1 << level for level in range((time - 1).bit_length())]


def _dilated(target: Tensor, source: Tensor) -> list[Pattern]:
    return [target - source == stride for stride in reversed(_strides(len(target)))]


def _block(target: Tensor, source: Tensor) -> list[Pattern]:
    return [
        (target // half % 2 == 1) & (source == target // half * half - 1) for half in reversed(_strides(len(target)))
    ]


def _associative(target: Tensor, source: Tensor) -> list[Pattern]:
    strides = _strides(len(target))
    stage_1 = [(target - source == stride) & ((target + 1) % (2 * stride) == 0) for stride in reversed(strides)]
    stage_3 = [(target - source == stride) & ((target + 1) % (2 * stride) == stride) for stride in strides]
    return stage_3 + stage_1


def _state_passing(target: Tensor, source: Tensor, chunk: int | None = None) -> list[Pattern]:
    time = len(target)
    chunk = chunk or default_chunk(time)
    patterns = []
    for start in reversed(range(0, time, chunk)):
        patterns.append((target // chunk == start // chunk) & (source >= start) & (source < target))
        patterns.append((target == start) & (source == start - 1))
    return patterns


_PATTERNS: dict[str, Callable[[Tensor, Tensor], list[Pattern]]] = {
    "sequential": partial(_state_passing, chunk=1),
    "recurrent": partial(_state_passing, chunk=1),
    "state_passing": _state_passing,
    "dilated": _dilated,
    "block": _block,
    "associative": _associative,
}


def _blelloch(dense: Float[Tensor, "time time"]) -> list[Float[Tensor, "time time"]]:
    """A rotation, the down-sweep from the leaves to the root, the up-sweep from the root to the leaves.

    A node of the tree keeps its value in the slot of its last step. Siblings end at the steps l < r, and the left
    one begins at f:

        up      x_r <- x_r + (a_r ... a_{l+1}) x_l
        down    x_l, x_r <- x_r, x_l + (a_l ... a_f) x_r

    The down-sweep moves down the states that enter the nodes. Nothing enters the root; its slot keeps ``h_{T-1}``
    instead, which must not be added to anything, so the product is left out where f = 0. At the leaves slot t is
    ``h_{t-1}`` and slot 0 is ``h_{T-1}``; the rotation puts them in order.
    """
    time = len(dense)
    identity = torch.eye(time, dtype=dense.dtype, device=dense.device)
    step = torch.arange(time, device=dense.device)
    up, down = [], []
    for half in _strides(time):
        left = step[half - 1 : time - 1 : 2 * half]
        right = (left + half).clamp(max=time - 1)
        up.append(identity.index_put((right, left), dense[right, left]))
        order = step.index_copy(0, left, right).index_copy(0, right, left)
        through = dense[left[1:], left[1:] - half]
        down.append(identity[order].index_put((right[1:], right[1:]), through))
    return [identity.roll(-1, 0), *down, *reversed(up)]
