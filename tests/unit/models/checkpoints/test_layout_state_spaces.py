"""Files of mamba_ssm: what they compute, which keys they may have, what wins, and what is refused; and writing them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import (
    ATTENTION,
    D_MODEL,
    MAMBA2,
    ROWS,
    VOCABULARY,
    difference,
    reference,
    state_spaces_config,
    state_spaces_tensors,
    tokens,
    told,
    write,
)

from statedual.layers import AttentionConfig, LinearAttentionConfig, Mamba1Config, Mamba2Config, MLPConfig
from statedual.models import LanguageModel, ModelConfig
from statedual.models.checkpoints import load, save
from statedual.models.checkpoints.save import describe

BIN = "pytorch_model.bin"
HYBRID: dict[str, Any] = {"n_layer": 3, "attn_layer_idx": [1], "attn_cfg": ATTENTION}
PLAIN = {"causal": True, "num_heads": 4}

CONFIGS: dict[str, dict[str, Any]] = {
    "Mamba-2": {},
    "groups": {"ssm_cfg": {**MAMBA2, "ngroups": 4}},
    "biases": {"ssm_cfg": {**MAMBA2, "bias": True, "conv_bias": False}},
    "untied": {"tie_embeddings": False},
    "D per channel": {"ssm_cfg": {**MAMBA2, "D_has_hdim": True}},
    "gated MLP inside": {"ssm_cfg": {**MAMBA2, "d_ssm": 40}},
    "no norm": {"ssm_cfg": {**MAMBA2, "rmsnorm": False}},
    "no norm, gated MLP inside": {"ssm_cfg": {**MAMBA2, "rmsnorm": False, "d_ssm": 40}},
    "norm before gate": {"ssm_cfg": {**MAMBA2, "norm_before_gate": True, "ngroups": 2}},
    "dt_limit": {"ssm_cfg": {**MAMBA2, "dt_limit": [0.1, 0.4]}},
    "sizes": {"ssm_cfg": {**MAMBA2, "d_conv": 3, "expand": 3, "d_state": 5, "headdim": 16}},
    "class defaults": {"d_model": 64, "ssm_cfg": {"layer": "Mamba2"}},
    "Mamba-1 by default": {"ssm_cfg": {}, "pad_vocab_size_multiple": 8},
    "Mamba-1": {"ssm_cfg": {"layer": "Mamba1", "dt_rank": 3, "d_state": 4, "bias": True, "conv_bias": False}},
    "MLPs": {"d_intermediate": 100},
    "hybrid": HYBRID,
    "hybrid, plain attention": {**HYBRID, "attn_cfg": PLAIN},
    "hybrid, every key": {**HYBRID, "attn_cfg": {**ATTENTION, "rotary_emb_base": 100.0, "softmax_scale": 0.2}},
    "hybrid with MLPs, attention first": {**HYBRID, "attn_layer_idx": [0, 2], "d_intermediate": 128},
    "hybrid of Mamba-1": {**HYBRID, "ssm_cfg": {}},
    "attention alone": {"n_layer": 2, "attn_layer_idx": [0, 1], "attn_cfg": ATTENTION, "d_intermediate": 128},
    "residual": {"residual_in_fp32": False},
}


def example(folder: Path, **changed: Any) -> Path:
    """A checkpoint whose tensors are what its configuration says."""
    config = state_spaces_config(**changed)
    return write(folder, config, state_spaces_tensors(config), BIN)


def refused(folder: Path, tensors_of: dict[str, Any] | None = None, **changed: Any) -> str:
    """The message. Where the keys describe no tensors, they are those of another configuration."""
    described = state_spaces_config(**(changed if tensors_of is None else tensors_of))
    write(folder, state_spaces_config(**changed), state_spaces_tensors(described), BIN)
    with pytest.raises(ValueError, match=r"config\.json") as raised:
        load(folder)
    return str(raised.value)


def overruled(folder: Path, true: dict[str, Any], **claimed: Any) -> tuple[LanguageModel, str]:
    """The model of a file that claims other sizes than its tensors have, and the one warning."""
    write(folder, state_spaces_config(**claimed), state_spaces_tensors(state_spaces_config(**true)), BIN)
    with pytest.warns(UserWarning, match="does not describe its tensors") as caught:
        model = load(folder)
    assert len(caught) == 1
    return model, str(caught[0].message)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_a_plain_model(name: str, tmp_path: Path) -> None:
    config = state_spaces_config(**CONFIGS[name])
    tensors = state_spaces_tensors(config)
    model = load(write(tmp_path, config, tensors, BIN))
    ids = tokens()
    truth = reference(config, tensors, ids)
    with torch.no_grad():
        assert difference(model(ids).logits, truth) < 1e-5
        state = model.init_state(len(ids))
        for time, token in enumerate(ids.T):
            logits, state = model.step(token, state)
            assert difference(logits, truth[:, time]) < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_written_is_what_was_read(name: str, tmp_path: Path) -> None:
    """Keys that have the default of the class may go; others stay, and the tensors are the same bit by bit."""
    config = state_spaces_config(**CONFIGS[name])
    tensors = state_spaces_tensors(config)
    model = load(write(tmp_path / "old", config, tensors, BIN))
    save(model, tmp_path / "new", layout="state-spaces")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"config.json", BIN}
    written = torch.load(tmp_path / "new" / BIN, weights_only=True)
    assert set(written) == set(tensors)
    for key, tensor in tensors.items():
        assert torch.equal(written[key], tensor), key
    values = json.loads((tmp_path / "new" / "config.json").read_text())
    assert set(values) == set(config)
    for key in set(config) - {"ssm_cfg", "attn_cfg", "d_intermediate"}:
        assert values[key] == config[key], key
    assert values["d_intermediate"] == -(-config["d_intermediate"] // 128) * 128
    if len(config["attn_layer_idx"]) < config["n_layer"]:
        assert {"layer": "Mamba1"} | config["ssm_cfg"] | values["ssm_cfg"] == values["ssm_cfg"]
    assert config["attn_cfg"] | values["attn_cfg"] == values["attn_cfg"]
    assert load(tmp_path / "new").config == model.config


def test_a_released_configuration_is_written_as_it_was() -> None:
    released = state_spaces_config(d_model=64, ssm_cfg={"layer": "Mamba2"})
    model = LanguageModel(
        ModelConfig(d_model=64, vocab_size=VOCABULARY, blocks=(Mamba2Config(),) * 2, pad_vocab_size_multiple=16)
    )
    assert describe(model, "state-spaces").values == released


@pytest.mark.parametrize("layer", ["Mamba1", "Mamba2"])
def test_ranges_of_initial_values_stay(layer: str, tmp_path: Path) -> None:
    ranges = {"dt_min": 0.01, "dt_max": 0.2, "dt_init_floor": 0.002}
    ranges |= {"A_init_range": [2.0, 3.0]} if layer == "Mamba2" else {}
    model = load(example(tmp_path, ssm_cfg={"layer": layer, "d_state": 8, "expand": 4, **ranges}))
    block = model.config.blocks[0]
    assert isinstance(block, Mamba1Config | Mamba2Config)
    assert (block.dt_init, block.dt_floor) == ((0.01, 0.2), 0.002)
    assert isinstance(block, Mamba1Config) or block.A_init == (2.0, 3.0)
    assert describe(model, "state-spaces").values["ssm_cfg"].items() >= ranges.items()


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    model = load(example(tmp_path / "old"))
    save(model, tmp_path / "new", layout="state-spaces")
    written = torch.load(tmp_path / "new" / BIN, weights_only=True)
    assert written["lm_head.weight"].data_ptr() == written["backbone.embedding.weight"].data_ptr()


def test_the_vocabulary_keeps_its_size_beside_the_padding(tmp_path: Path) -> None:
    config = load(example(tmp_path)).config
    assert (config.vocab_size, config.padded_vocab_size) == (VOCABULARY, ROWS)


@pytest.mark.parametrize(
    ("claimed", "words"),
    [
        ({"d_model": 4096}, ["d_model is 4096", D_MODEL]),
        ({"n_layer": 64}, ["n_layer is 64", "2"]),
        ({"pad_vocab_size_multiple": 8}, ["pad_vocab_size_multiple is 8", "16"]),
        ({"vocab_size": 200}, ["vocab_size is 200", ROWS]),
        ({"ssm_cfg": {"layer": "Mamba2", "d_state": 8}}, ["ssm_cfg.headdim is 64", "8"]),
        ({"ssm_cfg": {**MAMBA2, "headdim": 4}}, ["ssm_cfg.headdim is 4", "8"]),
        ({"ssm_cfg": {**MAMBA2, "expand": 4}}, ["ssm_cfg.expand is 4", "2"]),
        ({"ssm_cfg": {**MAMBA2, "d_conv": 2}}, ["ssm_cfg.d_conv is 2", "4"]),
        ({"ssm_cfg": {**MAMBA2, "d_ssm": 8}}, ["ssm_cfg.d_ssm is 8", "64"]),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 8}}, ["ssm_cfg.d_state is 128", "8"]),
    ],
)
def test_tensors_win(claimed: dict[str, Any], words: list[Any], tmp_path: Path) -> None:
    model, message = overruled(tmp_path / "claimed", {}, **claimed)
    told(message, tmp_path / "claimed" / "config.json", *words)
    assert message.count(" is ") == 1
    true = load(example(tmp_path / "true"))
    assert model.config.padded_vocab_size == ROWS
    assert model.config.blocks == true.config.blocks
    assert model.config.d_model == D_MODEL


def test_one_warning_has_all_of_it(tmp_path: Path) -> None:
    _, message = overruled(tmp_path, {}, d_model=8, n_layer=3, ssm_cfg={**MAMBA2, "headdim": 16})
    told(message, "d_model is 8", "n_layer is 3", "ssm_cfg.headdim is 16")


@pytest.mark.parametrize(
    ("ssm_cfg", "groups", "state"),
    [
        ({**MAMBA2, "ngroups": 2}, 2, 4),  # both are there: groups count more
        ({"layer": "Mamba2", "headdim": 8, "ngroups": 2}, 2, 4),
        ({"layer": "Mamba2", "headdim": 8, "d_state": 4}, 2, 4),  # what is there counts more than a default
        ({"layer": "Mamba2", "headdim": 8, "d_state": 3}, 1, 8),
        ({**MAMBA2, "ngroups": 3, "d_state": 2}, 4, 2),  # 8 = 3 * state has no solution
    ],
)
def test_groups_and_state_of_which_tensors_tell_the_product(
    ssm_cfg: dict[str, Any], groups: int, state: int, tmp_path: Path
) -> None:
    model, _ = overruled(tmp_path, {}, ssm_cfg=ssm_cfg)
    block = model.config.blocks[0]
    assert isinstance(block, Mamba2Config)
    assert (block.heads_b, block.heads_c, block.d_state) == (groups, groups, state)


def test_groups_that_fit_no_state_are_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, {}, ssm_cfg={**MAMBA2, "ngroups": 3, "d_state": 5})
    told(message, "ssm_cfg.ngroups is 3", "divisor of 8")


def test_mamba1_tensors_win(tmp_path: Path) -> None:
    claimed = {"layer": "Mamba1", "d_state": 8, "dt_rank": 5, "expand": 1, "d_conv": 2}
    model, message = overruled(tmp_path, {"ssm_cfg": {}}, ssm_cfg=claimed)
    told(message, "ssm_cfg.dt_rank is 5", "ssm_cfg.d_state is 8", "ssm_cfg.expand is 1", "ssm_cfg.d_conv is 2")
    assert model.config.blocks == (Mamba1Config(dt_rank=2),) * 2


def test_attention_tensors_win(tmp_path: Path) -> None:
    claimed = {**HYBRID, "attn_cfg": {**ATTENTION, "head_dim": 64, "num_heads_kv": 6, "d_conv": 2}, "d_intermediate": 9}
    model, message = overruled(tmp_path, {**HYBRID, "d_intermediate": 200}, **claimed)
    told(message, "attn_cfg.head_dim is 64", "attn_cfg.num_heads_kv is 6", "attn_cfg.d_conv is 2", "d_intermediate is")
    assert model.config.blocks[2] == AttentionConfig(heads=6, kv_heads=2, head_dim=8, rotary_dim=4, conv_width=4)
    assert model.config.blocks[3] == MLPConfig(hidden=256)


def test_keys_of_transformers_beside_them_say_nothing(tmp_path: Path) -> None:
    """As in files that a program has completed with its own defaults."""
    config = state_spaces_config() | {"model_type": "mamba2", "hidden_size": 4096, "n_groups": 8, "chunk_size": 256}
    tensors = state_spaces_tensors(config)
    model, ids = load(write(tmp_path, config, tensors, BIN)), tokens()
    with torch.no_grad():
        assert difference(model(ids).logits, reference(config, tensors, ids)) < 1e-5


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"d_modle": 32}, ["'d_modle'", "did you mean 'd_model'"]),
        ({"dropout": 0.1}, ["'dropout'"]),
        ({"rms_norm": False}, ["rms_norm is False", "LayerNorm"]),
        ({"n_layer": "2"}, ["n_layer is '2'", "integer"]),
        ({"n_layer": True}, ["n_layer is True", "integer"]),
        ({"residual_in_fp32": 1}, ["residual_in_fp32 is 1", "true or false"]),
        ({"ssm_cfg": [1]}, ["ssm_cfg is [1]", "object"]),
        ({"ssm_cfg": {"layer": "Mamba3"}}, ["ssm_cfg.layer is 'Mamba3'", "'Mamba2'"]),
        ({"ssm_cfg": {**MAMBA2, "d_sate": 8}}, ["'ssm_cfg.d_sate'", "did you mean 'd_state'"]),
        ({"ssm_cfg": {**MAMBA2, "dt_rank": 8}}, ["'ssm_cfg.dt_rank'"]),
        ({"ssm_cfg": {**MAMBA2, "dt_limit": [0]}}, ["ssm_cfg.dt_limit is [0]", "two numbers"]),
        ({"ssm_cfg": {**MAMBA2, "dt_limit": [2.0, 1.0]}}, ["dt_limit is (2.0, 1.0)"]),
        ({"ssm_cfg": {**MAMBA2, "dt_min": math.nan}}, ["ssm_cfg.dt_min is nan", "number"]),
        ({**HYBRID, "attn_layer_idx": [7]}, ["attn_layer_idx is [7]", "3 layers"]),
        ({**HYBRID, "attn_layer_idx": ["1"]}, ["attn_layer_idx is ['1']", "list of indices"]),
        ({**HYBRID, "attn_cfg": {**ATTENTION, "causal": False}}, ["attn_cfg.causal is False"]),
        ({**HYBRID, "attn_cfg": {"num_heads": 4}}, ["attn_cfg.causal is None", "true"]),
        ({**HYBRID, "attn_cfg": {**ATTENTION, "mlp_dim": 256}}, ["attn_cfg.mlp_dim is 256"]),
        ({**HYBRID, "attn_cfg": {**ATTENTION, "rotary_emb_interleaved": True}}, ["rotary_emb_interleaved is True"]),
        ({**HYBRID, "attn_cfg": {**ATTENTION, "window": 3}}, ["'attn_cfg.window'"]),
        ({**HYBRID, "attn_cfg": {**ATTENTION, "rotary_emb_dim": 3}}, ["rotary_dim is 3"]),
    ],
)
def test_what_cannot_be_read_is_named(changed: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    sizes = HYBRID if "attn_cfg" in changed else {}
    told(refused(tmp_path, sizes, **changed), tmp_path / "config.json", *words)


def test_heads_that_do_not_divide_the_attention_are_refused(tmp_path: Path) -> None:
    changed = {**HYBRID, "attn_cfg": {**ATTENTION, "num_heads": 5}}
    write(tmp_path, state_spaces_config(**changed), state_spaces_tensors(state_spaces_config(**HYBRID)), BIN)
    with pytest.raises(ValueError, match=r"backbone\.layers\.1\.mixer\..*attn_cfg\.num_heads 5"):
        load(tmp_path)


PLAIN_MAMBA2 = Mamba2Config(d_state=8, head_dim=8)
PLAIN_ATTENTION = AttentionConfig(heads=4)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([replace(PLAIN_MAMBA2, projections="sequential")], ["projections='sequential' of blocks[0]"]),
        ([PLAIN_MAMBA2, replace(PLAIN_MAMBA2, feature_map=("elu",))], ["feature_map=('elu',) of blocks[1]"]),
        ([replace(PLAIN_MAMBA2, feature_map_x=())], ["feature_map_x=()"]),
        ([replace(PLAIN_MAMBA2, feature_map=("elu",), normaliser=True)], ["normaliser=True"]),
        ([replace(PLAIN_MAMBA2, learnable_init_states=True)], ["learnable_init_states=True"]),
        ([replace(PLAIN_MAMBA2, conv_width=0)], ["conv_width=0"]),
        ([replace(PLAIN_MAMBA2, heads_x=1)], ["head pattern heads_x=1, heads_b=1, heads_c=1"]),
        ([replace(PLAIN_MAMBA2, heads_c=2)], ["head pattern", "heads_c=2"]),
        ([replace(PLAIN_MAMBA2, norm_groups=2)], ["norm_groups=2"]),
        ([replace(PLAIN_MAMBA2, norm_eps=1e-6)], ["norm_eps=1e-06 of blocks[0]"]),
        ([PLAIN_MAMBA2, replace(PLAIN_MAMBA2, bias=True)], ["differ in bias (None, True)"]),
        ([PLAIN_MAMBA2, Mamba1Config()], ["mamba1 beside mamba2"]),
        ([Mamba1Config(conv_width=0)], ["conv_width=0 of blocks[0]"]),
        ([replace(PLAIN_ATTENTION, window=4)], ["window=4 of blocks[0]"]),
        ([replace(PLAIN_ATTENTION, conv_width=4, conv_bias=False)], ["conv_bias=False of blocks[0]"]),
        ([PLAIN_ATTENTION, AttentionConfig(heads=2)], ["attention blocks that differ in head_dim"]),
        ([PLAIN_MAMBA2, MLPConfig(hidden=100)], ["hidden=100 of blocks[1]", "128"]),
        ([PLAIN_MAMBA2, MLPConfig(hidden=128, bias=True)], ["bias=True of blocks[1]"]),
        ([PLAIN_MAMBA2, MLPConfig(hidden=128), PLAIN_MAMBA2, MLPConfig(hidden=256)], ["MLPs that differ in hidden"]),
        ([MLPConfig(hidden=128), PLAIN_MAMBA2], ["MLPs at blocks[0]", "behind every mixer"]),
        ([PLAIN_MAMBA2, MLPConfig(hidden=128), PLAIN_MAMBA2], ["MLPs at blocks[1]"]),
        ([LinearAttentionConfig(heads=4), PLAIN_MAMBA2], ["linear_attention (blocks[0])"]),
    ],
)
def test_what_cannot_be_written_is_named_before_anything_is_written(
    blocks: list[Any], words: list[str], tmp_path: Path
) -> None:
    model = LanguageModel(ModelConfig(d_model=D_MODEL, vocab_size=VOCABULARY, blocks=tuple(blocks)))
    with pytest.raises(ValueError, match="'state-spaces' cannot hold") as raised:
        save(model, tmp_path / "new", layout="state-spaces")
    told(raised.value, *words, "layout='statedual'")
    assert list(tmp_path.iterdir()) == []


def test_another_eps_cannot_be_written(tmp_path: Path) -> None:
    model = LanguageModel(ModelConfig(d_model=D_MODEL, vocab_size=9, blocks=(PLAIN_MAMBA2,), norm_eps=1e-6))
    with pytest.raises(ValueError, match=r"norm_eps=1e-06, which is 1e-05 there"):
        save(model, tmp_path / "new", layout="state-spaces")


def test_options_without_effect_do_not_stand_in_the_way(tmp_path: Path) -> None:
    """No norm has no eps and no groups, and one B for every head is as many groups as heads."""
    blocks = (
        replace(PLAIN_MAMBA2, norm="none", norm_eps=1e-6, norm_groups=2),
        replace(PLAIN_MAMBA2, heads_b=None, heads_c=8),
    )
    for block in blocks:
        model = LanguageModel(ModelConfig(d_model=D_MODEL, vocab_size=9, blocks=(block,))).eval()
        save(model, tmp_path / str(block.norm), layout="state-spaces")
        ids = torch.randint(9, (1, 5))
        with torch.no_grad():
            assert difference(load(tmp_path / str(block.norm))(ids).logits, model(ids).logits) < 1e-6
