"""Autoregressive transformations, whose matrices are semiseparable (Theorems ``thm:ss-sma-formal``, ``thm:ss-sma``)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from statedual.checks import require_floating, require_ndim, require_one_device, require_sizes
from statedual.semiseparable.matrix import SemiseparableMatrix


def autoregressive(mu: Float[Tensor, " time"], ell: Float[Tensor, "time lags"]) -> SemiseparableMatrix:
    """The matrix L of ``y_t = mu_t x_t + sum_i ell_ti y_{t-i}`` over k lags, i = 1 ... k (``eq:efficient-ar``).

    ``mu``: (T,), zeros allowed. ``ell``: (T, k), with ``ell[t, i - 1]`` the weight of y_{t-i}; outputs before the
    first are zero, so those weights are never felt.

    The state is the last k outputs, ``h_t = (y_t, ..., y_{t-k+1})``, moved by a companion matrix: the order is
    max(k, 1), one less than Theorem ``thm:ss-sma-formal`` allows as soon as k > 0. One lag is a scalar recurrence.
    """
    require_floating(mu=mu, ell=ell)
    require_one_device(mu=mu, ell=ell)
    require_ndim("mu", mu, "time")
    require_sizes("ell", ell, {"time": len(mu), "lags": None}, "mu")
    if ell.shape[1] == 0:
        ell = pad(ell, (0, 1))
    order = ell.shape[1]
    newest = torch.eye(order, dtype=ell.dtype, device=ell.device)[0].expand(len(mu), order)
    b = mu.unsqueeze(-1) * newest
    if order == 1:
        return SemiseparableMatrix(ell.squeeze(-1), b, newest)
    shift = torch.eye(order, dtype=ell.dtype, device=ell.device)[:-1].expand(len(mu), order - 1, order)
    return SemiseparableMatrix(torch.cat([ell.unsqueeze(1), shift], dim=1), b, newest)
