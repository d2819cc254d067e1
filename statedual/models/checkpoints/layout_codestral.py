"""Mistral's own files of Codestral Mamba: params.json for a Mamba-2 of mamba_ssm under other names. Read only."""

from __future__ import annotations

from statedual.models.checkpoints import layout_state_spaces
from statedual.models.checkpoints.config_file import ConfigFile
from statedual.models.checkpoints.geometry import Shapes
from statedual.models.checkpoints.layout import Reading

SPELLING = {
    "d_model": "dim",
    "n_layer": "n_layers",
    "ssm_cfg.ngroups": "n_groups",
    "ssm_cfg.d_state": "d_state",
    "ssm_cfg.headdim": "head_dim",
    "ssm_cfg.expand": "expand",
    "ssm_cfg.conv_bias": "conv_bias",
    "ssm_cfg.bias": "bias",
}
"""A key of mamba_ssm, and what it is called there."""
SAME = ("vocab_size", "rms_norm", "residual_in_fp32", "fused_add_norm", "pad_vocab_size_multiple", "tie_embeddings")


def read(config: ConfigFile, shapes: Shapes) -> Reading:
    """``config`` with dim and n_layers."""
    config.require_known({*SPELLING.values(), *SAME, "model_type"}, "a configuration of Codestral Mamba")
    if config.text("model_type", "mamba") != "mamba":
        raise config.wrong("model_type", "'mamba'; other models of Mistral are not read")
    values = {key: config.values[key] for key in SAME if key in config.values}
    ssm = {"layer": "Mamba2"}
    for key, spelled in SPELLING.items():
        if spelled in config.values:
            section, _, name = key.rpartition(".")
            (ssm if section else values)[name] = config.values[spelled]
    return layout_state_spaces.read(ConfigFile(config.path, {**values, "ssm_cfg": ssm}, spelling=SPELLING), shapes)
