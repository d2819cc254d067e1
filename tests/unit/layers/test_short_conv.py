"""Based's gated short convolution."""

import pytest
import torch
from layer_examples import difference, worst_of_ways
from torch import Tensor

from statedual.layers import ShortConv, ShortConvConfig, ShortConvState


def plain(module: ShortConv, u: Tensor) -> Tensor:
    """conv(u) * (W u + b) of one sequence (time, model), position by position."""
    weight, width = module.conv1d.weight[:, 0], module.config.width
    ys = []
    for t, token in enumerate(u):
        mixed = module.conv1d.bias
        for back in range(min(width, t + 1)):
            mixed = mixed + weight[:, width - 1 - back] * u[t - back]
        ys.append(mixed * (module.in_proj.weight @ token + module.in_proj.bias))
    return torch.stack(ys)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 50])
def test_the_formula_and_every_way_to_it(width: int) -> None:
    module = ShortConvConfig(width=width).build(6).double()
    u = torch.randn(2, 37, 6, dtype=torch.float64)
    y, state = module(u)
    assert difference(y, torch.stack([plain(module, row) for row in u])) < 1e-12
    assert worst_of_ways(module, u).keys() == {"cut", "step", "prefill", "packed"}
    assert max(worst_of_ways(module, u).values()) < 1e-12
    assert isinstance(state, ShortConvState)
    wanted = torch.cat([u.new_zeros(2, 50, 6), u], 1)[:, 87 - (width - 1) :]
    assert torch.equal(state.conv, wanted)


def test_gradients() -> None:
    module = ShortConv(4).double()
    u = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    leaves = [u, *module.parameters()]
    got = torch.autograd.grad(module(u)[0].square().sum(), leaves)
    wanted = torch.autograd.grad(plain(module, u[0]).square().sum(), leaves)
    assert max(difference(*pair) for pair in zip(got, wanted, strict=True)) < 1e-12


def test_a_step_changes_the_state_in_place() -> None:
    module = ShortConv(4)
    state = module.init_state(2)
    storage = state.conv.data_ptr()
    tokens = torch.randn(3, 2, 4)
    for token in tokens:
        module.step(token, state)
    assert state.conv.data_ptr() == storage
    assert torch.equal(state.conv, tokens[1:].transpose(0, 1))


def test_parameters_are_drawn_as_pytorch_does() -> None:
    torch.manual_seed(1)
    module = ShortConvConfig(width=4).build(8)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "in_proj.weight": (8, 8),
        "in_proj.bias": (8,),
        "conv1d.weight": (8, 1, 4),
        "conv1d.bias": (8,),
    }
    torch.manual_seed(1)
    wanted = torch.nn.Linear(8, 8)
    assert torch.equal(module.in_proj.weight, wanted.weight)
    assert torch.equal(module.in_proj.bias, wanted.bias)
    assert 0.35 < module.conv1d.weight.abs().max() <= 0.5  # U(-1/sqrt(width), 1/sqrt(width))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_stays(dtype: torch.dtype) -> None:
    module = ShortConv(8).to(dtype)
    u = torch.randn(2, 9, 8).to(dtype)
    y, state = module(u)
    assert (y.dtype, state.conv.dtype, module.init_state(1).conv.dtype) == (dtype, dtype, dtype)
    assert difference(y, module.double()(u.double())[0]) < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_values() -> None:
    with pytest.raises(ValueError, match="width is 0, expected a positive integer"):
        ShortConvConfig(width=0)
    with pytest.raises(ValueError, match="state has history 3"):
        ShortConv(4)(torch.randn(1, 2, 4), ShortConvState(torch.zeros(1, 3, 4)))
