"""The Mamba-2 block with every axis of section 7: projections, norm, head pattern, feature maps, initial states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from statedual.checks import require_choice, require_divides, require_positive
from statedual.layers.conv import CausalConv1d
from statedual.layers.feature_map import ELEMENTWISE, FeatureMap, check_names, check_normaliser
from statedual.layers.norm import GatedRMSNorm, require_eps
from statedual.layers.positions import lengths, positions
from statedual.layers.precision import Float32Parameters, float32_parameter
from statedual.layers.step_size import draw_dt_bias, require_draw, require_floor, require_range
from statedual.shapes import Offsets
from statedual.ssd.inputs import compute_dtype, without_autocast
from statedual.ssd.op import ssd
from statedual.ssd.step import ssd_step


class HeadPattern(TypedDict):
    """How many x, B and C there are; None is one for every head."""

    heads_x: int | None
    heads_b: int | None
    heads_c: int | None


HEAD_PATTERNS: dict[str, HeadPattern] = {
    "MIS": {"heads_x": None, "heads_b": 1, "heads_c": 1},
    "MCS": {"heads_x": 1, "heads_b": 1, "heads_c": None},
    "MES": {"heads_x": 1, "heads_b": None, "heads_c": 1},
    "MHS": {"heads_x": None, "heads_b": None, "heads_c": None},
    "MSS": {"heads_x": 1, "heads_b": 1, "heads_c": 1},
}
"""Multi-input (attention: multi-value), multi-contract (multi-query), multi-expand (multi-key), multi-head, multi-state
(sec. 7.2): ``Mamba2Config(**HEAD_PATTERNS["MCS"])``."""


@dataclass(frozen=True, kw_only=True)
class Mamba2Config:
    """The choices of section 7 as values; the defaults are the released models'.

    expand, head_dim: heads = expand * d_model / head_dim.    d_state: N.    d_ssm: channels of the SSM if fewer than
        expand * d_model; the rest is a gated MLP in parallel.
    heads_x, heads_b, heads_c: the head pattern; each divides the heads, None is all of them. G groups are heads_b = G,
        heads_c = G.
    projections: "parallel" makes x, B, C and dt from the input of the block; "sequential" makes B, C, dt from x behind
        its convolution, as Mamba-1.
    conv_width: of the convolution on x, B, C (sequential: on x); 0 is none.
    feature_map, feature_map_x: maps on B and C, and elementwise ones on x, composed from left to right.
    normaliser: divide by the sum of weights, the denominator of linear attention. The maps must be nonnegative.
    cosformer_length: T of the map "cosformer", the longest sequence there will be.
    norm: "rms" is the extra norm, on y * silu(z), or on y alone if norm_before_gate, in norm_groups parts (None: as
        many as heads_b).
    skip: one D a "head" or a "channel".    dt_limit: bounds of the step size, in training, prefill and decode alike.
    learnable_init_states: sequences start from a parameter instead of zeros.
    dt_init, dt_floor, A_init: ranges of the initial step sizes and of -A.
    """

    kind: ClassVar[str] = "mamba2"

    expand: int = 2
    d_state: int = 128
    head_dim: int = 64
    d_ssm: int | None = None
    heads_x: int | None = None
    heads_b: int | None = 1
    heads_c: int | None = 1
    projections: str = "parallel"
    conv_width: int = 4
    conv_bias: bool = True
    bias: bool = False
    feature_map: tuple[str, ...] = ("swish",)
    feature_map_x: tuple[str, ...] = ("swish",)
    normaliser: bool = False
    cosformer_length: int = 2048
    norm: str = "rms"
    norm_before_gate: bool = False
    norm_groups: int | None = None
    norm_eps: float = 1e-5
    skip: str = "head"
    dt_limit: tuple[float, float] = (0.0, math.inf)
    learnable_init_states: bool = False
    dt_init: tuple[float, float] = (1e-3, 1e-1)
    dt_floor: float = 1e-4
    A_init: tuple[float, float] = (1.0, 16.0)

    def __post_init__(self) -> None:
        for name in ("expand", "d_state", "head_dim", "cosformer_length"):
            require_positive(name, getattr(self, name))
        for name in ("d_ssm", "heads_x", "heads_b", "heads_c", "norm_groups"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        if self.conv_width != 0:
            require_positive("conv_width", self.conv_width)
        require_choice("projections", self.projections, ("parallel", "sequential"))
        require_choice("norm", self.norm, ("rms", "none"))
        require_eps("norm_eps", self.norm_eps)
        require_choice("skip", self.skip, ("head", "channel"))
        check_names("feature_map", self.feature_map)
        check_names("feature_map_x", self.feature_map_x, tuple(ELEMENTWISE))
        if self.normaliser:
            check_normaliser(self.feature_map)
        require_range("dt_limit", self.dt_limit)
        require_draw("dt_init", self.dt_init)
        require_draw("A_init", self.A_init)
        require_floor(self.dt_floor)

    def build(self, d_model: int) -> Mamba2:
        """The block for a residual stream of ``d_model``."""
        return Mamba2(d_model, self)


class Mamba2State(NamedTuple):
    """What a sequence has left behind: the last inputs of the convolution, h, and its length if a map asks for it."""

    conv: Float[Tensor, "rows history channels"]
    ssm: Float[Tensor, "rows heads head_dim state"]
    length: Int[Tensor, " rows"] | None


class _Inputs(NamedTuple):
    """What ``ssd`` takes, with or without a time axis, and x once more for the skip."""

    dt_x: Tensor
    log_a: Tensor
    b: Tensor
    c: Tensor
    x: Tensor


class Mamba2(Float32Parameters):
    """u -> y, (batch, time, model) to itself (fig:architecture).

    z, x, B, C, dt = in_proj(u)                    x, B, C = psi(conv(x, B, C))
    dt = clip(softplus(dt + dt_bias))              A = -exp(A_log)
    h_t = exp(dt_t A) h_{t-1} + dt_t x_t outer B_t      y_t = h_t C_t + D x_t
    out_proj(norm(y * silu(z)))
    """

    float32_parameters: ClassVar[tuple[str, ...]] = ("A_log", "dt_bias", "D", "init_states")

    def __init__(self, d_model: int, config: Mamba2Config = Mamba2Config()) -> None:
        super().__init__()
        require_positive("d_model", d_model)
        self.d_model, self.config = d_model, config
        inner = config.expand * d_model
        self.d_ssm = config.d_ssm or inner
        if self.d_ssm > inner or self.d_ssm % config.head_dim:
            raise ValueError(
                f"d_ssm is {self.d_ssm} for d_model {d_model}, expected a multiple of head_dim {config.head_dim} up to "
                f"expand * d_model = {inner}; change head_dim, expand or d_ssm"
            )
        self.heads = self.d_ssm // config.head_dim
        self.heads_x, self.heads_b, self.heads_c = (
            heads or self.heads for heads in (config.heads_x, config.heads_b, config.heads_c)
        )
        for name in ("heads_x", "heads_b", "heads_c"):
            require_divides(name.removeprefix("heads_"), getattr(self, name), self.heads)
        self.d_mlp = inner - self.d_ssm
        self.widths = (
            self.heads_x * config.head_dim,
            self.heads_b * config.d_state,
            self.heads_c * config.d_state,
        )
        x_width, *bc_widths = self.widths
        parallel = config.projections == "parallel"
        projected = sum(self.widths) + self.heads if parallel else x_width
        self.in_proj = nn.Linear(d_model, 2 * self.d_mlp + self.d_ssm + projected, bias=config.bias)
        self.conv1d = CausalConv1d(sum(self.widths) if parallel else x_width, config.conv_width, config.conv_bias)
        self.x_proj = None if parallel else nn.Linear(x_width, sum(bc_widths) + self.heads, bias=False)
        # One map for B and C: phi(C) . phi(B) is a kernel only if both have the same random projection.
        self.map_bc = FeatureMap(config.feature_map, config.d_state, config.cosformer_length)
        self.map_x = FeatureMap(config.feature_map_x, config.head_dim)
        self.state_shape = (self.heads, config.head_dim + config.normaliser, self.map_bc.features)
        self.A_log = float32_parameter(self.heads)
        self.dt_bias = float32_parameter(self.heads)
        self.D = float32_parameter(self.heads if config.skip == "head" else self.d_ssm)
        self.init_states = float32_parameter(*self.state_shape) if config.learnable_init_states else None
        self.norm = None
        if config.norm == "rms":
            groups = config.norm_groups or self.heads_b
            if self.d_ssm % groups:
                raise ValueError(f"norm_groups is {groups}, expected a divisor of the {self.d_ssm} channels")
            self.norm = GatedRMSNorm(self.d_ssm, groups, config.norm_eps, config.norm_before_gate)
        self.out_proj = nn.Linear(inner, d_model, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """What belongs to this module itself; ``models.initialise`` has the whole table."""
        with torch.no_grad():
            self.A_log.uniform_(*self.config.A_init).log_()
            self.dt_bias.copy_(draw_dt_bias(self.dt_bias, self.config.dt_init, self.config.dt_floor))
            self.D.fill_(1.0)
            if self.init_states is not None:
                self.init_states.zero_()

    def init_state(self, rows: int) -> Mamba2State:
        """Before the first token: zeros, or the learned initial states."""
        like = self.in_proj.weight
        ssm = self._first_states(rows)
        if ssm is None:
            ssm = like.new_zeros(rows, *self.state_shape, dtype=compute_dtype(like))
        length = torch.zeros(rows, dtype=torch.int64, device=like.device) if self.map_bc.needs_positions else None
        return Mamba2State(self.conv1d.init_state(rows, like), ssm, length)

    def forward(
        self,
        u: Float[Tensor, "batch time model"],
        state: Mamba2State | None = None,
        cu_seqlens: Offsets | None = None,
    ) -> tuple[Float[Tensor, "batch time model"], Mamba2State]:
        """Every sequence from its state (None: from the beginning), and the states behind them."""
        time, rows = u.shape[1], u.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        conv, ssm, length = state or (None, self._first_states(rows), None)
        where = None
        if self.map_bc.needs_positions:
            before = torch.zeros(rows, dtype=torch.int64, device=u.device) if length is None else length
            where, length = positions(time, before, cu_seqlens), lengths(time, before, cu_seqlens)
        mlp, z, mixed = self._project(u)
        convolved, conv = self.conv1d(mixed[..., : self.conv1d.channels], conv, cu_seqlens)
        inputs = self._ssm_inputs(convolved, mixed[..., self.conv1d.channels :], where)
        y, ssm = ssd(inputs.dt_x, inputs.log_a, inputs.b, inputs.c, initial_state=ssm, cu_seqlens=cu_seqlens)
        return self._output(y, inputs.x, z, mlp), Mamba2State(conv, ssm, length)

    def step(self, u: Float[Tensor, "batch model"], state: Mamba2State) -> Float[Tensor, "batch model"]:
        """One token; ``state`` is updated in place."""
        mlp, z, mixed = self._project(u)
        convolved = self.conv1d.step(mixed[..., : self.conv1d.channels], state.conv)
        where = None if state.length is None else state.length[:, None]
        inputs = self._ssm_inputs(convolved[:, None], mixed[:, None, self.conv1d.channels :], where)
        y, _ = ssd_step(state.ssm, inputs.dt_x[:, 0], inputs.log_a[:, 0], inputs.b[:, 0], inputs.c[:, 0])
        if state.length is not None:
            state.length.add_(1)
        return self._output(y[:, None], inputs.x, z[:, None], mlp[:, None])[:, 0]

    def _first_states(self, rows: int) -> Tensor | None:
        # Never a view, of one row neither: a step overwrites them.
        return None if self.init_states is None else self.init_states.repeat(rows, 1, 1, 1)

    def _project(self, u: Float[Tensor, "*batch model"]) -> tuple[Tensor, Tensor, Tensor]:
        """The parallel MLP's output (empty if there is none), the gate z, and x (with B, C, dt if parallel)."""
        gate, value, z, mixed = self.in_proj(u).split(
            [self.d_mlp, self.d_mlp, self.d_ssm, self.in_proj.out_features - 2 * self.d_mlp - self.d_ssm], dim=-1
        )
        return functional.silu(gate) * value, z, mixed

    def _ssm_inputs(
        self,
        convolved: Float[Tensor, "batch time channels"],
        raw_dt: Float[Tensor, "batch time _"],
        where: Int[Tensor, "#batch time"] | None,
    ) -> _Inputs:
        """Feature maps, step sizes and decays: all but the convolution that happens between u and the SSM."""
        head_dim = self.config.head_dim
        if self.x_proj is None:
            x, b, c = convolved.split(self.widths, dim=-1)
            x = self.map_x(x.unflatten(-1, (self.heads_x, head_dim)))
        else:
            x = self.map_x(convolved.unflatten(-1, (self.heads_x, head_dim)))
            b, c, raw_dt = self.x_proj(x.flatten(-2)).split([*self.widths[1:], self.heads], dim=-1)
        with without_autocast(x.device):
            b = self.map_bc(b.unflatten(-1, (self.heads_b, -1)), where)
            c = self.map_bc(c.unflatten(-1, (self.heads_c, -1)), where)
            dtype = compute_dtype(self.A_log, x)
            dt = functional.softplus(raw_dt.to(dtype) + self.dt_bias.to(dtype)).clamp(*self.config.dt_limit)
            log_a = dt * -self.A_log.to(dtype).exp()
            wide = x.to(dtype)
            if self.config.normaliser:
                wide = functional.pad(wide, (0, 1), value=1.0)
            # Where heads share one x, each still has a step size of its own.
            dt_x = self._by_head(wide) * dt.unsqueeze(-1)
        return _Inputs(dt_x, log_a, b, c, x)

    def _by_head(self, x: Float[Tensor, "batch time heads_x size"]) -> Float[Tensor, "batch time heads size"]:
        """Each of the ``heads_x`` repeated for the heads that share it; a view where there is one for every head."""
        return x.unsqueeze(3).expand(-1, -1, -1, self.heads // self.heads_x, -1).flatten(2, 3)

    def _output(
        self,
        y: Float[Tensor, "batch time heads values"],
        x: Float[Tensor, "batch time heads_x head_dim"],
        z: Float[Tensor, "batch time d_ssm"],
        mlp: Float[Tensor, "batch time d_mlp"],
    ) -> Float[Tensor, "batch time model"]:
        """Normaliser, skip, gate, norm, projection."""
        with without_autocast(y.device):
            if self.config.normaliser:
                y = y[..., :-1] / y[..., -1:].clamp(min=1e-12)
            skip = self.D.to(y.dtype).view(self.heads, -1)
            y = torch.addcmul(y, self._by_head(x.to(y.dtype)), skip).flatten(-2)
            gated = (y * functional.silu(z.to(y.dtype))).to(z.dtype) if self.norm is None else self.norm(y, z)
        projected: Tensor = self.out_proj(torch.cat([mlp, gated], dim=-1) if self.d_mlp else gated)
        return projected
