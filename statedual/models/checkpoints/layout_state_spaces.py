"""MambaLMHeadModel of mamba_ssm: Mamba-1, Mamba-2, hybrids with attention, and an MLP behind every mixer or none.

What config.json leaves out has the default of the class in mamba_ssm, which are the released models' sizes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from statedual.layers import AttentionConfig, Mamba1Config, Mamba2Config, MLPConfig
from statedual.models.checkpoints.config_file import ConfigFile
from statedual.models.checkpoints.conflicts import Conflicts
from statedual.models.checkpoints.geometry import Shapes, mamba1_sizes, mamba2_sizes
from statedual.models.checkpoints.keys import (
    STATE_SPACES,
    STATE_SPACES_ATTENTION,
    STATE_SPACES_MAMBA1,
    STATE_SPACES_MAMBA2,
    TRANSFORMERS,
    TRANSFORMERS_WITHOUT_EFFECT,
)
from statedual.models.checkpoints.layout import Reading, Writing, refuse
from statedual.models.checkpoints.names import backbone_name
from statedual.models.checkpoints.obstacles import (
    attention_obstacles,
    different,
    groups,
    mamba1_obstacles,
    mamba2_obstacles,
    mlp_obstacles,
    varying,
)
from statedual.models.checkpoints.vocabulary import vocabulary
from statedual.models.config import BlockConfig, ModelConfig
from statedual.models.language_model import LanguageModel

NORM_EPS = 1e-5
"""Not a key: it is a constant there."""
MLP_MULTIPLE = 128
"""d_intermediate is rounded up to it."""


def read(config: ConfigFile, shapes: Shapes) -> Reading:
    """``config`` with the keys of ``MambaConfig``. (Keys of transformers beside them, which some have, say nothing.)"""
    config.require_known(STATE_SPACES | TRANSFORMERS | TRANSFORMERS_WITHOUT_EFFECT, "a configuration of mamba_ssm")
    if not config.boolean("rms_norm", True):
        raise config.wrong("rms_norm", "true; models with LayerNorm are not read")
    conflicts = Conflicts(config)
    rows, d_model = shapes.embedding
    layers = _settle(config, conflicts, "n_layer", 64, shapes.layers)
    attention = set(config.integers("attn_layer_idx"))
    if attention - set(range(layers)):
        raise config.wrong("attn_layer_idx", f"indices below the {layers} layers of the tensors")
    # One description for all blocks of a kind, from the first of them: the others must have its shapes.
    mixers: list[BlockConfig] = []
    ssm_layer = next((layer for layer in range(layers) if layer not in attention), None)
    ssm = None if ssm_layer is None else _ssm(config.section("ssm_cfg"), shapes, conflicts, ssm_layer)
    attended = _attention(config.section("attn_cfg"), shapes, conflicts, min(attention)) if attention else None
    for layer in range(layers):
        mixer = attended if layer in attention else ssm
        assert mixer is not None
        mixers.append(mixer)
    mlp = _mlp(config, shapes, conflicts)
    vocab_size, multiple = vocabulary(config, conflicts, rows)
    model = ModelConfig(
        d_model=_settle(config, conflicts, "d_model", 2560, d_model),
        vocab_size=vocab_size,
        blocks=tuple(mixers) if mlp is None else tuple(block for mixer in mixers for block in (mixer, mlp)),
        pad_vocab_size_multiple=multiple,
        tie_embeddings=config.boolean("tie_embeddings", True),
        norm_eps=NORM_EPS,
        residual_in_fp32=config.boolean("residual_in_fp32", True),
    )
    return Reading(model, partial(backbone_name, with_mlps=mlp is not None), conflicts.remarks())


def _ssm(section: ConfigFile, shapes: Shapes, conflicts: Conflicts, layer: int) -> BlockConfig:
    kind = section.text("layer", "Mamba1")
    if kind == "Mamba1":
        return _mamba1(section, shapes, conflicts, layer)
    if kind == "Mamba2":
        return _mamba2(section, shapes, conflicts, layer)
    raise section.wrong("layer", "'Mamba1' (if absent) or 'Mamba2'; other layers are not read")


def _mamba2(section: ConfigFile, shapes: Shapes, conflicts: Conflicts, layer: int) -> Mamba2Config:
    section.require_known(STATE_SPACES_MAMBA2, "Mamba2 of mamba_ssm")
    settle = partial(_settle, section, conflicts)
    sizes = mamba2_sizes(shapes, layer)
    groups, state = conflicts.settle_groups(section, "ngroups", "d_state", (1, 128), sizes.bc)
    inner = sizes.expand * shapes.embedding[1]
    d_ssm = settle("d_ssm", inner, sizes.d_ssm)
    return Mamba2Config(
        expand=settle("expand", 2, sizes.expand),
        head_dim=settle("headdim", 64, sizes.head_dim),
        d_ssm=None if d_ssm == inner else d_ssm,
        d_state=state,
        heads_b=groups,
        heads_c=groups,
        conv_width=settle("d_conv", 4, sizes.conv_width),
        conv_bias=section.boolean("conv_bias", True),
        bias=section.boolean("bias", False),
        norm="rms" if section.boolean("rmsnorm", True) else "none",
        norm_before_gate=section.boolean("norm_before_gate", False),
        norm_eps=NORM_EPS,
        skip="channel" if section.boolean("D_has_hdim", False) else "head",
        dt_limit=section.pair("dt_limit", (0.0, math.inf)),
        dt_init=(section.number("dt_min", 1e-3), section.number("dt_max", 1e-1)),
        dt_floor=section.number("dt_init_floor", 1e-4),
        A_init=section.pair("A_init_range", (1.0, 16.0)),
    )


def _mamba1(section: ConfigFile, shapes: Shapes, conflicts: Conflicts, layer: int) -> Mamba1Config:
    section.require_known(STATE_SPACES_MAMBA1, "Mamba of mamba_ssm")
    settle = partial(_settle, section, conflicts)
    sizes = mamba1_sizes(shapes, layer)
    if section.values.get("dt_rank") != "auto":
        settle("dt_rank", math.ceil(shapes.embedding[1] / 16), sizes.dt_rank)
    return Mamba1Config(
        expand=settle("expand", 2, sizes.expand),
        d_state=settle("d_state", 16, sizes.d_state),
        dt_rank=sizes.dt_rank,
        conv_width=settle("d_conv", 4, sizes.conv_width),
        conv_bias=section.boolean("conv_bias", True),
        bias=section.boolean("bias", False),
        dt_init=(section.number("dt_min", 1e-3), section.number("dt_max", 1e-1)),
        dt_floor=section.number("dt_init_floor", 1e-4),
    )


def _attention(section: ConfigFile, shapes: Shapes, conflicts: Conflicts, layer: int) -> AttentionConfig:
    """The queries are as wide as out_proj; what in_proj has beyond them is half keys, half values."""
    section.require_known(STATE_SPACES_ATTENTION, "MHA of mamba_ssm")
    settle = partial(_settle, section, conflicts)
    if not section.boolean("causal", False):
        raise section.wrong("causal", "true; attention that sees the future is no language model")
    if section.integer("mlp_dim", 0):
        raise section.wrong("mlp_dim", "0; an MLP inside the attention is not read")
    if section.boolean("rotary_emb_interleaved", False):
        raise section.wrong("rotary_emb_interleaved", "false; pairs of neighbours are not read")
    prefix = f"backbone.layers.{layer}.mixer."
    rows, d_model = shapes.of(f"{prefix}in_proj.weight", 2)
    queries = shapes.of(f"{prefix}out_proj.weight", 2)[1]
    heads = section.integer("num_heads", least=1)
    head_dim, left = divmod(queries, heads)
    kv_heads, half = divmod(rows - queries, 2 * head_dim) if head_dim else (0, 0)
    if left or half or kv_heads < 1:
        told = f"in_proj has {rows} rows, out_proj {queries} columns, for {section.spelled('num_heads')} {heads}"
        raise shapes.wrong(prefix, told)
    conv_width = section.integer("d_conv", 0)
    if conv_width:
        conv_width = settle("d_conv", 0, shapes.of(f"{prefix}conv1d.weight", 3)[2])
    default_dim = d_model // heads if d_model % heads == 0 else head_dim
    return AttentionConfig(
        heads=heads,
        kv_heads=settle("num_heads_kv", heads, kv_heads),
        head_dim=settle("head_dim", default_dim, head_dim),
        rotary_dim=section.integer("rotary_emb_dim", 0),
        rotary_base=section.number("rotary_emb_base", 10000.0),
        conv_width=conv_width,
        qkv_bias=section.boolean("qkv_proj_bias", True),
        out_bias=section.boolean("out_proj_bias", True),
        scale=section.number("softmax_scale") if section.has("softmax_scale") else None,
    )


def _mlp(config: ConfigFile, shapes: Shapes, conflicts: Conflicts) -> MLPConfig | None:
    asked = config.integer("d_intermediate", 0)
    if not asked:
        return None
    hidden = shapes.of("backbone.layers.0.mlp.fc2.weight", 2)[1]
    conflicts.settle("d_intermediate", math.ceil(asked / MLP_MULTIPLE) * MLP_MULTIPLE, hidden)
    return MLPConfig(hidden=hidden)


def _settle(section: ConfigFile, conflicts: Conflicts, key: str, default: int, tensors: int) -> int:
    return conflicts.settle(section.spelled(key), section.integer(key, default, 1), tensors)


def write(model: LanguageModel) -> Writing:
    """Mixers of mamba_ssm, with an MLP behind every one of them or none."""
    config = model.config
    with_mlps = any(isinstance(block, MLPConfig) for block in config.blocks)
    refuse("state-spaces", [*_arrangement(config), *_obstacles(config)])
    mixers = config.blocks[::2] if with_mlps else config.blocks
    ssm = [_ssm_section(block, config.d_model) for block in mixers if not isinstance(block, AttentionConfig)]
    attention = [_attention_section(block, config.d_model) for block in mixers if isinstance(block, AttentionConfig)]
    hidden = [{"hidden": _hidden(b, config.d_model)} for b in config.blocks if isinstance(b, MLPConfig)]
    refuse(
        "state-spaces",
        varying(ssm, "Mamba blocks") + varying(attention, "attention blocks") + varying(hidden, "MLPs"),
    )
    values = {
        "d_model": config.d_model,
        "d_intermediate": hidden[0]["hidden"] if hidden else 0,
        "n_layer": len(mixers),
        "vocab_size": config.vocab_size,
        "ssm_cfg": ssm[0] if ssm else {},
        "attn_layer_idx": [index for index, block in enumerate(mixers) if isinstance(block, AttentionConfig)],
        "attn_cfg": attention[0] if attention else {},
        "rms_norm": True,
        "residual_in_fp32": config.residual_in_fp32,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": config.pad_vocab_size_multiple,
        "tie_embeddings": config.tie_embeddings,
    }
    return Writing(values, partial(backbone_name, with_mlps=with_mlps), pickled=True)


def _arrangement(config: ModelConfig) -> list[str]:
    found = [] if config.norm_eps == NORM_EPS else [f"norm_eps={config.norm_eps}, which is {NORM_EPS} there"]
    kinds = [block.kind for block in config.blocks]
    known = ("mamba2", "mamba1", "attention", "mlp")
    found += [f"{kind} (blocks[{index}])" for index, kind in enumerate(kinds) if kind not in known]
    if "mamba1" in kinds and "mamba2" in kinds:
        found.append("mamba1 beside mamba2")
    mlps = [index for index, kind in enumerate(kinds) if kind == "mlp"]
    if mlps and (len(kinds) % 2 or mlps != list(range(1, len(kinds), 2))):
        found.append(f"MLPs at {', '.join(f'blocks[{index}]' for index in mlps)}, only one behind every mixer or none")
    return found


def _obstacles(config: ModelConfig) -> list[str]:
    found = []
    for index, block in enumerate(config.blocks):
        where = f"blocks[{index}]"
        if isinstance(block, Mamba2Config):
            found += mamba2_obstacles(block, where, config.d_model)
            if block.norm != "none":
                found += different(block, where, {"norm_eps": NORM_EPS})
        elif isinstance(block, Mamba1Config):
            found += mamba1_obstacles(block, where)
        elif isinstance(block, AttentionConfig):
            found += attention_obstacles(block, where)
        elif isinstance(block, MLPConfig):
            found += mlp_obstacles(block, where, _hidden(block, config.d_model))
    return found


def _ssm_section(block: BlockConfig, d_model: int) -> dict[str, Any]:
    """What differs from the defaults of the class, as the released files have it."""
    assert isinstance(block, Mamba2Config | Mamba1Config)
    section: dict[str, Any] = {
        "expand": (block.expand, 2),
        "d_conv": (block.conv_width, 4),
        "conv_bias": (block.conv_bias, True),
        "bias": (block.bias, False),
        "dt_min": (block.dt_init[0], 1e-3),
        "dt_max": (block.dt_init[1], 1e-1),
        "dt_init_floor": (block.dt_floor, 1e-4),
    }
    if isinstance(block, Mamba1Config):
        default = math.ceil(d_model / 16)
        section |= {"d_state": (block.d_state, 16), "dt_rank": (block.dt_rank or default, default)}
    else:
        section |= {
            "d_state": (block.d_state, 128),
            "headdim": (block.head_dim, 64),
            "d_ssm": (block.d_ssm or block.expand * d_model, block.expand * d_model),
            "ngroups": (groups(block, d_model), 1),
            "D_has_hdim": (block.skip == "channel", False),
            "rmsnorm": (block.norm == "rms", True),
            "norm_before_gate": (block.norm_before_gate, False),
            "dt_limit": (list(block.dt_limit), [0.0, math.inf]),
            "A_init_range": (list(block.A_init), [1.0, 16.0]),
        }
    layer = "Mamba2" if isinstance(block, Mamba2Config) else "Mamba1"
    return {"layer": layer, **{key: value for key, (value, default) in section.items() if value != default}}


def _attention_section(block: AttentionConfig, d_model: int) -> dict[str, Any]:
    head_dim = block.head_dim or d_model // block.heads
    section = {
        "causal": True,
        "d_conv": block.conv_width,
        "head_dim": head_dim,
        "num_heads": block.heads,
        "num_heads_kv": block.kv_heads or block.heads,
        "out_proj_bias": block.out_bias,
        "qkv_proj_bias": block.qkv_bias,
        "rotary_emb_base": block.rotary_base,
        "rotary_emb_dim": head_dim if block.rotary_dim is None else block.rotary_dim,
    }
    return section if block.scale is None else {**section, "softmax_scale": block.scale}


def _hidden(block: MLPConfig, d_model: int) -> int:
    """As the block rounds it if it is not given."""
    return block.build(d_model).fc2.in_features
