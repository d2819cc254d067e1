"""The Mamba-1 block: S6, the selective SSM with a decay for every channel and state (sec. 2; Gu and Dao 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from statedual.checks import require_positive
from statedual.layers.conv import CausalConv1d
from statedual.layers.precision import Float32Parameters, float32_parameter
from statedual.layers.step_size import draw_dt_bias, require_draw, require_floor
from statedual.selective_scan.op import diagonal_ssm
from statedual.selective_scan.step import diagonal_ssm_step
from statedual.shapes import Offsets
from statedual.ssd.inputs import compute_dtype, without_autocast


@dataclass(frozen=True, kw_only=True)
class Mamba1Config:
    """The defaults are the released models'. dt_rank: width of dt's bottleneck (None: d_model / 16, rounded up)."""

    kind: ClassVar[str] = "mamba1"

    expand: int = 2
    d_state: int = 16
    dt_rank: int | None = None
    conv_width: int = 4
    conv_bias: bool = True
    bias: bool = False
    dt_init: tuple[float, float] = (1e-3, 1e-1)
    dt_floor: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("expand", "d_state"):
            require_positive(name, getattr(self, name))
        if self.dt_rank is not None:
            require_positive("dt_rank", self.dt_rank)
        if self.conv_width != 0:
            require_positive("conv_width", self.conv_width)
        require_draw("dt_init", self.dt_init)
        require_floor(self.dt_floor)

    def build(self, d_model: int) -> Mamba1:
        """The block for a residual stream of ``d_model``."""
        return Mamba1(d_model, self)


class Mamba1State(NamedTuple):
    """The last inputs of the convolution, and h."""

    conv: Float[Tensor, "rows history channels"]
    ssm: Float[Tensor, "rows channels state"]


class Mamba1(Float32Parameters):
    """u -> y, (batch, time, model) to itself. Heads are single channels; all of them share B and C.

    x, z = in_proj(u)            x = silu(conv(x))            dt, B, C = x_proj(x)
    dt = softplus(dt_proj(dt))                                A = -exp(A_log), (channels, state)
    h_t = exp(dt_t A) * h_{t-1} + dt_t x_t outer B_t          y_t = h_t C_t + D x_t
    out_proj(y * silu(z))
    """

    float32_parameters: ClassVar[tuple[str, ...]] = ("A_log", "D")

    def __init__(self, d_model: int, config: Mamba1Config = Mamba1Config()) -> None:
        super().__init__()
        require_positive("d_model", d_model)
        self.d_model, self.config = d_model, config
        self.channels = config.expand * d_model
        self.dt_rank = config.dt_rank or math.ceil(d_model / 16)
        self.in_proj = nn.Linear(d_model, 2 * self.channels, bias=config.bias)
        self.conv1d = CausalConv1d(self.channels, config.conv_width, config.conv_bias)
        self.x_proj = nn.Linear(self.channels, self.dt_rank + 2 * config.d_state, bias=False)
        self.dt_proj = DtProjection(self.dt_rank, self.channels)
        self.A_log = float32_parameter(self.channels, config.d_state)
        self.D = float32_parameter(self.channels)
        self.out_proj = nn.Linear(self.channels, d_model, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """What belongs to this module itself; ``models.initialise`` has the whole table."""
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1, self.config.d_state + 1, device=self.A_log.device).log())
            self.D.fill_(1.0)
            self.dt_proj.weight.uniform_(-(self.dt_rank**-0.5), self.dt_rank**-0.5)
            self.dt_proj.bias.copy_(draw_dt_bias(self.dt_proj.bias, self.config.dt_init, self.config.dt_floor))

    def init_state(self, rows: int) -> Mamba1State:
        """Zeros."""
        like = self.in_proj.weight
        ssm = like.new_zeros(rows, self.channels, self.config.d_state, dtype=compute_dtype(like))
        return Mamba1State(self.conv1d.init_state(rows, like), ssm)

    def forward(
        self,
        u: Float[Tensor, "batch time model"],
        state: Mamba1State | None = None,
        cu_seqlens: Offsets | None = None,
    ) -> tuple[Float[Tensor, "batch time model"], Mamba1State]:
        """Every sequence from its state (None: zeros), and the states behind them."""
        x, z = self.in_proj(u).chunk(2, dim=-1)
        x, conv = self.conv1d(x, None if state is None else state.conv, cu_seqlens)
        x = functional.silu(x)
        dt_x, log_a, b, c = self._ssm_inputs(x)
        before = None if state is None else state.ssm.unsqueeze(2)
        y, ssm = diagonal_ssm(dt_x, log_a, b, c, initial_state=before, cu_seqlens=cu_seqlens)
        # A copy: PyTorch lets no step write into a view that was made without gradients and is used with them.
        return self._output(y, x, z), Mamba1State(conv, ssm.squeeze(2).clone())

    def step(self, u: Float[Tensor, "batch model"], state: Mamba1State) -> Float[Tensor, "batch model"]:
        """One token; ``state`` is updated in place."""
        x, z = self.in_proj(u).chunk(2, dim=-1)
        x = functional.silu(self.conv1d.step(x, state.conv))
        dt_x, log_a, b, c = self._ssm_inputs(x[:, None])
        y, _ = diagonal_ssm_step(state.ssm.unsqueeze(2), dt_x[:, 0], log_a[:, 0], b[:, 0], c[:, 0])
        return self._output(y[:, None], x[:, None], z[:, None])[:, 0]

    def _ssm_inputs(self, x: Float[Tensor, "batch time channels"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dt x (batch, time, channels, 1), log_a (batch, time, channels, state), B and C (batch, time, 1, state)."""
        n = self.config.d_state
        low_rank, b, c = self.x_proj(x).split([self.dt_rank, n, n], dim=-1)
        dtype = compute_dtype(self.A_log, x)
        # The bias is added in float32: a step size near 0.001 has no digits to lose.
        raw_dt: Tensor = self.dt_proj(low_rank)
        with without_autocast(x.device):
            dt = functional.softplus(raw_dt.to(dtype) + self.dt_proj.bias.to(dtype)).unsqueeze(-1)
            log_a = dt * -self.A_log.to(dtype).exp()
            return x.to(dtype).unsqueeze(-1) * dt, log_a, b.unsqueeze(2), c.unsqueeze(2)

    def _output(
        self,
        y: Float[Tensor, "batch time channels 1"],
        x: Float[Tensor, "batch time channels"],
        z: Float[Tensor, "batch time channels"],
    ) -> Float[Tensor, "batch time model"]:
        """Skip, gate, projection."""
        with without_autocast(y.device):
            dtype = y.dtype
            skipped = torch.addcmul(y.squeeze(-1), x.to(dtype), self.D.to(dtype))
            gated = (skipped * functional.silu(z.to(dtype))).to(z.dtype)
        projected: Tensor = self.out_proj(gated)
        return projected


class DtProjection(Float32Parameters):
    """dt_proj: from the bottleneck to one step size a channel, without its bias, which is float32 and added as such.

    (No ``nn.Linear``: a tool that replaces those would add the bias a second time.)
    """

    float32_parameters: ClassVar[tuple[str, ...]] = ("bias",)

    def __init__(self, dt_rank: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, dt_rank))
        self.bias = float32_parameter(channels)

    def forward(self, x: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch channels"]:
        """The product alone."""
        return functional.linear(x, self.weight)
