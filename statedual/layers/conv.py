"""The short causal convolution of Mamba and its relatives, each channel by itself."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statedual.checks import require_sizes
from statedual.layers.positions import sequence_of
from statedual.shapes import Offsets
from statedual.ssd.inputs import check_offsets_shape, compute_dtype


class CausalConv1d(nn.Module):
    """y_t = bias + sum_j weight_j x_{t-(width-1)+j}: ``weight[:, 0, -1]`` multiplies the current position.

    The state is the last width - 1 inputs of every sequence, oldest first, zeros before its start. ``width`` 0 is no
    convolution at all: it has no parameters and gives x back.
    """

    def __init__(self, channels: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.channels, self.width = channels, width
        self.weight = nn.Parameter(torch.empty(channels, 1, width)) if width else None
        self.bias = nn.Parameter(torch.empty(channels)) if width and bias else None
        self.history = max(width - 1, 0)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight and bias U(-1/sqrt(width), 1/sqrt(width)), PyTorch's own for a depthwise convolution."""
        bound = 1 / math.sqrt(max(self.width, 1))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def init_state(self, rows: int, like: Tensor) -> Float[Tensor, "rows history channels"]:
        """Zeros, in the dtype and on the device of ``like``."""
        return like.new_zeros(rows, self.history, self.channels)

    def forward(
        self,
        x: Float[Tensor, "batch time channels"],
        state: Float[Tensor, "rows history channels"] | None = None,
        cu_seqlens: Offsets | None = None,
    ) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "rows history channels"]]:
        """The convolution of every sequence, and its last inputs; packed sequences do not see one another."""
        if cu_seqlens is not None:
            check_offsets_shape(cu_seqlens, x.shape[0])
        rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if state is None:
            state = self.init_state(rows, x)
        require_sizes("state", state, {"rows": rows, "history": self.history, "channels": self.channels}, "x")
        if self.weight is None:
            return x, state
        if cu_seqlens is None:
            past = torch.cat([state.to(x.dtype), x], dim=1)
            # A copy: a view would keep all of ``past`` alive for as long as the state.
            return self._slide(past), past[:, past.shape[1] - self.history :].clone()
        # One row with the history of each sequence before it: position t moves right by the histories up to its own.
        time = x.shape[1]
        starts = cu_seqlens.long()
        row = torch.arange(rows, device=x.device)
        here = torch.arange(time, device=x.device) + self.history * (sequence_of(time, cu_seqlens) + 1)
        before = torch.arange(self.history, device=x.device)
        past = x.new_zeros(1, time + rows * self.history, self.channels)
        past[0, here] = x[0]
        past[0, (starts[:-1] + self.history * row)[:, None] + before] = state.to(x.dtype)
        last = past[0, (starts[1:] + self.history * row)[:, None] + before]
        return self._slide(past)[:, here - self.history], last

    def step(
        self, x: Float[Tensor, "batch channels"], state: Float[Tensor, "batch history channels"]
    ) -> Float[Tensor, "batch channels"]:
        """One position; x becomes the newest of ``state``, in place."""
        if self.weight is None:
            return x
        require_sizes("state", state, {"rows": x.shape[0], "history": self.history, "channels": self.channels}, "x")
        past = torch.cat([state.to(x.dtype), x[:, None]], dim=1)
        state.copy_(past[:, 1:])
        return self._slide(past)[:, 0]

    def _slide(self, past: Float[Tensor, "batch past channels"]) -> Float[Tensor, "batch time channels"]:
        """Shifted copies of ``past``, weighed and added: no transposition to channels first and back."""
        assert self.weight is not None
        dtype = compute_dtype(past)
        time = past.shape[1] - self.history
        weight, wide = self.weight[:, 0].to(dtype), past.to(dtype)
        y = wide[:, :time] * weight[:, 0]
        for tap in range(1, self.width):
            y = torch.addcmul(y, wide[:, tap : tap + time], weight[:, tap])
        return (y if self.bias is None else y + self.bias.to(dtype)).to(past.dtype)
