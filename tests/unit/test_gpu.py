"""The plain backend on a GPU. Everything else is tested on the CPU; here only what a device could change."""

import pytest
import torch
from unit.ssd.ssd_examples import BOUNDS, PATTERNS, error, example, recurrence

from statedual import diagonal_ssm, ssd

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("form", ["recurrent", "quadratic", "chunked", "diagonal"])
def test_every_form_on_a_gpu(form: str, pattern: str, dtype: torch.dtype) -> None:
    case = example(150, groups=PATTERNS[pattern], batch=2, head_dim=8, state=8, dtype=dtype)
    leaves = [t.cuda().requires_grad_() for t in case.tensors()]
    x, log_a, b, c, initial = leaves
    if form == "diagonal":
        y, final = diagonal_ssm(x, log_a.unsqueeze(-1).expand(-1, -1, -1, 8), b, c, initial_state=initial)
    else:
        y, final = ssd(x, log_a, b, c, initial_state=initial, form=form)
    gradients = torch.autograd.grad((y, final), leaves, (case.grad_y.cuda(), case.grad_final.cuda()))
    wide = case.double()
    true_leaves = [t.requires_grad_() for t in wide.tensors()]
    true_y, true_final = recurrence(*true_leaves)
    true = torch.autograd.grad((true_y, true_final), true_leaves, (wide.grad_y, wide.grad_final))
    for got, wanted in zip((y, final, *gradients), (true_y, true_final, *true), strict=True):
        assert got.device.type == "cuda"
        assert error(got.detach().cpu(), wanted.detach()) < case.bound
