"""Codestral Mamba as Mistral released it: params.json, consolidated.safetensors, names that begin with "model."."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import (
    MAMBA2,
    codestral_config,
    difference,
    reference,
    state_spaces_config,
    state_spaces_tensors,
    tokens,
    told,
    transformers_config,
    write,
)
from torch import Tensor

from statedual.models.checkpoints import load


def tensors_of(config: dict[str, Any]) -> dict[str, Tensor]:
    return {f"model.{name}": tensor for name, tensor in state_spaces_tensors(config).items()}


RELEASED = {"ssm_cfg": {"layer": "Mamba2", "d_state": 8, "ngroups": 2}, "d_model": 64, "tie_embeddings": False}


def logits_are_right(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> bool:
    named = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    ids = tokens()
    with torch.no_grad():
        return difference(load(folder)(ids).logits, reference(config, named, ids)) < 1e-5


@pytest.mark.parametrize(
    ("keys", "ssm"),
    [
        ({"n_groups": 2, "d_state": 8}, {"ngroups": 2}),
        ({"n_groups": 1, "d_state": 8, "conv_bias": False, "bias": True}, {"conv_bias": False, "bias": True}),
        ({"n_groups": 1, "d_state": 8, "head_dim": 8, "expand": 3}, {"headdim": 8, "expand": 3}),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_params_json(keys: dict[str, Any], ssm: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    config = state_spaces_config(
        d_model=64, vocab_size=64, tie_embeddings=tied, ssm_cfg={"layer": "Mamba2", "d_state": 8, **ssm}
    )
    tensors = tensors_of(config)
    write(tmp_path, codestral_config(dim=64, **keys, tie_embeddings=tied), tensors, "consolidated.safetensors")
    assert logits_are_right(tmp_path, config, tensors)


def test_a_config_json_beside_it_is_the_one_that_counts(tmp_path: Path) -> None:
    """The hub has both; tensors may have either spelling."""
    config = state_spaces_config(ssm_cfg=MAMBA2, tie_embeddings=False)
    tensors = tensors_of(config)
    write(tmp_path, transformers_config(), tensors, "consolidated.safetensors")
    write(tmp_path, codestral_config(dim=1, n_layers=99), tensors, "consolidated.safetensors")
    assert logits_are_right(tmp_path, config, tensors)


def test_messages_have_the_keys_of_the_file(tmp_path: Path) -> None:
    config = state_spaces_config(**RELEASED)
    claimed = codestral_config(dim=4096, n_layers=64, d_state=16, n_groups=2)
    write(tmp_path, claimed, tensors_of(config), "consolidated.safetensors")
    with pytest.warns(UserWarning, match="does not describe its tensors") as caught:
        load(tmp_path)
    told(caught[0].message, tmp_path / "params.json", "; dim is 4096", "n_layers is 64", "d_state is 16")
    assert "ssm_cfg" not in str(caught[0].message)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_heads": 8}, ["'n_heads'"]),
        ({"model_type": "transformer"}, ["model_type is 'transformer'", "'mamba'"]),
        ({"n_groups": "8"}, ["n_groups is '8'", "integer"]),
        ({"rms_norm": False}, ["rms_norm is False"]),
    ],
)
def test_what_cannot_be_read_is_named(changed: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    config = state_spaces_config(**RELEASED)
    claimed = codestral_config(dim=64, d_state=8, **changed)
    write(tmp_path, claimed, tensors_of(config), "consolidated.safetensors")
    with pytest.raises(ValueError, match=r"params\.json") as raised:
        load(tmp_path)
    told(raised.value, *words)
