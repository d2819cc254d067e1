"""Mamba2ForCausalLM and MambaForCausalLM of transformers, 4 and 5, and of the files that older converters wrote."""

from __future__ import annotations

import math
from typing import Any

from statedual.layers import Mamba1Config, Mamba2Config
from statedual.models.checkpoints.config_file import ConfigFile
from statedual.models.checkpoints.conflicts import Conflicts
from statedual.models.checkpoints.geometry import Shapes, mamba1_sizes, mamba2_sizes
from statedual.models.checkpoints.keys import TRANSFORMERS, TRANSFORMERS_WITHOUT_EFFECT
from statedual.models.checkpoints.layout import Reading, Writing, refuse
from statedual.models.checkpoints.names import backbone_name
from statedual.models.checkpoints.obstacles import (
    different,
    groups,
    heads,
    mamba1_obstacles,
    mamba2_obstacles,
    varying,
)
from statedual.models.config import BlockConfig, ModelConfig
from statedual.models.language_model import LanguageModel

MODEL_TYPES = ("mamba2", "mamba")


def read(config: ConfigFile, shapes: Shapes) -> Reading:
    """``config`` with the model_type "mamba2" or "mamba"."""
    kind = config.text("model_type")
    if kind not in MODEL_TYPES:
        raise config.wrong("model_type", f"one of {', '.join(map(repr, MODEL_TYPES))}; other families are not read")
    config.require_known(TRANSFORMERS | TRANSFORMERS_WITHOUT_EFFECT, f"a {kind} configuration")
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise config.wrong("hidden_act", "'silu' (or 'swish', its other name)")
    if not config.boolean("rms_norm", True):
        raise config.wrong("rms_norm", "true; other norms are not read")
    conflicts = Conflicts(config)
    rows, d_model = shapes.embedding
    defaults = {"mamba2": (32768, 4096, 64, False), "mamba": (50280, 768, 32, True)}
    vocab_size, hidden_size, layers, tied = defaults[kind]
    model = ModelConfig(
        d_model=conflicts.settle("hidden_size", config.integer("hidden_size", hidden_size, 1), d_model),
        vocab_size=conflicts.settle("vocab_size", config.integer("vocab_size", vocab_size, 1), rows),
        blocks=(_mamba2(config, shapes, conflicts) if kind == "mamba2" else _mamba1(config, shapes, conflicts),)
        * conflicts.settle("num_hidden_layers", config.integer("num_hidden_layers", layers, 1), shapes.layers),
        tie_embeddings=config.boolean("tie_word_embeddings", tied),
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        residual_in_fp32=config.boolean("residual_in_fp32", True),
    )
    return Reading(model, _rename, (*_leftovers(config), *conflicts.remarks()))


def _leftovers(config: ConfigFile) -> list[str]:
    if not config.boolean("norm_before_gate", False):
        return []
    told = "a leftover: transformers gates before the norm whatever it says, and so does this model"
    return [f"{config.path} has norm_before_gate true, {told}"]


def _mamba2(config: ConfigFile, shapes: Shapes, conflicts: Conflicts) -> Mamba2Config:
    sizes = mamba2_sizes(shapes, 0)
    groups, state = conflicts.settle_groups(config, "n_groups", "state_size", (8, 128), sizes.bc)
    conflicts.settle("num_heads", config.integer("num_heads", 128, 1), sizes.heads)
    return Mamba2Config(
        expand=conflicts.settle("expand", config.integer("expand", 2, 1), sizes.expand),
        head_dim=conflicts.settle("head_dim", config.integer("head_dim", 64, 1), sizes.head_dim),
        d_state=state,
        heads_b=groups,
        heads_c=groups,
        conv_width=conflicts.settle("conv_kernel", config.integer("conv_kernel", 4, 1), sizes.conv_width),
        conv_bias=config.boolean("use_conv_bias", True),
        bias=config.boolean("use_bias", False),
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        dt_limit=config.pair("time_step_limit", (0.0, float("inf"))),
        dt_init=(config.number("time_step_min", 1e-3), config.number("time_step_max", 1e-1)),
        dt_floor=config.number("time_step_floor", 1e-4),
    )


