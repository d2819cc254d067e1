"""Our own layout holds every model."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import told

from statedual.layers import (
    AttentionConfig,
    LinearAttentionConfig,
    Mamba1Config,
    Mamba2Config,
    MLPConfig,
    ShortConvConfig,
)
from statedual.models import LanguageModel, ModelConfig
from statedual.models.checkpoints import load, save


def mamba2(**options: Any) -> Mamba2Config:
    return Mamba2Config(**{"d_state": 4, "head_dim": 8} | options)


BLOCKS: dict[str, tuple[Any, ...]] = {
    "Mamba-2": (mamba2(dt_limit=(0.001, math.inf), bias=True, d_ssm=16), mamba2(norm="none", skip="channel")),
    "head patterns": (mamba2(heads_x=1, heads_c=None), mamba2(heads_x=2, heads_b=1, heads_c=4, norm_groups=4)),
    "sequential, initial states": (mamba2(projections="sequential", learnable_init_states=True),),
    "feature maps": (
        mamba2(feature_map=("cosformer",), cosformer_length=64),
        mamba2(feature_map=("squared_layer_norm",)),
        mamba2(feature_map=("swish", "taylor"), feature_map_x=()),
        mamba2(feature_map=("positive_random_features",), normaliser=True),
    ),
    "no convolution": (mamba2(conv_width=0), Mamba1Config(d_state=4, conv_width=0)),
    "Mamba-1": (Mamba1Config(d_state=4, dt_rank=3, bias=True, conv_bias=False),),
    "attention and MLPs": (
        AttentionConfig(heads=4, window=5, conv_width=2, qkv_bias=True, scale=0.3, rotary_dim=2),
        MLPConfig(hidden=24, bias=True),
        MLPConfig(hidden=40),
    ),
    "linear attention": (
        LinearAttentionConfig.linear(2),
        LinearAttentionConfig.retention(2),
        LinearAttentionConfig.gateloop(2),
        LinearAttentionConfig.taylor(2, d_state=4),
        LinearAttentionConfig(heads=2, feature_map=("positive_random_features",), decay="input", norm="rms"),
        ShortConvConfig(),
    ),
}


def example(name: str, **options: Any) -> LanguageModel:
    config = ModelConfig(d_model=16, vocab_size=30, blocks=BLOCKS[name], pad_vocab_size_multiple=8, **options)
    model = LanguageModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_model_comes_back_bit_by_bit(name: str, tied: bool, tmp_path: Path) -> None:
    model = example(name, tie_embeddings=tied, norm_eps=1e-6, residual_in_fp32=not tied)
    save(model, tmp_path / "new")
    again = load(tmp_path / "new")
    assert again.config == model.config
    assert not again.training
    state, written = model.state_dict(), again.state_dict()
    assert list(written) == list(state)
    for key, tensor in state.items():
        assert torch.equal(written[key], tensor), key
    assert not any(tensor.is_meta for tensor in (*again.parameters(), *again.buffers()))
    assert all(parameter.requires_grad for parameter in again.parameters())
    ids = torch.randint(30, (2, 11))
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, model(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    model = example("Mamba-2").to(dtype)
    save(model, tmp_path / "new")
    for (name, tensor), again in zip(
        model.state_dict().items(), load(tmp_path / "new").state_dict().values(), strict=True
    ):
        assert again.dtype == tensor.dtype, name
        assert torch.equal(again, tensor), name


def test_the_configuration_is_plain_json(tmp_path: Path) -> None:
    save(example("Mamba-2"), tmp_path / "new")

    def strict(constant: str) -> float:
        raise AssertionError(constant)

    values = json.loads((tmp_path / "new" / "config.json").read_text(), parse_constant=strict)
    assert values["model_type"] == "statedual"


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"d_modle": 3}, ["'d_modle'", "did you mean d_model"]),
        ({"blocks": 3}, ["blocks is 3"]),
        ({"blocks": [{"kind": "mamba9"}]}, ["'mamba9'"]),
        ({"blocks": [{"kind": ["mamba2"]}]}, []),
        ({"blocks": [{"kind": "mamba2", "d_sate": 3}]}, ["'d_sate'", "d_state"]),
        ({"blocks": [{"kind": "mamba2", "head_dim": 5}]}, ["head_dim 5"]),
        ({"vocab_size": "many"}, ["vocab_size is 'many'"]),
        ({"vocab_size": None}, ["vocab_size is None"]),
    ],
)
def test_a_wrong_configuration_is_named(changed: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    save(example("Mamba-1"), tmp_path / "new")
    path = tmp_path / "new" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ValueError, match=r"config\.json") as raised:
        load(tmp_path / "new")
    told(raised.value, path, *words)
