"""The gated short convolution of Based (Arora et al. 2024): comparison of a token with its nearest predecessors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from statedual.checks import require_positive
from statedual.layers.conv import CausalConv1d
from statedual.shapes import Offsets


@dataclass(frozen=True, kw_only=True)
class ShortConvConfig:
    """``width``: how many positions the convolution sees, the current one among them."""

    kind: ClassVar[str] = "short_conv"

    width: int = 3

    def __post_init__(self) -> None:
        require_positive("width", self.width)

    def build(self, d_model: int) -> ShortConv:
        """The block for a residual stream of ``d_model``."""
        return ShortConv(d_model, self)


class ShortConvState(NamedTuple):
    """The last inputs of the convolution, oldest first."""

    conv: Float[Tensor, "rows history model"]


class ShortConv(nn.Module):
    """u -> conv(u) * (W u + bias), (batch, time, model) to itself; conv is causal, each channel by itself."""

    def __init__(self, d_model: int, config: ShortConvConfig = ShortConvConfig()) -> None:
        super().__init__()
        require_positive("d_model", d_model)
        self.d_model, self.config = d_model, config
        self.in_proj = nn.Linear(d_model, d_model)
        self.conv1d = CausalConv1d(d_model, config.width)

    def init_state(self, rows: int) -> ShortConvState:
        """Zeros: before the first token."""
        return ShortConvState(self.conv1d.init_state(rows, self.in_proj.weight))

    def forward(
        self,
        u: Float[Tensor, "batch time model"],
        state: ShortConvState | None = None,
        cu_seqlens: Offsets | None = None,
    ) -> tuple[Float[Tensor, "batch time model"], ShortConvState]:
        """Every sequence from its state (None: from the beginning), and the states behind them."""
        convolved, conv = self.conv1d(u, None if state is None else state.conv, cu_seqlens)
        return convolved * self.in_proj(u), ShortConvState(conv)

    def step(self, u: Float[Tensor, "batch model"], state: ShortConvState) -> Float[Tensor, "batch model"]:
        """One token; ``state`` is updated in place."""
        projected: Tensor = self.in_proj(u)
        return self.conv1d.step(u, state.conv) * projected
