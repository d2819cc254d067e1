"""S6 is the diagonal SSM of eq:ssm-diagonal, computed without its expanded tensors (Remark 3, prop:mamba-multihead)."""

import pytest
import torch
from torch import Tensor

from statedual.benchmarks.measure import peak_bytes
from statedual.selective_scan import diagonal_ssm
from statedual.semiseparable import SemiseparableMatrix
from statedual.ssd import segments, ssd

FORMS = ("recurrent", "chunked")
every_form = pytest.mark.parametrize("form", FORMS)


def s6(
    time: int, channels: int, state: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """head_dim 1: every channel its own decays, all channels one b and one c."""
    x = torch.randn(1, time, channels, 1, dtype=dtype)
    log_a = -torch.rand(1, time, channels, state, dtype=dtype)
    b, c = (torch.randn(1, time, 1, state, dtype=dtype) for _ in range(2))
    return x, log_a, b, c


@every_form
def test_every_channel_is_a_diagonal_state_space_model(form: str) -> None:
    x, log_a, b, c = s6(23, 4, 3)
    y = diagonal_ssm(x, log_a, b, c, form=form, chunk_size=8).y
    for channel in range(4):
        m = SemiseparableMatrix(log_a[0, :, channel].exp(), b[0, :, 0], c[0, :, 0])
        torch.testing.assert_close(y[0, :, channel], m.matmul(x[0, :, channel], "contraction"))
        torch.testing.assert_close(y[0, :, channel], m.dense() @ x[0, :, channel])


@every_form
@pytest.mark.parametrize("head_dim", [1, 16])
def test_equal_decays_in_all_channels_of_the_state_are_ssd(form: str, head_dim: int) -> None:
    """cor:1ss-sma: the N axis disappears where A is a multiple of the identity."""
    x, b, c = (torch.randn(2, 30, *size, dtype=torch.float64) for size in ((4, head_dim), (1, 3), (1, 3)))
    log_a = -torch.rand(2, 30, 4, dtype=torch.float64)
    got = diagonal_ssm(x, log_a.unsqueeze(-1).expand(-1, -1, -1, 3), b, c, form=form, chunk_size=8)
    for one, other in zip(got, ssd(x, log_a, b, c), strict=True):
        torch.testing.assert_close(one, other)


def test_no_expanded_tensor_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Z and H would be (time, channels, state). Beside the gradient of log_a, which is, little of that size is held."""
    monkeypatch.setitem(segments._BUDGET, "cpu", 20_000)
    time, channels, state = 1024, 16, 16
    given = [t.requires_grad_() for t in s6(time, channels, state, torch.float32)]

    def forward() -> None:
        with torch.no_grad():
            diagonal_ssm(*given)

    def both() -> None:
        y, final = diagonal_ssm(*given)
        torch.autograd.grad(y.sum() + final.sum(), given)

    expanded = time * channels * state * 4
    assert peak_bytes(forward) < 0.3 * expanded
    assert peak_bytes(both) < 1.8 * expanded
