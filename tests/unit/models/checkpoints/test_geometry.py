"""Sizes from the shapes of tensors."""

from pathlib import Path

import pytest
import torch
from checkpoint_examples import mamba1_shapes, mamba2_shapes, told

from statedual.models.checkpoints.geometry import Shapes, mamba1_sizes, mamba2_sizes
from statedual.models.checkpoints.stored import StoredTensor

FOLDER = Path("folder")


def shapes(mixer: dict[str, tuple[int, ...]]) -> Shapes:
    """Of a model with one layer, number 3."""
    named = {f"backbone.layers.3.mixer.{name}": shape for name, shape in mixer.items()}
    named["backbone.embedding.weight"] = (64, 32)
    stored = {n: StoredTensor(FOLDER / "file", n, shape, torch.float32, torch.Tensor) for n, shape in named.items()}
    return Shapes(stored, FOLDER)


@pytest.mark.parametrize("rmsnorm", [True, False])
def test_mamba2(rmsnorm: bool) -> None:
    """The norm, which some models lack, is not asked."""
    mixer = mamba2_shapes(32, d_state=8, headdim=4, ngroups=2, d_ssm=40, expand=3, d_conv=2, rmsnorm=rmsnorm)
    sizes = mamba2_sizes(shapes(mixer), 3)
    assert sizes._asdict() == {"expand": 3, "heads": 10, "head_dim": 4, "d_ssm": 40, "bc": 16, "conv_width": 2}


def test_mamba1() -> None:
    sizes = mamba1_sizes(shapes(mamba1_shapes(32, d_state=8, dt_rank=3, expand=1, d_conv=2)), 3)
    assert sizes._asdict() == {"expand": 1, "d_state": 8, "dt_rank": 3, "conv_width": 2}


def test_the_whole() -> None:
    assert shapes(mamba1_shapes(32)).embedding == (64, 32)
    names = [f"backbone.layers.{layer}.norm.weight" for layer in (2, 0, 1)]
    stored = {name: StoredTensor(FOLDER / "file", name, (32,), torch.float32, torch.Tensor) for name in names}
    assert Shapes(stored, FOLDER).layers == 3


@pytest.mark.parametrize("number", [3, 10**9, 10**30])
def test_a_layer_number_is_not_a_number_of_layers(number: int) -> None:
    """It would have so many layers built before anything is compared."""
    names = [f"backbone.layers.{layer}.norm.weight" for layer in (0, 1, number)]
    stored = {name: StoredTensor(FOLDER / "file", name, (32,), torch.float32, torch.Tensor) for name in names}
    with pytest.raises(ValueError, match=r"lacks the tensor 'backbone\.layers\.2\.norm\.weight', but there is"):
        _ = Shapes(stored, FOLDER).layers


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("in_proj.weight", (153, 32)),  # an odd rest
        ("in_proj.weight", (136, 32)),  # no B and C
        ("in_proj.weight", (100, 32)),
        ("conv1d.weight", (16, 1, 4)),  # no x
        ("conv1d.weight", (800, 1, 4)),  # more than the inner channels
        ("A_log", (7,)),  # an odd rest
        ("A_log", (6,)),  # that do not divide d_ssm
        ("out_proj.weight", (32, 48)),
    ],
)
def test_shapes_that_contradict_one_another(name: str, shape: tuple[int, ...]) -> None:
    mixer = mamba2_shapes(32, d_state=8, headdim=8) | {name: shape}
    with pytest.raises(ValueError, match="contradict one another") as raised:
        mamba2_sizes(shapes(mixer), 3)
    told(raised.value, FOLDER, "backbone.layers.3.mixer.")


def test_no_b_and_c_though_all_widths_fit() -> None:
    mixer = mamba2_shapes(32, d_state=8, headdim=8) | {"in_proj.weight": (136, 32), "conv1d.weight": (64, 1, 4)}
    with pytest.raises(ValueError, match="contradict one another"):
        mamba2_sizes(shapes(mixer), 3)


def test_inner_channels_that_are_no_multiple() -> None:
    mixer = mamba1_shapes(32) | {"A_log": (50, 16)}
    with pytest.raises(ValueError, match="50 inner channels are no multiple of d_model 32"):
        mamba1_sizes(shapes(mixer), 3)


@pytest.mark.parametrize("shape", [(), (8, 1), (0,)])
def test_wrong_axes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"A_log.*expected 1 axes"):
        mamba2_sizes(shapes(mamba2_shapes(32, d_state=8, headdim=8) | {"A_log": shape}), 3)


def test_absent_tensors() -> None:
    mixer = mamba2_shapes(32, d_state=8, headdim=8)
    del mixer["A_log"]
    with pytest.raises(ValueError, match=r"folder lacks the tensor 'backbone\.layers\.3\.mixer\.A_log'"):
        mamba2_sizes(shapes(mixer), 3)
    with pytest.raises(ValueError, match=r"folder lacks the tensors 'backbone\.layers"):
        _ = shapes({}).layers
