"""Float32 stays below 1e-5 at any length: what equal decays are rounded by must not add up from step to step."""

import pytest
import torch
from torch import Tensor

from statedual import diagonal_ssm, ssd, ssd_step


def recurrence(x: Tensor, decay: float, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One head in float64: (y, final state)."""
    h = torch.zeros(x.shape[3], b.shape[3], dtype=torch.float64)
    ys = []
    for x_t, b_t, c_t in zip(x[0, :, 0].double(), b[0, :, 0].double(), c[0, :, 0].double(), strict=True):
        h = decay * h + torch.outer(x_t, b_t)
        ys.append(h @ c_t)
    return torch.stack(ys), h


def steps(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    state = torch.zeros(1, 1, x.shape[3], b.shape[3])
    tokens = (t.unbind(1) for t in (x, log_a, b, c))
    return torch.stack([ssd_step(state, *token)[0] for token in zip(*tokens, strict=True)], 1), state


def diagonal(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    return diagonal_ssm(x, log_a.unsqueeze(-1).expand(-1, -1, -1, b.shape[3]), b, c, **options)


def error(got: Tensor, wanted: Tensor) -> float:
    return ((got.double() - wanted).norm() / wanted.norm()).item()


CASES = {
    "ssd, chunks of 64": (ssd, {}, 8),
    "ssd, chunks of 1": (ssd, {"chunk_size": 1}, 8),
    "ssd, recurrent": (ssd, {"form": "recurrent"}, 8),
    "ssd_step": (steps, {}, 8),
    "diagonal, products": (diagonal, {}, 8),
    "diagonal, products in chunks of 256": (diagonal, {"chunk_size": 256}, 8),
    "diagonal, steps": (diagonal, {}, 1),
    "diagonal, recurrent": (diagonal, {"form": "recurrent"}, 8),
}


@pytest.mark.parametrize(
    ("time", "log_a"),
    [(4099, -1e-4), (4099, -3e-4), (4099, -2e-5), pytest.param(65_536, -7e-6, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("name", CASES)
def test_equal_decays_and_positive_inputs(name: str, time: int, log_a: float) -> None:
    """The worst case: every state adds up what all decays before it were off by, and nothing averages out."""
    layer, options, head_dim = CASES[name]
    x, b, c = (torch.rand(1, time, 1, width) for width in (head_dim, 3, 3))
    logs = torch.full((1, time, 1), log_a)
    y, final = layer(x, logs, b, c, **options)
    true_y, true_final = recurrence(x, logs[0, 0].double().exp().item(), b, c)
    assert error(y[0, :, 0], true_y) < 1e-5
    assert error(final[0, 0], true_final) < 1e-5
