"""Parameters that keep float32: not merely its dtype, all of its digits."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from statedual.layers import Mamba1, Mamba2, Mamba2Config
from statedual.layers.precision import Float32Parameters

VALUES = 1 + torch.arange(1, 5) * 2.0**-23  # each bit of float32 is needed


class Block(Float32Parameters):
    float32_parameters = ("kept", "absent", "not_one_of_them")

    def __init__(self) -> None:
        super().__init__()
        self.kept = nn.Parameter(torch.empty(4).copy_(VALUES))
        self.other = nn.Parameter(torch.empty(4).copy_(VALUES))
        self.register_parameter("absent", None)
        self.register_buffer("buffer", torch.empty(4).copy_(VALUES))


def assert_kept(block: Block, other: torch.dtype) -> None:
    assert torch.equal(block.kept, VALUES)
    assert block.kept.dtype == torch.float32
    assert block.other.dtype == block.buffer.dtype == other


CONVERSIONS = {
    "to": lambda module: module.to(torch.bfloat16),
    "bfloat16": lambda module: module.bfloat16(),
    "to_device_and_dtype": lambda module: module.to("cpu", torch.bfloat16),
    "like_a_tensor": lambda module: module.to(torch.zeros(1, dtype=torch.bfloat16)),
    "type": lambda module: module.type(torch.bfloat16),
    "half": lambda module: module.half(),
    "to_float16": lambda module: module.to(torch.float16),
    "one_after_the_other": lambda module: module.half().to(torch.float16).bfloat16().half(),
}


BFLOAT16 = list(CONVERSIONS)[:5]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_every_way_to_half_precision_keeps_all_digits(name: str, inside: bool) -> None:
    block = Block()
    CONVERSIONS[name](nn.ModuleDict({"deep": nn.Sequential(block)}) if inside else block)
    assert_kept(block, torch.bfloat16 if name in BFLOAT16 else torch.float16)
    assert not torch.equal(block.other, VALUES)
    block.float()
    assert_kept(block, torch.float32)


def test_double_is_followed_there_and_back() -> None:
    block = Block().double()
    assert block.kept.dtype == block.other.dtype == torch.float64
    with torch.no_grad():
        block.kept.add_(2.0**-50)
    assert not torch.equal(block.kept, VALUES.double())
    block.bfloat16()
    assert_kept(block, torch.bfloat16)
    assert_kept(block.double().float(), torch.float32)


def test_a_parameter_stays_the_same_object() -> None:
    """So that optimisers and ties keep hold of it."""
    block, tied = Block(), Block()
    tied.kept = block.kept
    both, kept = nn.ModuleList([block, tied]), block.kept
    optimiser = torch.optim.SGD(both.parameters(), lr=1.0)
    for convert in (nn.Module.bfloat16, nn.Module.half, nn.Module.cpu, nn.Module.double, nn.Module.bfloat16):
        convert(both)
        assert block.kept is kept
        assert tied.kept is kept
    assert_kept(block, torch.bfloat16)
    assert kept.requires_grad
    assert kept.is_leaf
    (kept * 2).sum().backward()
    optimiser.step()
    assert torch.equal(block.kept, VALUES - 2)


def test_a_frozen_parameter_stays_frozen() -> None:
    block = Block()
    block.kept.requires_grad_(False)
    assert not block.bfloat16().kept.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_gradients_have_the_dtype_of_their_parameters(dtype: torch.dtype) -> None:
    """Also where two modules share the parameter, and with it the gradient."""
    block, tied = Block(), Block()
    tied.kept = block.kept
    both = nn.ModuleList([block, tied])
    (block.kept * 3 + tied.kept + block.other).sum().backward()
    both.to(dtype)
    assert block.kept.grad is tied.kept.grad
    assert block.kept.grad.dtype == block.kept.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert block.kept.grad.tolist() == [4.0] * 4
    assert block.other.grad.dtype == dtype
    torch.optim.SGD([block.kept], lr=1.0).step()
    assert torch.equal(block.kept.float(), VALUES - 4)


def test_meta_and_back() -> None:
    with torch.device("meta"):
        block = Block()
    for module in (block, block.bfloat16(), Block().to("meta", torch.bfloat16)):
        assert module.kept.device.type == "meta"
        assert module.kept.dtype == torch.float32
    real = block.to_empty(device="cpu")
    assert (real.kept.device.type, real.kept.dtype, real.other.dtype) == ("cpu", torch.float32, torch.bfloat16)
    real.load_state_dict(Block().state_dict())
    assert_kept(real, torch.bfloat16)


def test_a_state_dict_of_another_dtype_is_copied_into_float32() -> None:
    block, stored = Block().bfloat16(), Block().state_dict()
    with torch.no_grad():
        block.kept.zero_()
    block.load_state_dict(stored)
    assert_kept(block, torch.bfloat16)
    block.load_state_dict({name: tensor.to(torch.bfloat16) for name, tensor in stored.items()})
    assert block.kept.dtype == torch.float32
    assert torch.equal(block.kept, VALUES.bfloat16().float())
    saved = block.state_dict()
    assert (saved["kept"].dtype, saved["other"].dtype) == (torch.float32, torch.bfloat16)
    # Assigned instead of copied they are what was stored, and float32 from the next conversion on.
    block.load_state_dict({name: tensor.half() for name, tensor in stored.items()}, assign=True)
    assert block.bfloat16().kept.dtype == torch.float32


def test_copies_keep_it_too() -> None:
    block = Block().bfloat16()
    file = io.BytesIO()
    torch.save(block, file)
    file.seek(0)
    for copied in (copy.deepcopy(block), torch.load(file, weights_only=False)):
        assert_kept(copied.half(), torch.float16)
        assert copied.kept.data_ptr() != block.kept.data_ptr()


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_a_parametrised_parameter_is_another_module_s() -> None:
    block = Block()
    nn.utils.parametrize.register_parametrization(block, "other", Doubled())
    assert torch.equal(block.bfloat16().kept, VALUES)
    nn.utils.parametrize.register_parametrization(block, "kept", Doubled())
    assert block.half().kept.dtype == torch.float16


def test_pending_gradients_keep_their_digits() -> None:
    block = Mamba2(32, Mamba2Config(head_dim=16))
    block.A_log.grad = torch.full_like(block.A_log, 1 + 2.0**-12)
    block.bfloat16()
    assert block.A_log.grad.tolist() == [1 + 2.0**-12] * 4


def test_decays_are_float32_under_a_narrow_default() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        blocks = Mamba2(32, Mamba2Config(head_dim=16, learnable_init_states=True)), Mamba1(32)
    finally:
        torch.set_default_dtype(torch.float32)
    assert blocks[0].in_proj.weight.dtype == torch.bfloat16
    wide = [*(getattr(blocks[0], name) for name in blocks[0].float32_parameters), blocks[1].A_log, blocks[1].D]
    assert {parameter.dtype for parameter in [*wide, blocks[1].dt_proj.bias]} == {torch.float32}
