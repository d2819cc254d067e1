"""The gated MLP between mixers (SwiGLU), a block of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from statedual.checks import require_positive
from statedual.shapes import Offsets


@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """``hidden`` channels inside (None: 8/3 d_model, rounded up to a multiple of 128); ``bias`` on both projections."""

    kind: ClassVar[str] = "mlp"

    hidden: int | None = None
    bias: bool = False

    def __post_init__(self) -> None:
        if self.hidden is not None:
            require_positive("hidden", self.hidden)

    def build(self, d_model: int) -> GatedMLP:
        """The block for a residual stream of ``d_model``."""
        return GatedMLP(d_model, self)


class Stateless(NamedTuple):
    """The state of a block that looks at one position at a time: nothing."""


class GatedMLP(nn.Module):
    """u -> fc2(value * silu(gate)), where fc1(u) is value | gate."""

    def __init__(self, d_model: int, config: MLPConfig = MLPConfig()) -> None:
        super().__init__()
        require_positive("d_model", d_model)
        self.d_model, self.config = d_model, config
        self.hidden = config.hidden or -(-8 * d_model // (3 * 128)) * 128
        self.fc1 = nn.Linear(d_model, 2 * self.hidden, bias=config.bias)
        self.fc2 = nn.Linear(self.hidden, d_model, bias=config.bias)

    def init_state(self, rows: int) -> Stateless:  # noqa: ARG002 - the same for all blocks
        """Nothing."""
        return Stateless()

    def forward(
        self,
        u: Float[Tensor, "batch time model"],
        state: Stateless | None = None,  # noqa: ARG002
        cu_seqlens: Offsets | None = None,  # noqa: ARG002
    ) -> tuple[Float[Tensor, "batch time model"], Stateless]:
        """Every position by itself."""
        return self._apply_to(u), Stateless()

    def step(self, u: Float[Tensor, "batch model"], state: Stateless) -> Float[Tensor, "batch model"]:  # noqa: ARG002
        """One token."""
        return self._apply_to(u)

    def _apply_to(self, u: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        value, gate = self.fc1(u).chunk(2, dim=-1)
        y: Tensor = self.fc2(value * functional.silu(gate))
        return y
