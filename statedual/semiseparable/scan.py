"""The scalar SSM scan, or cumprodsum: multiplication by a 1-SS matrix (``sec:ssm:1-ss``, ``sec:scan``)."""

from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.checks import require_choice, require_floating, require_one_device
from statedual.semiseparable.scan_modes import MODES, increment


def scan(
    a: Float[Tensor, "..."],
    b: Float[Tensor, "*shape"],
    *,
    initial: Float[Tensor, "..."] | None = None,
    dim: int = -1,
    mode: str = "associative",
) -> Float[Tensor, "*shape"]:
    """The scalar SSM scan of ``b`` along ``dim``.

        h_t = a_t h_{t-1} + b_t,    h_{-1} = initial or 0        (``eq:ssm-scan``, ``eq:1ss-recurrence``)

    Shapes: ``b`` is any shape with time at ``dim``, and so is the result; ``a`` is ``(time,)``, one sequence for
    all, or any shape that broadcasts to that of ``b``; ``initial`` broadcasts to the shape of ``b`` without ``dim``.
    Without ``initial``, ``a_0`` has no effect. Half precision is computed in float32; h has the dtype of ``b``.

    ``mode`` is one of the algorithms of app. B. They give the same h and differ in work and depth, which
    ``scan_cost`` counts, and in the structured factors of the 1-SS matrix that they apply (``scan_factors``):

        sequential      the recurrence, one step at a time
        recurrent       the same as state passing with chunks of one step
        state_passing   chunks of about sqrt(time) steps, one after the other
        dilated         strides 1, 2, 4, ...
        block           recursive halving
        associative     pairs, a problem of half the size, broadcast back
        blelloch        up-sweep and down-sweep
    """
    require_choice("mode", mode, tuple(MODES))
    require_floating(a=a, b=b, initial=initial)
    require_one_device(b=b, a=a, initial=initial)
    if not -b.ndim <= dim < b.ndim:
        raise ValueError(f"dim is {dim}, expected an axis of b, which has shape {tuple(b.shape)}")

    tensors = (a, b) if initial is None else (a, b, initial)
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    dtype = torch.promote_types(dtype, torch.float32)
    entries = b.movedim(dim, 0).to(dtype)
    decays = _time_first(a, b, dim).to(dtype)
    if initial is not None:
        state_shape = entries.shape[1:]
        if not _broadcasts(initial.shape, state_shape):
            raise ValueError(
                f"initial has shape {tuple(initial.shape)}, expected one that broadcasts to {tuple(state_shape)}, "
                f"the shape of b without its axis {dim}"
            )
        if len(entries):
            entries = increment(decays, entries, initial.to(dtype))
    # No step to take; and the result must not be b itself.
    h = entries.clone() if len(entries) < 2 else MODES[mode](decays, entries)
    return h.to(b.dtype).movedim(0, dim)


def _time_first(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``a`` with the axes of ``b``, time first and of full length, the others of size 1 where ``a`` is shared."""
    if a.ndim == 1:
        per_step = [1] * b.ndim
        per_step[dim] = len(a)
        a_aligned = a.reshape(per_step)
    else:
        a_aligned = a.reshape([1] * (b.ndim - a.ndim) + list(a.shape))
    if not _broadcasts(a_aligned.shape, b.shape):
        raise ValueError(
            f"a has shape {tuple(a.shape)}, expected ({b.shape[dim]},), one value a step of axis {dim} of b, or a "
            f"shape that broadcasts to {tuple(b.shape)}, the shape of b"
        )
    decays = a_aligned.movedim(dim, 0)
    return decays.expand(b.shape[dim], *decays.shape[1:])


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    """Whether a tensor of ``shape`` can be expanded to ``target``."""
    if len(shape) > len(target):
        return False
    trailing = target[len(target) - len(shape) :]
    return all(size in (1, wanted) for size, wanted in zip(shape, trailing, strict=True))
