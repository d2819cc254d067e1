"""Known models as one line of ``ssd`` each (sec. 4.3, sec. 5.3): what differs is only the decay."""

import torch
from jaxtyping import Float
from torch import Tensor

from statedual.checks import require_floating, require_one_device, require_sizes
from statedual.shapes import LogA, Y
from statedual.ssd.op import ssd

Heads = Float[Tensor, "batch time heads _"]


def linear_attention(q: Heads, k: Heads, v: Heads) -> Y:
    """Causal linear attention (prop:linear-attention, Katharopoulos et al. 2020): y_t = sum_{s<=t} (q_t.k_s) v_s.

    No decay. q and k are taken after their feature map.
    """
    return ssd(v, torch.zeros_like(v[..., 0], dtype=torch.float32), k, q).y


def retention(q: Heads, k: Heads, v: Heads, gamma: Float[Tensor, " heads"]) -> Y:
    """Retention (RetNet, Sun et al. 2023): y_t = sum_{s<=t} gamma^(t-s) (q_t.k_s) v_s.

    gamma is one constant decay for each head, 0 <= gamma <= 1.
    """
    require_floating(gamma=gamma, v=v)
    require_one_device(v=v, gamma=gamma)
    require_sizes("gamma", gamma, {"heads": v.shape[2]}, "v")
    wide = gamma.to(torch.promote_types(gamma.dtype, torch.float32))
    # The smallest number added changes none but 0, whose logarithm has no gradient.
    log_gamma = (wide + torch.finfo(wide.dtype).tiny).log()
    return ssd(v, log_gamma.expand(v.shape[:3]), k, q).y


def gateloop(q: Heads, k: Heads, v: Heads, log_a: LogA) -> Y:
    """GateLoop (Katsch 2023) with a real scalar gate a head: the decay depends on the input. This is ``ssd`` itself."""
    return ssd(v, log_a, k, q).y
