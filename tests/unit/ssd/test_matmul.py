"""The product of the chunked form: both libraries, any strides, and what is written is what was asked for."""

import pytest
import torch
from ssd_examples import assert_equal, example, results, truth
from torch import Tensor

from statedual.ssd import matmul as module
from statedual.ssd.matmul import matmul

SIZES = (64, 512, 128)  # 8 Mflop: oneDNN's


def operands(outer: int, inner: int, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    return torch.randn(outer, inner, m, k), torch.randn(outer, inner, k, n)


def error(got: Tensor, left: Tensor, right: Tensor) -> float:
    wanted = left.double() @ right.double()
    return ((got - wanted).norm() / wanted.norm()).item()


@pytest.fixture(params=["oneDNN", "bmm"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "bmm":
        monkeypatch.setattr(module, "_ONEDNN", False)
    elif not module._ONEDNN:
        pytest.skip("this PyTorch was built without oneDNN")
    return request.param


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (3, 1), (1, 3), (2, 3), (3, 2)])
@pytest.mark.parametrize("sizes", [SIZES, (4, 5, 3), (1, 1, 1)])
def test_products_into_new_and_into_strided_memory(outer: int, inner: int, sizes: tuple[int, int, int]) -> None:
    left, right = operands(outer, inner, *sizes)
    assert error(matmul(left, right), left, right) < 1e-6
    # As ``matrices`` makes it: the groups of a position lie side by side.
    held = torch.full((outer, sizes[0], inner, sizes[1]), torch.nan)
    out = matmul(left, right, out=held.transpose(1, 2))
    assert out.data_ptr() == held.data_ptr()
    assert error(held.transpose(1, 2), left, right) < 1e-6


@pytest.mark.usefixtures("library")
def test_transposed_operands() -> None:
    left, right = operands(2, 2, *SIZES)
    turned = left.mT.contiguous().mT, right.mT.contiguous().mT
    assert not turned[0].is_contiguous()
    assert error(matmul(*turned), left, right) < 1e-6


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # PyTorch says so whenever the switch is turned
def test_the_user_s_switch_of_onednn_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("oneDNN was called")

    monkeypatch.setattr(module, "_linear", refuse)
    left, right = operands(1, 1, *SIZES)
    with torch.backends.mkldnn.flags(enabled=False):
        assert error(matmul(left, right), left, right) < 1e-6


@pytest.mark.parametrize(
    ("heads_b", "heads_c", "batch"), [(1, 1, 1), (2, 2, 1), (3, 3, 1), (2, 1, 1), (1, 3, 1), (2, 3, 2), (12, 1, 1)]
)
def test_wide_heads_in_groups(poisoned, heads_b: int, heads_c: int, batch: int) -> None:
    """The layers of released models, of which each group's product is large: forward, backward, over several chunks.

    In poisoned memory: what is not written must not be right by what lay there before.
    """
    case = example(150, 12, (12, heads_b, heads_c), batch=batch, head_dim=64, state=128, kind="usual")
    with poisoned():
        got = results(case, "chunked", 64)
    assert_equal(got, truth(case), case)
