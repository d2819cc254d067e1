"""Names of parameters: every spelling leads to one."""

from pathlib import Path

import pytest
import torch
from checkpoint_examples import told
from torch import Tensor

from statedual.models.checkpoints.names import backbone_name, backbone_tensors
from statedual.models.checkpoints.stored import StoredTensor


def stored(name: str, tensor: Tensor | None = None) -> StoredTensor:
    tensor = torch.zeros(1) if tensor is None else tensor
    return StoredTensor(Path("file"), name, tuple(tensor.shape), tensor.dtype, tensor.clone)


def found(*names: str) -> dict[str, StoredTensor]:
    return backbone_tensors({name: stored(name) for name in names})


@pytest.mark.parametrize(
    ("ours", "alone", "with_mlps"),
    [
        ("embedding.weight", "backbone.embedding.weight", "backbone.embedding.weight"),
        ("norm.weight", "backbone.norm_f.weight", "backbone.norm_f.weight"),
        ("head.weight", "lm_head.weight", "lm_head.weight"),
        ("blocks.6.norm.weight", "backbone.layers.6.norm.weight", "backbone.layers.3.norm.weight"),
        ("blocks.6.mixer.norm.weight", "backbone.layers.6.mixer.norm.weight", "backbone.layers.3.mixer.norm.weight"),
        ("blocks.7.norm.weight", "backbone.layers.7.norm.weight", "backbone.layers.3.norm2.weight"),
        ("blocks.7.mixer.fc1.weight", "backbone.layers.7.mixer.fc1.weight", "backbone.layers.3.mlp.fc1.weight"),
        ("blocks.10.mixer.A_log", "backbone.layers.10.mixer.A_log", "backbone.layers.5.mixer.A_log"),
    ],
)
def test_backbone_name(ours: str, alone: str, with_mlps: str) -> None:
    assert backbone_name(ours, with_mlps=False) == alone
    assert backbone_name(ours, with_mlps=True) == with_mlps


@pytest.mark.parametrize("front", ["", "model."])
@pytest.mark.parametrize("s", ["", "s"])
def test_spellings(front: str, s: str) -> None:
    names = found(f"{front}backbone.embedding{s}.weight", f"{front}lm_head.weight", "model.other", "embeddings.weight")
    assert list(names) == ["backbone.embedding.weight", "lm_head.weight", "model.other", "embeddings.weight"]
    assert names["backbone.embedding.weight"].name == f"{front}backbone.embedding{s}.weight"  # what messages call it


def test_two_spellings_of_one_parameter() -> None:
    with pytest.raises(ValueError, match="is the same parameter as") as raised:
        found("backbone.embedding.weight", "backbone.embeddings.weight")
    told(raised.value, "'backbone.embedding.weight' in file", "'backbone.embeddings.weight' in file")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_instead_of_its_logarithm(dtype: torch.dtype) -> None:
    a_log = torch.tensor([-0.5, 0.0, 2.7], dtype=torch.float64)
    name = "backbone.layers.0.mixer.A"
    names = backbone_tensors({name: stored(name, -a_log.exp().to(dtype))})
    assert list(names) == [f"{name}_log"]
    read = names[f"{name}_log"].read()
    assert read.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.allclose(read.double(), a_log, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
def test_a_that_is_not_negative(value: float) -> None:
    name = "backbone.layers.0.mixer.A"
    names = backbone_tensors({name: stored(name, torch.tensor([-1.0, value]))})
    with pytest.raises(ValueError, match="not below 0 everywhere") as raised:
        names[f"{name}_log"].read()
    told(raised.value, repr(name), "A = -exp(A_log)")
