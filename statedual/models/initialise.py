"""How a model begins, as the released ones did."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from statedual.models.language_model import LanguageModel

EMBEDDING_STD = 0.02
RESIDUAL_WEIGHTS = ("out_proj.weight", "fc2.weight")
"""The last matrix of every block: what it gives is added to the residual stream."""


def initialise(model: LanguageModel) -> None:
    """Draw every parameter anew.

    | parameter | distribution |
    |---|---|
    | embedding.weight | N(0, 0.02^2) |
    | head.weight (if untied), every matrix not named below | U(-1/sqrt(fan_in), 1/sqrt(fan_in)) |
    | out_proj.weight, fc2.weight | the same, divided by sqrt(number of blocks): each adds to the residual once |
    | biases of matrices | 0 |
    | conv1d.weight, conv1d.bias | U(-1/sqrt(width), 1/sqrt(width)) |
    | norm weights; D | 1 |
    | Mamba-2: A_log | log of U(1, 16), one a head |
    | Mamba-2: dt_bias; Mamba-1: dt_proj.bias | softplus^-1(dt), log dt ~ U(log 0.001, log 0.1), dt >= 1e-4 |
    | Mamba-2: init_states | 0 |
    | Mamba-1: A_log | log(1), ..., log(d_state) in every channel |
    | Mamba-1: dt_proj.weight | U(-dt_rank^-0.5, dt_rank^-0.5) |
    | random projections of feature maps | rows N(0, I), at right angles in groups |

    The released code draws weights twice, and where it has MLPs forgets in the second pass that a layer adds to the
    residual twice: 1/sqrt(layers) for 1/sqrt(2 layers). Here it is what was meant.
    """
    # The parts of a module before itself, so that a mixer has the last word on its projections.
    for module in reversed(list(model.modules())):
        if module is model:
            continue
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING_STD)
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(RESIDUAL_WEIGHTS):
                parameter.div_(math.sqrt(len(model.blocks)))
