"""The recurrent (linear) form, eq:s6: the definition, token by token. In float64 it is the truth."""

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.shapes import B, C, DiagonalLogA, LogA, X
from statedual.ssd.decays import split_decay
from statedual.ssd.heads import spread


def recurrent(
    x: X, log_a: LogA | DiagonalLogA, b: B, c: C, state: Float[Tensor, "batch heads head_dim state"]
) -> tuple[Float[Tensor, "batch time heads head_dim"], Float[Tensor, "batch heads head_dim state"]]:
    """h_t = exp(log_a_t) h_{t-1} + x_t outer b_t,  y_t = h_t c_t, from ``state`` on, in the precision of the inputs.

    A decay for each head, A = a I, or for each channel of its state, A = diag(a).
    """
    heads = log_a.shape[2]
    outputs = [x.new_zeros(x.shape[0], 0, heads, x.shape[3])]
    by_channel = log_a if log_a.ndim == 4 else log_a.unsqueeze(-1)
    keep, change = split_decay(by_channel.unsqueeze(-2))
    steps = (t.unbind(1) for t in (x, keep, change, b, c))
    for x_t, keep_t, change_t, b_t, c_t in zip(*steps, strict=True):
        outer = spread(x_t, heads).unsqueeze(-1) * spread(b_t, heads).unsqueeze(-2)
        state = torch.addcmul(torch.addcmul(outer, change_t, state), keep_t, state)
        outputs.append((state @ spread(c_t, heads).unsqueeze(-1)).squeeze(-1).unsqueeze(1))
    return torch.cat(outputs, 1), state if x.shape[1] else state.clone()  # never the initial state's own memory
