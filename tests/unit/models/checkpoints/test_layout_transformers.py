"""Files of transformers, versions 4 and 5: keys, spellings, leftovers, what wins, what is refused; and writing them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import (
    D_MODEL,
    MAMBA2,
    ROWS,
    VOCABULARY,
    difference,
    reference,
    state_spaces_config,
    tokens,
    told,
    transformers_config,
    transformers_tensors,
    write,
)
from safetensors import safe_open
from safetensors.torch import load_file

from statedual.layers import AttentionConfig, Mamba1Config, Mamba2Config, MLPConfig
from statedual.models import LanguageModel, ModelConfig
from statedual.models.checkpoints import load, save
from statedual.models.checkpoints.save import describe

PLAIN = Mamba2Config(d_state=8, head_dim=8)
# mistralai's Codestral in 2024, and the first Mamba of transformers: what their files have beyond those of today.
CODESTRAL = {
    "_name_or_path": "./codestral",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.44.0.dev0",
    "intermediate_size": 64,
    "norm_before_gate": True,
    "rms_norm": True,
    "time_step_init_scheme": "random",
    "time_step_scale": 1.0,
}
FIRST_MAMBA = {
    "_name_or_path": "state-spaces/mamba-130m-hf",
    "architectures": ["MambaForCausalLM"],
    "bos_token_id": 0,
    "conv_kernel": 4,
    "d_inner": 64,
    "d_model": D_MODEL,
    "eos_token_id": 0,
    "expand": 2,
    "fused_add_norm": True,
    "hidden_act": "silu",
    "hidden_size": D_MODEL,
    "initializer_range": 0.1,
    "intermediate_size": 64,
    "layer_norm_epsilon": 1e-05,
    "model_type": "mamba",
    "n_layer": 2,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "pad_vocab_size_multiple": 8,
    "rescale_prenorm_residual": False,
    "residual_in_fp32": True,
    "rms_norm": True,
    "ssm_cfg": {},
    "state_size": 16,
    "time_step_floor": 0.0001,
    "time_step_init_scheme": "random",
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "time_step_rank": 2,
    "time_step_scale": 1.0,
    "torch_dtype": "float32",
    "transformers_version": "4.39.0.dev0",
    "use_bias": False,
    "use_cache": True,
    "use_conv_bias": True,
    "vocab_size": ROWS,
}


def logits_are_right(model: LanguageModel, tensors: dict[str, torch.Tensor], **ssm_cfg: Any) -> bool:
    """Those of the plain model of the same tensors."""
    named = {name.replace("embeddings.", "embedding."): tensor for name, tensor in tensors.items()}
    named.setdefault("lm_head.weight", named["backbone.embedding.weight"])
    ids = tokens()
    with torch.no_grad():
        return difference(model(ids).logits, reference(state_spaces_config(ssm_cfg=ssm_cfg), named, ids)) < 1e-5


def refused(folder: Path, config: dict[str, Any]) -> str:
    write(folder, config, transformers_tensors())
    with pytest.raises(ValueError, match=r"config\.json") as raised:
        load(folder)
    return str(raised.value)


def overruled(folder: Path, **claimed: Any) -> tuple[LanguageModel, str]:
    """The model of a file that claims other sizes than its tensors have, and the one warning."""
    write(folder, transformers_config(**claimed), transformers_tensors())
    with pytest.warns(UserWarning, match="does not describe its tensors") as caught:
        model = load(folder)
    assert len(caught) == 1
    return model, str(caught[0].message)


@pytest.mark.parametrize(
    ("config", "ssm"),
    [
        ({}, {}),
        ({"n_groups": 2}, {"ngroups": 2}),
        ({"use_bias": True, "use_conv_bias": False}, {"bias": True, "conv_bias": False}),
        ({"conv_kernel": 3, "expand": 3, "num_heads": 6, "head_dim": 16}, {"d_conv": 3, "expand": 3, "headdim": 16}),
        ({"time_step_limit": [0.1, 0.4]}, {"dt_limit": [0.1, 0.4]}),
        ({"time_step_limit": [0.1, {"__float__": "Infinity"}]}, {"dt_limit": [0.1, math.inf]}),
        ({"time_step_limit": [0.1, math.inf]}, {"dt_limit": [0.1, math.inf]}),
        ({"time_step_limit": None}, {}),
        ({"hidden_act": "swish"}, {}),
    ],
)
def test_mamba2(config: dict[str, Any], ssm: dict[str, Any], tmp_path: Path) -> None:
    tensors = transformers_tensors(**ssm)
    model = load(write(tmp_path, transformers_config(**config), tensors))
    assert logits_are_right(model, tensors, **MAMBA2 | ssm)


def test_every_value_arrives(tmp_path: Path) -> None:
    config = transformers_config(
        layer_norm_epsilon=1e-3,
        residual_in_fp32=False,
        time_step_limit=[0.001, 5],
        time_step_min=0.01,
        time_step_max=0.2,
        time_step_floor=0.002,
    )
    block = replace(PLAIN, norm_eps=1e-3, dt_limit=(0.001, 5.0), dt_init=(0.01, 0.2), dt_floor=0.002)
    assert load(write(tmp_path, config, transformers_tensors())).config == ModelConfig(
        d_model=D_MODEL,
        vocab_size=ROWS,
        blocks=(block, block),
        tie_embeddings=False,
        norm_eps=1e-3,
        residual_in_fp32=False,
    )


def test_a_file_of_2024_with_its_leftovers(tmp_path: Path) -> None:
    """Its norm_before_gate is true, and its model gates before the norm all the same."""
    tensors = transformers_tensors()
    write(tmp_path, transformers_config(**CODESTRAL, time_step_limit=[0.0, math.inf]), tensors)
    with pytest.warns(UserWarning, match="norm_before_gate true, a leftover") as caught:
        model = load(tmp_path)
    assert len(caught) == 1
    told(caught[0].message, tmp_path / "config.json")
    assert logits_are_right(model, tensors, **MAMBA2)


@pytest.mark.parametrize("changed", [{}, {"time_step_rank": "auto"}, {"intermediate_size": 999}])
def test_the_first_mamba_of_transformers_with_its_leftovers(changed: dict[str, Any], tmp_path: Path) -> None:
    """It has the keys of mamba_ssm as well; its head is tied, and absent."""
    tensors = transformers_tensors("mamba")
    del tensors["lm_head.weight"]
    model = load(write(tmp_path, FIRST_MAMBA | changed, tensors))
    assert model.head is None
    assert logits_are_right(model, tensors)


def test_every_value_of_mamba1_arrives(tmp_path: Path) -> None:
    config = FIRST_MAMBA | {
        "tie_word_embeddings": False,
        "use_bias": True,
        "use_conv_bias": False,
        "state_size": 4,
        "time_step_rank": 5,
        "time_step_min": 0.01,
        "time_step_max": 0.2,
        "time_step_floor": 0.002,
    }
    tensors = transformers_tensors("mamba", bias=True, conv_bias=False, d_state=4, dt_rank=5)
    model = load(write(tmp_path, config, tensors))
    assert model.config.blocks[0] == Mamba1Config(
        d_state=4, dt_rank=5, bias=True, conv_bias=False, dt_init=(0.01, 0.2), dt_floor=0.002
    )
    assert logits_are_right(model, tensors)


@pytest.mark.parametrize(
    ("claimed", "words"),
    [
        ({"hidden_size": 4096}, ["hidden_size is 4096", D_MODEL]),
        ({"num_hidden_layers": 64}, ["num_hidden_layers is 64", "2"]),
        ({"vocab_size": VOCABULARY}, ["vocab_size is 50", ROWS]),
        ({"num_heads": 128}, ["num_heads is 128", "8"]),
        ({"head_dim": 64}, ["head_dim is 64", "8"]),
        ({"expand": 1}, ["expand is 1", "2"]),
        ({"conv_kernel": 2}, ["conv_kernel is 2", "4"]),
        ({"state_size": 128}, ["state_size is 128", "8"]),
    ],
)
def test_tensors_win(claimed: dict[str, Any], words: list[Any], tmp_path: Path) -> None:
    model, message = overruled(tmp_path, **claimed)
    told(message, tmp_path / "config.json", *words)
    assert message.count(" is ") == 1
    assert model.config.blocks == (PLAIN, PLAIN)
    assert (model.config.d_model, model.config.vocab_size) == (D_MODEL, ROWS)


def test_n_groups_counts_more_than_state_size(tmp_path: Path) -> None:
    model, message = overruled(tmp_path, n_groups=4)
    told(message, "state_size is 8", "2")
    assert model.config.blocks[0] == replace(PLAIN, heads_b=4, heads_c=4, d_state=2)


def test_mamba1_tensors_win(tmp_path: Path) -> None:
    claimed = FIRST_MAMBA | {"state_size": 8, "time_step_rank": 48, "expand": 16, "conv_kernel": 2, "hidden_size": 768}
    write(tmp_path, claimed, transformers_tensors("mamba"))
    with pytest.warns(UserWarning, match="does not describe its tensors") as caught:
        model = load(write(tmp_path, claimed | {"tie_word_embeddings": False}, transformers_tensors("mamba")))
    told(caught[0].message, "time_step_rank is 48", "state_size is 8", "expand is 16", "conv_kernel is 2", "768")
    assert model.config.blocks == (Mamba1Config(dt_rank=2),) * 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_type": "bamba"}, ["model_type is 'bamba'", "'mamba2', 'mamba'", "not read"]),
        ({"model_type": "falcon_mamba"}, ["model_type is 'falcon_mamba'"]),
        ({"hidden_act": "gelu"}, ["hidden_act is 'gelu'", "'silu'"]),
        ({"rms_norm": False}, ["rms_norm is False"]),
        ({"quantization_config": {}}, ["'quantization_config'", "remove it"]),
        ({"n_group": 1}, ["'n_group'", "did you mean 'n_groups'"]),
        ({"expand": 2.0}, ["expand is 2.0", "integer"]),
        ({"time_step_limit": [0.0, {"__float__": "NaN"}]}, ["time_step_limit"]),
        ({"time_step_limit": "inf"}, ["time_step_limit is 'inf'", "two numbers"]),
        ({"model_type": ["mamba2"]}, ["model_type"]),
    ],
)
def test_what_cannot_be_read_is_named(changed: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    told(refused(tmp_path, transformers_config(**changed)), tmp_path / "config.json", *words)


def test_fewer_ssm_channels_are_refused(tmp_path: Path) -> None:
    """There is no key for them."""
    write(tmp_path, transformers_config(num_heads=5), transformers_tensors(d_ssm=40))
    with pytest.raises(ValueError, match=r"mixer\.A_log.* has shape \(5,\), expected \(8,\)"):
        load(tmp_path)


def model_of(*blocks: Any, **options: Any) -> LanguageModel:
    return LanguageModel(ModelConfig(d_model=D_MODEL, vocab_size=VOCABULARY, blocks=blocks, **options)).eval()


def test_what_is_written(tmp_path: Path) -> None:
    block = replace(PLAIN, heads_b=2, heads_c=2, bias=True, dt_limit=(0.001, math.inf), norm_eps=1e-6)
    model = model_of(block, block, norm_eps=1e-6, pad_vocab_size_multiple=16, residual_in_fp32=False)
    save(model.to(torch.bfloat16), tmp_path / "new", layout="transformers")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"config.json", "model.safetensors"}
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == {
        "model_type": "mamba2",
        "architectures": ["Mamba2ForCausalLM"],
        "dtype": "bfloat16",
        "vocab_size": ROWS,
        "hidden_size": D_MODEL,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-6,
        "residual_in_fp32": False,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "expand": 2,
        "state_size": 8,
        "conv_kernel": 4,
        "use_bias": True,
        "use_conv_bias": True,
        "time_step_min": 1e-3,
        "time_step_max": 1e-1,
        "time_step_floor": 1e-4,
        "time_step_limit": [0.001, {"__float__": "Infinity"}],
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 2,
    }
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    expected = transformers_tensors(bias=True, ngroups=2)
    del expected["lm_head.weight"]
    assert {name: tensor.shape for name, tensor in tensors.items()} == {n: t.shape for n, t in expected.items()}
    with safe_open(tmp_path / "new" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # without it version 4 refuses
    wide = {name for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    assert wide == {name for name in tensors if name.endswith(("A_log", "dt_bias", ".D"))}


def test_what_is_written_of_mamba1() -> None:
    values = describe(model_of(Mamba1Config(d_state=4), tie_embeddings=False), "transformers").values
    assert values["model_type"] == "mamba"
    assert values["architectures"] == ["MambaForCausalLM"]
    assert (values["time_step_rank"], values["state_size"], values["tie_word_embeddings"]) == (2, 4, False)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([replace(PLAIN, skip="channel")], ["skip='channel' of blocks[0]"]),
        ([PLAIN, replace(PLAIN, norm_before_gate=True)], ["norm_before_gate=True of blocks[1]"]),
        ([replace(PLAIN, norm="none")], ["norm='none'"]),
        ([replace(PLAIN, d_ssm=40)], ["d_ssm=40 of blocks[0]"]),
        ([replace(PLAIN, norm_eps=1e-6)], ["norm_eps=1e-06 of blocks[0]"]),
        ([replace(PLAIN, norm_groups=2)], ["norm_groups=2"]),
        ([replace(PLAIN, projections="sequential")], ["projections='sequential'"]),
        ([replace(PLAIN, feature_map=())], ["feature_map=()"]),
        ([replace(PLAIN, heads_b=None)], ["head pattern"]),
        ([replace(PLAIN, conv_width=0)], ["conv_width=0"]),
        ([replace(PLAIN, learnable_init_states=True)], ["learnable_init_states=True"]),
        ([PLAIN, replace(PLAIN, dt_limit=(0.0, 1.0))], ["blocks that differ in time_step_limit"]),
        ([PLAIN, replace(PLAIN, heads_b=2, heads_c=2)], ["blocks that differ in n_groups (1, 2)"]),
        ([PLAIN, Mamba1Config()], ["blocks of the kinds mamba1, mamba2"]),
        ([PLAIN, MLPConfig(hidden=128)], ["blocks of the kinds mamba2, mlp"]),
        ([AttentionConfig(heads=4, window=3)], ["blocks of the kinds attention"]),
        ([Mamba1Config(conv_width=0)], ["conv_width=0"]),
        ([replace(PLAIN, skip="channel", norm="none")], ["skip='channel'", "norm='none'"]),
    ],
)
def test_what_cannot_be_written_is_named_before_anything_is_written(
    blocks: list[Any], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="'transformers' cannot hold") as raised:
        save(model_of(*blocks), tmp_path / "new", layout="transformers")
    told(raised.value, *words)
    assert list(tmp_path.iterdir()) == []
