"""The gated MLP."""

import pytest
import torch
from layer_examples import difference, worst_of_ways
from torch import Tensor

from statedual.layers import GatedMLP, MLPConfig, Stateless


def plain(module: GatedMLP, u: Tensor) -> Tensor:
    """One vector: fc2(value * silu(gate)) with the rows of fc1 as they are stored, value first."""
    bias1, bias2 = (0 if layer.bias is None else layer.bias for layer in (module.fc1, module.fc2))
    both = module.fc1.weight @ u + bias1
    value, gate = both[: module.hidden], both[module.hidden :]
    return module.fc2.weight @ (value * gate / (1 + torch.exp(-gate))) + bias2


@pytest.mark.parametrize("bias", [False, True])
def test_the_formula_at_every_position(bias: bool) -> None:
    module = MLPConfig(hidden=24, bias=bias).build(8).double()
    u = torch.randn(2, 37, 8, dtype=torch.float64)
    y, state = module(u)
    wanted = torch.stack([torch.stack([plain(module, token) for token in row]) for row in u])
    assert difference(y, wanted) < 1e-12
    assert state == Stateless() == module.init_state(2)
    assert max(worst_of_ways(module, u).values()) < 1e-12
    assert {name: tuple(p.shape) for name, p in module.named_parameters() if "weight" in name} == {
        "fc1.weight": (48, 8),
        "fc2.weight": (8, 24),
    }
    assert len(list(module.parameters())) == (4 if bias else 2)


@pytest.mark.parametrize(
    ("d_model", "hidden"), [(48, 128), (49, 256), (768, 2048), (1024, 2816), (2560, 6912), (96, 256), (1, 128)]
)
def test_the_default_width(d_model: int, hidden: int) -> None:
    """8/3 d_model rounded up to a multiple of 128: the released models' own widths."""
    with torch.device("meta"):
        assert GatedMLP(d_model).hidden == hidden
    assert hidden % 128 == 0
    assert 0 <= hidden - 8 * d_model / 3 < 128


def test_parameters_are_drawn_as_pytorch_does() -> None:
    torch.manual_seed(1)
    module = MLPConfig(hidden=64, bias=True).build(16)
    torch.manual_seed(1)
    for layer, size in ((module.fc1, (16, 128)), (module.fc2, (64, 16))):
        wanted = torch.nn.Linear(*size)
        assert torch.equal(layer.weight, wanted.weight)
        assert torch.equal(layer.bias, wanted.bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_stays(dtype: torch.dtype) -> None:
    module = MLPConfig(hidden=16).build(8).to(dtype)
    u = torch.randn(2, 3, 8).to(dtype)
    y, _ = module(u)
    assert y.dtype == dtype
    truth = module.double()(u.double())[0]
    assert difference(y, truth) < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_values() -> None:
    with pytest.raises(ValueError, match="hidden is 0, expected a positive integer"):
        MLPConfig(hidden=0)
    with pytest.raises(ValueError, match="d_model is -1, expected a positive integer"):
        MLPConfig().build(-1)
