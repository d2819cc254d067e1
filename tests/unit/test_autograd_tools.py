"""The chunked operators under PyTorch's other ways of differentiating, and of storing programs."""

import io

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from statedual import SSDOutput, diagonal_ssm, ssd


def inputs(head_dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sizes = ((2, head_dim), (2, 3), (1, 3), (1, 3))
    x, log_a, b, c = (torch.randn(1, 40, *size, dtype=torch.float64) for size in sizes)
    return x, -log_a.abs(), b, c


def scalar(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, **options: str) -> SSDOutput:
    return ssd(x, log_a[..., 0], b, c, **options)


every_operator = pytest.mark.parametrize(
    ("layer", "head_dim"), [(scalar, 4), (diagonal_ssm, 1), (diagonal_ssm, 8)], ids=["ssd", "steps", "products"]
)


@every_operator
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_changes_nothing(layer, head_dim: int, reentrant: bool) -> None:
    leaves = [t.requires_grad_() for t in inputs(head_dim)]
    plain = torch.autograd.grad(layer(*leaves).y.square().sum(), leaves)
    checkpoint(lambda *given: layer(*given).y, *leaves, use_reentrant=reentrant).square().sum().backward()
    for leaf, wanted in zip(leaves, plain, strict=True):
        assert torch.equal(leaf.grad, wanted)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own forward mode loads it
@every_operator
def test_a_tangent_is_refused_and_not_lost(layer, head_dim: int) -> None:
    given = inputs(head_dim)
    with forward_ad.dual_level():
        x = forward_ad.make_dual(given[0], torch.ones_like(given[0]))
        with pytest.raises(ValueError, match="an input has a tangent, expected none: use form='recurrent'"):
            layer(x, *given[1:])
        y = layer(x, *given[1:], form="recurrent").y
        tangent = forward_ad.unpack_dual(y).tangent
    torch.testing.assert_close(tangent, layer(torch.ones_like(given[0]), *given[1:]).y)  # y is linear in x


class Whole(torch.nn.Module):
    def forward(self, x: Tensor, log_a: Tensor, b: Tensor, c: Tensor) -> SSDOutput:
        return ssd(x, log_a, b, c)


@pytest.mark.usefixtures("unchecked_shapes")
def test_an_exported_program_can_be_stored_and_loaded() -> None:
    x, log_a, b, c = inputs(4)
    given, stored = (x, log_a[..., 0], b, c), io.BytesIO()
    torch.export.save(torch.export.export(Whole(), given), stored)
    stored.seek(0)
    result = torch.export.load(stored).module()(*given)
    assert isinstance(result, SSDOutput)
    assert torch.equal(result.y, Whole()(*given).y)


@pytest.mark.parametrize(("head_dim", "state"), [(0, 3), (4, 0)])
@pytest.mark.parametrize("form", ["recurrent", "quadratic", "chunked"])
def test_heads_without_channels_or_states(form: str, head_dim: int, state: int) -> None:
    x, b = torch.randn(1, 5, 2, head_dim, requires_grad=True), torch.randn(1, 5, 1, state, requires_grad=True)
    y, final = ssd(x, -torch.rand(1, 5, 2), b, torch.randn(1, 5, 1, state), form=form)
    assert y.shape == (1, 5, 2, head_dim)
    assert final.shape == (1, 2, head_dim, state)
    assert not y.any()
    (y.sum() + final.sum()).backward()
    assert not x.grad.any()
    assert not b.grad.any()
