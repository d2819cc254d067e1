"""One token: the recurrence of ``ssd`` without its time axis, for generation."""

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.checks import require_divides, require_floating, require_one_device, require_sizes
from statedual.ssd.decays import split_decay
from statedual.ssd.heads import spread
from statedual.ssd.inputs import without_autocast


def ssd_step(
    state: Float[Tensor, "batch heads head_dim state"],
    x: Float[Tensor, "batch heads_x head_dim"],
    log_a: Float[Tensor, "batch heads"],
    b: Float[Tensor, "batch heads_b state"],
    c: Float[Tensor, "batch heads_c state"],
) -> tuple[Float[Tensor, "batch heads head_dim"], Float[Tensor, "batch heads head_dim state"]]:
    """h <- exp(log_a) h + x outer b, in place; returns y = h c in the dtype of ``x``, and ``state`` itself.

    The state is float32 or float64 and decides the precision. Heads share x, b and c as in ``ssd``.
    """
    batch, heads, head_dim = check_step(state, x, log_a, b, c)
    with without_autocast(state.device):
        x_wide, b_wide, c_wide = (t.to(state.dtype) for t in (x, b, c))
        keep, change = split_decay(log_a.to(state.dtype)[:, :, None, None])
        # In place, without a second state: h is scaled where keep is 0, and changed where it is 1. Only a gradient of
        # log_a needs what h was.
        state.mul_(torch.where(keep == 0, change, 1))
        old = state.clone() if torch.is_grad_enabled() and log_a.requires_grad else state
        state.addcmul_(keep * change, old)
        by_b = state.unflatten(1, (b.shape[1], -1))
        by_b.addcmul_(spread(x_wide, heads).unflatten(1, by_b.shape[1:3]).unsqueeze(-1), b_wide[:, :, None, None])
        y = state.unflatten(1, (c.shape[1], -1)).flatten(2, 3) @ c_wide.unsqueeze(-1)
        return y.view(batch, heads, head_dim).to(x.dtype), state


def check_step(
    state: Tensor, x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, *, diagonal: bool = False
) -> tuple[int, int, int]:
    """What a step asks of its arguments; ``diagonal``: log_a has one decay for each channel of the state.

    The state may be overwritten: float32 or float64, no leaf that waits for a gradient. Returns batch, heads, head_dim.
    """
    require_floating(x=x, log_a=log_a, b=b, c=c)
    require_one_device(state=state, x=x, log_a=log_a, b=b, c=c)
    if state.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"state has dtype {state.dtype}, expected float32 or float64: states lose too much in fewer bits"
        )
    if state.requires_grad and state.is_leaf and torch.is_grad_enabled():
        raise ValueError(
            "state is a leaf that requires a gradient, expected one that may be overwritten; state.clone()"
        )
    require_sizes("state", state, {"batch": None, "heads": None, "head_dim": None, "state": None}, "state")
    batch, heads, head_dim, n = state.shape
    require_sizes("x", x, {"batch": batch, "heads_x": None, "head_dim": head_dim}, "state")
    require_sizes("log_a", log_a, {"batch": batch, "heads": heads, **({"state": n} if diagonal else {})}, "state")
    require_sizes("b", b, {"batch": batch, "heads_b": None, "state": n}, "state")
    require_sizes("c", c, {"batch": batch, "heads_c": None, "state": n}, "state")
    for name, tensor in (("x", x), ("b", b), ("c", c)):
        require_divides(name, tensor.shape[1], heads)
    return batch, heads, head_dim
