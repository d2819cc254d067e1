"""The peer of ``diagonal_ssm``: its recurrence as one writes it, a loop that autograd follows."""

import torch
from torch import Tensor

from statedual.shapes import B, C, DiagonalLogA, X


def loop(x: X, log_a: DiagonalLogA, b: B, c: C) -> tuple[Tensor, Tensor]:
    """h_t = exp(log_a_t) * h_{t-1} + x_t outer b_t, y_t = h_t c_t; (y, final state). Heads of b and c may be one."""
    decay = log_a.exp().unsqueeze(-2)
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3])
    outputs = []
    for x_t, decay_t, b_t, c_t in zip(x.unbind(1), decay.unbind(1), b.unbind(1), c.unbind(1), strict=True):
        state = decay_t * state + x_t.unsqueeze(-1) * b_t.unsqueeze(-2)
        outputs.append((state @ c_t.unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, 1), state
