"""What the tests of benchmarks share: the recurrence as a plain loop, and measurements with little to say."""

import torch
from torch import Tensor

from statedual.benchmarks.report import Measurement

MIB = 1 << 20


def loop(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """h_t = exp(log_a_t) h_{t-1} + x_t outer b_t, y_t = h_t c_t; b and c have one head or all of them."""
    h = x.new_zeros(*x.shape[:1], *x.shape[2:], b.shape[3]) if state is None else state
    outputs = []
    for t in range(x.shape[1]):
        h = log_a[:, t].exp()[..., None, None] * h + x[:, t].unsqueeze(-1) * b[:, t].unsqueeze(-2)
        outputs.append((h * c[:, t].unsqueeze(-2)).sum(-1))
    return torch.stack(outputs, 1), h


def measurement(
    candidate: str = "ours", *, case: str = "forward", time: int = 64, seconds: float = 1.0, mib: float | None = 1.0
) -> Measurement:
    """One of ``mib`` MiB at the peak; a floor has none."""
    return Measurement(case, time, candidate, seconds, None if mib is None else int(mib * MIB))
