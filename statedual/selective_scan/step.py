"""One token of ``diagonal_ssm``, without its time axis, for generation."""

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.checks import require_divides, require_floating, require_one_device, require_sizes
from statedual.ssd.decays import split_decay
from statedual.ssd.heads import spread
from statedual.ssd.inputs import without_autocast
from statedual.ssd.step import require_state


def diagonal_ssm_step(
    state: Float[Tensor, "batch heads head_dim state"],
    x: Float[Tensor, "batch heads_x head_dim"],
    log_a: Float[Tensor, "batch heads state"],
    b: Float[Tensor, "batch heads_b state"],
    c: Float[Tensor, "batch heads_c state"],
) -> tuple[Float[Tensor, "batch heads head_dim"], Float[Tensor, "batch heads head_dim state"]]:
    """h <- exp(log_a) * h + x outer b, in place; returns y = h c in the dtype of ``x``, and ``state`` itself.

    ``ssd_step`` with a decay for every channel of the state. The state is float32 or float64 and decides the precision.
    """
    require_floating(x=x, log_a=log_a, b=b, c=c)
    require_one_device(state=state, x=x, log_a=log_a, b=b, c=c)
    require_state(state)
    batch, heads, head_dim, n = state.shape
    require_sizes("x", x, {"batch": batch, "heads_x": None, "head_dim": head_dim}, "state")
    require_sizes("log_a", log_a, {"batch": batch, "heads": heads, "state": n}, "state")
    require_sizes("b", b, {"batch": batch, "heads_b": None, "state": n}, "state")
    require_sizes("c", c, {"batch": batch, "heads_c": None, "state": n}, "state")
    for name, tensor in (("x", x), ("b", b), ("c", c)):
        require_divides(name, tensor.shape[1], heads)
    with without_autocast(state.device):
        x_wide, b_wide, c_wide = (spread(t.to(state.dtype), heads) for t in (x, b, c))
        keep, change = split_decay(log_a.to(state.dtype)[:, :, None])
        # Only a gradient of log_a needs what h was.
        old = state.clone() if torch.is_grad_enabled() and log_a.requires_grad else state
        # keep h + change h, as in the scan: equal decays would drift as one number.
        state.copy_(old * keep + old * change + x_wide.unsqueeze(-1) * b_wide.unsqueeze(2))
        return (state * c_wide.unsqueeze(2)).sum(-1).to(x.dtype), state
