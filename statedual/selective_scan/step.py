"""One token of ``diagonal_ssm``, without its time axis, for generation."""

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.ssd.decays import split_decay
from statedual.ssd.heads import spread
from statedual.ssd.inputs import without_autocast
from statedual.ssd.step import check_step


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
    _, heads, _ = check_step(state, x, log_a, b, c, diagonal=True)
    with without_autocast(state.device):
        x_wide, b_wide, c_wide = (spread(t.to(state.dtype), heads) for t in (x, b, c))
        keep, change = split_decay(log_a.to(state.dtype)[:, :, None])
        # Only a gradient of log_a needs what h was.
        old = state.clone() if torch.is_grad_enabled() and log_a.requires_grad else state
        # keep h + change h, as in the scan: equal decays would drift as one number.
        state.copy_(old * keep + old * change + x_wide.unsqueeze(-1) * b_wide.unsqueeze(2))
        return (state * c_wide.unsqueeze(2)).sum(-1).to(x.dtype), state
