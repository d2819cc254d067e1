"""Which parameters decay, and which do not."""

from typing import Any

from torch import nn

NEVER = ("A_log", "init_states")
"""Parameters that have several axes in some blocks and are no matrices for all that."""


def weight_decay_groups(model: nn.Module, weight_decay: float = 0.1) -> list[dict[str, Any]]:
    """Two groups for ``torch.optim.AdamW``, in which every parameter stands once: what decays, and what does not.

    A parameter decays if it has two axes or more and is not one of ``NEVER``: the embedding, all matrices, the weights
    of convolutions. What has one axis does not: biases, weights of norms and of feature maps, dt_bias, D. Nor does
    A_log, where decay would be a pull towards A = -1.
    """
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and name.rpartition(".")[2] not in NEVER
        (decayed if matrix else kept).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
