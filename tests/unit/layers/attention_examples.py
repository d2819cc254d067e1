"""Softmax attention in every option, and what it is: a softmax over a dense matrix."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from statedual.layers import Attention, AttentionConfig

D_MODEL, TIME = 16, 37

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "one_kv_head": {"kv_heads": 1, "head_dim": 6},
    "no_rotation": {"rotary_dim": 0},
    "some_rotation": {"head_dim": 6, "rotary_dim": 4, "rotary_base": 100.0},
    "convolution": {"conv_width": 4},
    "convolution_of_one": {"conv_width": 1, "conv_bias": False},
    "grouped_convolution": {"kv_heads": 2, "conv_width": 3, "rotary_dim": 2},
    "biases": {"qkv_bias": True, "out_bias": True, "scale": 0.3},
    "window_of_one": {"window": 1},
    "window": {"window": 5},
    "window_as_long": {"window": TIME},
    "window_longer": {"window": 50},
    "everything": {
        "kv_heads": 2, "head_dim": 6, "rotary_dim": 4, "window": 7, "conv_width": 4, "qkv_bias": True, "scale": 0.7
    },
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES)


def block(case: str, dtype: torch.dtype = torch.float64) -> Attention:
    return AttentionConfig(heads=4, **CASES[case]).build(D_MODEL).to(dtype)


def tokens(rows: int, time: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return 2 * torch.randn(rows, time, D_MODEL, dtype=dtype)


def turned(x: Tensor, rotary_dim: int, base: float) -> Tensor:
    """x (time, head_dim) with the halves of its first ``rotary_dim`` numbers as real and imaginary parts, turned."""
    half = rotary_dim // 2
    frequency = base ** (-torch.arange(half, dtype=x.dtype) / max(half, 1))
    angle = torch.arange(len(x), dtype=x.dtype)[:, None] * frequency
    pairs = torch.complex(x[:, :half], x[:, half:rotary_dim]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pairs.real, pairs.imag, x[:, rotary_dim:]], -1)


def dense(module: Attention, u: Tensor) -> Tensor:
    """One whole sequence u (time, model): an explicit softmax under an explicit mask, head by head."""
    config, time = module.config, len(u)
    head_dim = config.head_dim or D_MODEL // config.heads
    kv_heads = config.kv_heads or config.heads
    qkv = u @ module.in_proj.weight.T + (module.in_proj.bias if config.qkv_bias else 0)
    if config.conv_width:
        taps = module.conv1d.weight[:, 0]
        past = torch.cat([qkv.new_zeros(config.conv_width - 1, qkv.shape[1]), qkv])
        qkv = sum(past[j : j + time] * taps[:, j] for j in range(config.conv_width))
        qkv = qkv + (module.conv1d.bias if config.conv_bias else 0)
    q, k, v = (
        part.unflatten(1, (-1, head_dim)).unbind(1)
        for part in qkv.split([config.heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
    )
    rotary_dim = head_dim if config.rotary_dim is None else config.rotary_dim
    distance = torch.arange(time)[:, None] - torch.arange(time)
    hidden = (distance < 0) | (distance >= (config.window or math.inf))
    heads = []
    for i in range(config.heads):
        group = i * kv_heads // config.heads
        one_q, one_k = (turned(t, rotary_dim, config.rotary_base) for t in (q[i], k[group]))
        scores = one_q @ one_k.T * (config.scale or 1 / math.sqrt(head_dim))
        heads.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ v[group])
    return torch.cat(heads, 1) @ module.out_proj.weight.T + (module.out_proj.bias if config.out_bias else 0)


def dense_rows(module: Attention, u: Tensor) -> Tensor:
    return torch.stack([dense(module, row) for row in u])
