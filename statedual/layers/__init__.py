"""Section 7: the blocks of which models are made, each with its configuration and its state."""

from statedual.layers.attention import Attention as Attention
from statedual.layers.attention import AttentionConfig as AttentionConfig
from statedual.layers.attention import AttentionState as AttentionState
from statedual.layers.attention import WindowState as WindowState
from statedual.layers.linear_attention import LinearAttention as LinearAttention
from statedual.layers.linear_attention import LinearAttentionConfig as LinearAttentionConfig
from statedual.layers.linear_attention import LinearAttentionState as LinearAttentionState
from statedual.layers.mamba1 import Mamba1 as Mamba1
from statedual.layers.mamba1 import Mamba1Config as Mamba1Config
from statedual.layers.mamba1 import Mamba1State as Mamba1State
from statedual.layers.mamba2 import HEAD_PATTERNS as HEAD_PATTERNS
from statedual.layers.mamba2 import Mamba2 as Mamba2
from statedual.layers.mamba2 import Mamba2Config as Mamba2Config
from statedual.layers.mamba2 import Mamba2State as Mamba2State
from statedual.layers.mlp import GatedMLP as GatedMLP
from statedual.layers.mlp import MLPConfig as MLPConfig
from statedual.layers.mlp import Stateless as Stateless
from statedual.layers.short_conv import ShortConv as ShortConv
from statedual.layers.short_conv import ShortConvConfig as ShortConvConfig
from statedual.layers.short_conv import ShortConvState as ShortConvState

__all__ = [
    "HEAD_PATTERNS",
    "Attention",
    "AttentionConfig",
    "AttentionState",
    "GatedMLP",
    "LinearAttention",
    "LinearAttentionConfig",
    "LinearAttentionState",
    "MLPConfig",
    "Mamba1",
    "Mamba1Config",
    "Mamba1State",
    "Mamba2",
    "Mamba2Config",
    "Mamba2State",
    "ShortConv",
    "ShortConvConfig",
    "ShortConvState",
    "Stateless",
    "WindowState",
]