def _mamba1(config: ConfigFile, shapes: Shapes, conflicts: Conflicts) -> Mamba1Config:
    sizes = mamba1_sizes(shapes, 0)
    if config.has("time_step_rank") and config.values["time_step_rank"] != "auto":
        conflicts.settle("time_step_rank", config.integer("time_step_rank", least=1), sizes.dt_rank)
    return Mamba1Config(
        expand=conflicts.settle("expand", config.integer("expand", 2, 1), sizes.expand),
        d_state=conflicts.settle("state_size", config.integer("state_size", 16, 1), sizes.d_state),
        dt_rank=sizes.dt_rank,
        conv_width=conflicts.settle("conv_kernel", config.integer("conv_kernel", 4, 1), sizes.conv_width),
        conv_bias=config.boolean("use_conv_bias", True),
        bias=config.boolean("use_bias", False),
        dt_init=(config.number("time_step_min", 1e-3), config.number("time_step_max", 1e-1)),
        dt_floor=config.number("time_step_floor", 1e-4),
    )


def write(model: LanguageModel) -> Writing:
    """Models of Mamba-2 blocks alone, or of Mamba-1 blocks alone."""
    config = model.config
    refuse("transformers", [*_kinds(config), *(o for i in range(len(config.blocks)) for o in _obstacles(config, i))])
    sections = [_section(block, config.d_model) for block in config.blocks]
    refuse("transformers", varying(sections, "blocks"))
    mamba2 = isinstance(config.blocks[0], Mamba2Config)
    values = {
        "model_type": "mamba2" if mamba2 else "mamba",
        "architectures": ["Mamba2ForCausalLM" if mamba2 else "MambaForCausalLM"],
        "dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        "vocab_size": config.padded_vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": len(config.blocks),
        "layer_norm_epsilon": config.norm_eps,
        "residual_in_fp32": config.residual_in_fp32,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **sections[0],
    }
    return Writing(values, lambda name: _rename(name).replace("backbone.embedding.", "backbone.embeddings."))


def _kinds(config: ModelConfig) -> list[str]:
    kinds = sorted({block.kind for block in config.blocks})
    if kinds in (["mamba1"], ["mamba2"]):
        return []
    return [f"blocks of the kinds {', '.join(kinds)}, only mamba2 alone or mamba1 alone"]


def _obstacles(config: ModelConfig, index: int) -> list[str]:
    block, where = config.blocks[index], f"blocks[{index}]"
    if isinstance(block, Mamba1Config):
        return mamba1_obstacles(block, where)
    if not isinstance(block, Mamba2Config):
        return []
    wanted: dict[str, Any] = {"norm": "rms", "norm_before_gate": False, "skip": "head", "norm_eps": config.norm_eps}
    found = [*mamba2_obstacles(block, where, config.d_model), *different(block, where, wanted)]
    if block.d_ssm not in (None, block.expand * config.d_model):
        found.append(f"d_ssm={block.d_ssm} of {where}, fewer channels than expand * d_model")
    return found


def _section(block: BlockConfig, d_model: int) -> dict[str, Any]:
    """The keys that describe a block."""
    assert isinstance(block, Mamba2Config | Mamba1Config)
    section: dict[str, Any] = {
        "expand": block.expand,
        "state_size": block.d_state,
        "conv_kernel": block.conv_width,
        "use_bias": block.bias,
        "use_conv_bias": block.conv_bias,
        "time_step_min": block.dt_init[0],
        "time_step_max": block.dt_init[1],
        "time_step_floor": block.dt_floor,
    }
    if isinstance(block, Mamba1Config):
        return {**section, "time_step_rank": block.dt_rank or math.ceil(d_model / 16)}
    section |= {"num_heads": heads(block, d_model), "head_dim": block.head_dim, "n_groups": groups(block, d_model)}
    if block.dt_limit != (0.0, math.inf):  # its default; infinity has no spelling that versions 4 and 5 share
        section["time_step_limit"] = [{"__float__": "Infinity"} if math.isinf(d) else d for d in block.dt_limit]
    return section


def _rename(name: str) -> str:
    return backbone_name(name, with_mlps=False)
