"""Linear attention as one block: its kernel, its decay, its denominator, its norm and its gate are values.

Each of the models below is one line of ``ssd``, with k, q and v in the place of b, c and x (sec. 4.3, 5.3, 10.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from statedual.checks import require_choice, require_positive, require_sizes
from statedual.layers.feature_map import FeatureMap, check_names, check_normaliser
from statedual.layers.norm import RMSNorm
from statedual.layers.positions import lengths, positions
from statedual.layers.rotary import rotate
from statedual.shapes import Offsets
from statedual.ssd import ssd, ssd_step
from statedual.ssd.inputs import check_offsets_shape, compute_dtype, without_autocast

# phi(q) . phi(k) approximates a function of q . k with a temperature, softmax attention's 1 / sqrt(d_state).
_APPROXIMATE_EXP = ("taylor", "random_features", "positive_random_features")


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig:
    """What a block of linear attention is made of; ``linear``, ``retention``, ``gateloop``, ``taylor`` are known ones.

    d_state: width of q and k in a head before the map (None: d_model / heads).    head_dim: that of v (likewise).
    feature_map: maps on q and k, composed from left to right; () is the identity.
    cosformer_length: T of the map "cosformer", the longest sequence there will be.
    normaliser: divide by the sum of weights; for maps whose products are nonnegative.
    decay: "none"; "constant", 1 - 2^(-5-h) in head h; or "input", sigmoid(W u + bias), one a head.
    rotary: rotate q and k by their position.    norm: "rms" is one over each head of y.    gate: y * silu(W u).
    """

    kind: ClassVar[str] = "linear_attention"

    heads: int
    d_state: int | None = None
    head_dim: int | None = None
    feature_map: tuple[str, ...] = ("elu",)
    cosformer_length: int = 2048
    normaliser: bool = True
    decay: str = "none"
    rotary: bool = False
    norm: str = "none"
    gate: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "cosformer_length"):
            require_positive(name, getattr(self, name))
        for name in ("d_state", "head_dim"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        check_names("feature_map", self.feature_map)
        require_choice("decay", self.decay, ("none", "constant", "input"))
        require_choice("norm", self.norm, ("none", "rms"))
        if self.rotary and self.d_state is not None:
            _require_pairs(self.d_state)
        if self.normaliser:
            check_normaliser(self.feature_map)

    @classmethod
    def linear(cls, heads: int) -> LinearAttentionConfig:
        """Linear Attention (Katharopoulos et al. 2020): phi = 1 + elu, rows that sum to one, no decay."""
        return cls(heads=heads)

    @classmethod
    def retention(cls, heads: int) -> LinearAttentionConfig:
        """Retention (RetNet, Sun et al. 2023): constant decays, rotated q and k, a norm in place of the denominator."""
        return cls(heads=heads, feature_map=(), normaliser=False, decay="constant", rotary=True, norm="rms", gate=True)

    @classmethod
    def gateloop(cls, heads: int) -> LinearAttentionConfig:
        """GateLoop (Katsch 2023) with one real decay a head, sigmoid of the input."""
        return cls(heads=heads, feature_map=(), normaliser=False, decay="input", norm="rms", gate=True)

    @classmethod
    def taylor(cls, heads: int, d_state: int = 16) -> LinearAttentionConfig:
        """Based (Arora et al. 2024): exp(q . k) by its Taylor polynomial of few channels, rows sum to one."""
        return cls(heads=heads, d_state=d_state, feature_map=("taylor",))

    def build(self, d_model: int) -> LinearAttention:
        """The block for a residual stream of ``d_model``."""
        return LinearAttention(d_model, self)


def _require_pairs(d_state: int) -> None:
    """q and k can be turned in pairs."""
    if d_state % 2:
        raise ValueError(f"d_state is {d_state}, expected an even number, for rotary turns pairs; or use rotary=False")


class LinearAttentionState(NamedTuple):
    """h_t of every head, with a last row for the denominator where there is one, and how many positions there were."""

    ssm: Float[Tensor, "rows heads head_dim features"]
    length: Int[Tensor, " rows"]


class LinearAttention(nn.Module):
    """u -> y, (batch, time, model) to itself.

        q, k, v, z = in_proj(u)         q, k = phi(scale R_t q), phi(scale R_t k)
        h_t = a_t h_{t-1} + (v_t, 1) outer k_t              (y_t, weight_t) = h_t q_t
        out_proj(norm(y / weight) * silu(z))

    Scale: in front of a map that approximates exp(q . k) (taylor and random features) q and k are both multiplied with
    d_state^(-1/4). Without any map q alone is multiplied with d_state^(-1/2). Other maps take q and k as they are.
    Decays and states are float32, under autocast too (float64 in a float64 module).
    """

    def __init__(self, d_model: int, config: LinearAttentionConfig) -> None:
        super().__init__()
        require_positive("d_model", d_model)
        self.d_model, self.config, self.heads = d_model, config, config.heads
        for name in ("d_state", "head_dim"):
            if getattr(config, name) is None and d_model % config.heads:
                raise ValueError(
                    f"d_model is {d_model}, expected a multiple of the {config.heads} heads; or give {name}"
                )
        self.d_state = config.d_state or d_model // config.heads
        self.head_dim = config.head_dim or d_model // config.heads
        if config.rotary:
            _require_pairs(self.d_state)
        inner = self.heads * self.head_dim
        self.widths = (self.heads * self.d_state, self.heads * self.d_state, inner, inner * config.gate)
        self.in_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.decay_proj = nn.Linear(d_model, self.heads) if config.decay == "input" else None
        self.feature_map = FeatureMap(config.feature_map, self.d_state, config.cosformer_length)
        self.needs_positions = config.rotary or self.feature_map.needs_positions
        self.norm = RMSNorm(self.head_dim) if config.norm == "rms" else None
        self.out_proj = nn.Linear(inner, d_model, bias=False)

    def init_state(self, rows: int) -> LinearAttentionState:
        """Zeros: before the first token."""
        like, size = self.in_proj.weight, self.head_dim + self.config.normaliser
        ssm = like.new_zeros(rows, self.heads, size, self.feature_map.features, dtype=compute_dtype(like))
        return LinearAttentionState(ssm, torch.zeros(rows, dtype=torch.int64, device=like.device))

    def forward(
        self,
        u: Float[Tensor, "batch time model"],
        state: LinearAttentionState | None = None,
        cu_seqlens: Offsets | None = None,
    ) -> tuple[Float[Tensor, "batch time model"], LinearAttentionState]:
        """Every sequence from its state (None: from the beginning), and the states behind them."""
        batch, time, _ = u.shape
        if cu_seqlens is not None:
            check_offsets_shape(cu_seqlens, batch)
        rows = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
        ssm, length = state or (None, torch.zeros(rows, dtype=torch.int64, device=u.device))
        require_sizes("state.length", length, {"rows": rows}, "u" if cu_seqlens is None else "cu_seqlens")
        # Without a state all rows of a batch have the same angles.
        own = length[:1] if state is None and cu_seqlens is None else length
        where = positions(time, own, cu_seqlens) if self.needs_positions else None
        v, log_a, k, q, z = self._ssm_inputs(u, where)
        y, ssm = ssd(v, log_a, k, q, initial_state=ssm, cu_seqlens=cu_seqlens)
        return self._output(y, z), LinearAttentionState(ssm, lengths(time, length, cu_seqlens))

    def step(self, u: Float[Tensor, "batch model"], state: LinearAttentionState) -> Float[Tensor, "batch model"]:
        """One token; ``state`` is updated in place."""
        v, log_a, k, q, z = self._ssm_inputs(u[:, None], state.length[:, None])
        y, _ = ssd_step(state.ssm, v[:, 0], log_a[:, 0], k[:, 0], q[:, 0])
        state.length.add_(1)
        return self._output(y[:, None], z)[:, 0]

    def _ssm_inputs(
        self, u: Float[Tensor, "batch time model"], where: Int[Tensor, "#batch time"] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What ``ssd`` takes, x, log_a, b and c, and the gate z (of width 0 if there is none)."""
        q, k, v, z = self.in_proj(u).split(self.widths, dim=-1)
        gate = None if self.decay_proj is None else self.decay_proj(u)
        with without_autocast(u.device):
            q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
            if self.config.rotary:
                assert where is not None
                q, k = rotate(q, where, self.d_state), rotate(k, where, self.d_state)
            if not self.config.feature_map:
                q = q * self.d_state**-0.5
            elif self.config.feature_map[-1] in _APPROXIMATE_EXP:
                q, k = q * self.d_state**-0.25, k * self.d_state**-0.25
            q, k = self.feature_map(q, where), self.feature_map(k, where)
            if self.config.normaliser:
                # Wide, so that numerator and denominator are not rounded before the division.
                v = functional.pad(v.to(compute_dtype(v)), (0, 1), value=1.0)
            return v, self._log_decays(v, gate), k, q, z

    def _log_decays(
        self, v: Float[Tensor, "batch time heads _"], gate: Float[Tensor, "batch time heads"] | None
    ) -> Float[Tensor, "batch time heads"]:
        dtype = compute_dtype(v)
        if gate is not None:
            return functional.logsigmoid(gate.to(dtype))
        log_a = torch.zeros(self.heads, dtype=dtype, device=v.device)
        if self.config.decay == "constant":
            head = torch.arange(self.heads, dtype=dtype, device=v.device)
            log_a = torch.log1p(-torch.exp2(-5 - head))
        return log_a.expand(v.shape[:3])

    def _output(
        self, y: Float[Tensor, "batch time heads size"], z: Float[Tensor, "batch time gates"]
    ) -> Float[Tensor, "batch time model"]:
        with without_autocast(y.device):
            if self.config.normaliser:
                y = y[..., :-1] / y[..., -1:].clamp(min=1e-12)
            y = (y if self.norm is None else self.norm(y)).flatten(2)
            if self.config.gate:
                y = y.to(compute_dtype(y)) * functional.silu(z.to(compute_dtype(y)))
            y = y.to(z.dtype)
        projected: Tensor = self.out_proj(y)
        return projected
