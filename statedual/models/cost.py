"""What a model costs: parameters, the state that a sequence leaves behind, operations of a decoded token.

All of it is read off the model itself on PyTorch's meta device, where tensors have shapes and no memory.
"""

from collections import Counter
from dataclasses import replace

import torch
from torch import nn

from statedual.layers import Attention, AttentionState, LinearAttention, Mamba1, Mamba2
from statedual.layers.conv import CausalConv1d
from statedual.layers.feature_map import FeatureMap
from statedual.layers.mamba1 import DtProjection
from statedual.models.config import ModelConfig
from statedual.models.language_model import LanguageModel
from statedual.ssd.cost import SSDShape, step_flops


def skeleton(config: ModelConfig) -> LanguageModel:
    """The model without memory: shapes only."""
    with torch.device("meta"):
        return LanguageModel(config)


def parameters(config: ModelConfig) -> int:
    """How many numbers are learned. A tied head is the embedding and counts once."""
    # Equal blocks have equally many: one of each is built.
    counts = Counter(config.blocks)
    model = skeleton(replace(config, blocks=tuple(counts)))
    repeated = sum((count - 1) * _numel(block) for block, count in zip(model.blocks, counts.values(), strict=True))
    return _numel(model) + repeated


def matrix_parameters(config: ModelConfig) -> int:
    """Weights of all matrices that a token is multiplied with: the head, tied or not, is one; a lookup is none."""
    return _matrix_parameters(skeleton(config))


def weight_bytes(config: ModelConfig, dtype: torch.dtype = torch.float32) -> int:
    """Memory of all parameters of a model of ``dtype``. A_log, D and dt_bias are float32 at least."""
    return sum(parameter.numel() * parameter.element_size() for parameter in skeleton(config).to(dtype).parameters())


def state_bytes(config: ModelConfig, dtype: torch.dtype = torch.float32, context: int = 0) -> int:
    """Memory of what one sequence of ``context`` tokens leaves behind, in a model of ``dtype``.

    It depends on the context only by the keys and values of attention without a window. (What ``LanguageModel.step``
    returns may be larger by the slots that it keeps free.)
    """
    _require_context(context)
    state = skeleton(config).to(dtype).init_state(1)
    caches = [block for block in state.blocks if isinstance(block, AttentionState)]
    slots = [tensor for cache in caches for tensor in (cache.keys, cache.values)]
    return state.bytes + sum(context * slot.shape[2:].numel() * slot.element_size() for slot in slots)


def flops_per_token(config: ModelConfig, context: int = 0) -> int:
    """Operations to decode the token behind ``context`` others; a multiplication and an addition are two.

    | what | operations |
    |---|---|
    | matrices, the head among them | 2 a weight |
    | convolutions | 2 a weight |
    | a recurrence of H heads | 5 H P N: decay and add the state, read from it |
    | the decays of Mamba-1, one a channel and state | 2 more for each |
    | attention | 4 heads head_dim for each of context + 1 positions (of a window at most) |
    | random features | 2 a weight of the projection, for every head of B and C |

    Left out is what takes a few operations a channel: norms, gates, activations, rotations.
    """
    _require_context(context)
    model = skeleton(config)
    convolutions = [module.weight for module in model.modules() if isinstance(module, CausalConv1d)]
    mixers = sum(_mixer_flops(module, context) for module in model.modules())
    weights = _matrix_parameters(model) + sum(weight.numel() for weight in convolutions if weight is not None)
    return 2 * weights + mixers


def _numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _matrix_parameters(model: LanguageModel) -> int:
    linear = [module.weight for module in model.modules() if isinstance(module, nn.Linear | DtProjection)]
    tied_head = [model.embedding.weight] if model.head is None else []
    return sum(weight.numel() for weight in linear + tied_head)


def _mixer_flops(module: nn.Module, context: int) -> int:
    """What a mixer does beside its matrices and its convolution; 0 for any other module."""
    if isinstance(module, Mamba2):
        maps = (module.heads_b + module.heads_c) * _map_flops(module.map_bc)
        return maps + _step_flops(*module.state_shape)
    if isinstance(module, Mamba1):
        state = module.config.d_state
        return _step_flops(module.channels, 1, state) + 2 * module.channels * state
    if isinstance(module, LinearAttention):
        head_dim = module.head_dim + module.config.normaliser
        maps = 2 * module.heads * _map_flops(module.feature_map)
        return maps + _step_flops(module.heads, head_dim, module.feature_map.features)
    if isinstance(module, Attention):
        seen = min(context + 1, module.config.window or context + 1)
        return 4 * seen * module.heads * module.head_dim
    return 0


def _step_flops(heads: int, head_dim: int, state: int) -> int:
    return step_flops(SSDShape(batch=1, time=1, heads=heads, head_dim=head_dim, state=state))


def _map_flops(feature_map: FeatureMap) -> int:
    """Of one head: its random projections."""
    return sum(2 * projection.numel() for projection in feature_map.buffers())


def _require_context(context: int) -> None:
    if not isinstance(context, int) or context < 0:
        raise ValueError(f"context is {context!r}, expected a number of tokens, 0 or more")
