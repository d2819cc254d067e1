"""What of our blocks the foreign layouts cannot hold, each named with its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statedual.layers import AttentionConfig, Mamba1Config, Mamba2Config, MLPConfig
from statedual.models.config import BlockConfig


def different(block: BlockConfig, where: str, wanted: Mapping[str, Any]) -> list[str]:
    """Fields that are not what is ``wanted``."""
    return [
        f"{name}={getattr(block, name)!r} of {where}" for name, value in wanted.items() if getattr(block, name) != value
    ]


def groups(block: Mamba2Config, d_model: int) -> int:
    """How many B and C there are: G, one for every head if None."""
    return block.heads_b or heads(block, d_model)


def heads(block: Mamba2Config, d_model: int) -> int:
    """H = d_ssm / head_dim."""
    return (block.d_ssm or block.expand * d_model) // block.head_dim


def mamba2_obstacles(block: Mamba2Config, where: str, d_model: int) -> list[str]:
    """What neither mamba_ssm nor transformers has."""
    found = different(
        block,
        where,
        {
            "projections": "parallel",
            "feature_map": ("swish",),
            "feature_map_x": ("swish",),
            "normaliser": False,
            "learnable_init_states": False,
        },
    )
    if block.conv_width == 0:
        found.append(f"conv_width=0 of {where}")
    every = heads(block, d_model)
    if (block.heads_x or every) != every or groups(block, d_model) != (block.heads_c or every):
        pattern = f"heads_x={block.heads_x}, heads_b={block.heads_b}, heads_c={block.heads_c}"
        found.append(f"the head pattern {pattern} of {where}")
    if block.norm != "none" and (block.norm_groups or groups(block, d_model)) != groups(block, d_model):
        found.append(f"norm_groups={block.norm_groups} of {where}")
    return found


def mamba1_obstacles(block: Mamba1Config, where: str) -> list[str]:
    """What neither has."""
    return [f"conv_width=0 of {where}"] if block.conv_width == 0 else []


def attention_obstacles(block: AttentionConfig, where: str) -> list[str]:
    """What mamba_ssm does not have. (transformers has no attention in these models.)"""
    found = different(block, where, {"window": None})
    if block.conv_width:
        found += different(block, where, {"conv_bias": True})
    return found


def mlp_obstacles(block: MLPConfig, where: str, hidden: int) -> list[str]:
    """What mamba_ssm does not have: it rounds the hidden width up to a multiple of 128."""
    found = different(block, where, {"bias": False})
    if hidden % 128:
        found.append(f"hidden={hidden} of {where}, no multiple of 128")
    return found


def varying(sections: Sequence[Mapping[str, Any]], what: str) -> list[str]:
    """Keys of which a layout has one value for all blocks, and the blocks have several."""
    found = []
    for key in dict.fromkeys(key for section in sections for key in section):
        values = list(dict.fromkeys(repr(section.get(key)) for section in sections))
        if len(values) > 1:
            found.append(f"{what} that differ in {key} ({', '.join(values)})")
    return found
