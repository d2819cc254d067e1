"""A feature map as part of a layer: those of ``statedual.feature_maps`` by name, with what they learn or draw."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from statedual.checks import require_choice
from statedual.masked_attention import feature_maps

ELEMENTWISE = {
    "swish": feature_maps.swish,
    "exp": feature_maps.exp,
    "relu": feature_maps.relu,
    "elu": feature_maps.elu,
}
NAMES = (
    *ELEMENTWISE,
    "cosformer",
    "random_features",
    "positive_random_features",
    "taylor",
    "layer_norm",
    "squared_layer_norm",
)


# phi(q) . phi(k) is never negative where one of these comes last, so that sums of weights can be divided by.
NONNEGATIVE = ("exp", "relu", "elu", "cosformer", "positive_random_features", "taylor", "squared_layer_norm")


def check_normaliser(feature_map: tuple[str, ...]) -> None:
    """The maps whose products a layer divides by the sum of."""
    if feature_map[-1:] not in [(name,) for name in NONNEGATIVE]:
        raise ValueError(
            f"feature_map is {feature_map!r}, expected one that ends with {', '.join(NONNEGATIVE)}, whose "
            "products are nonnegative, so that their sum can be divided by; or use normaliser=False"
        )


def check_names(argument: str, names: tuple[str, ...], choices: tuple[str, ...] = NAMES) -> None:
    """``names`` is a tuple of known maps."""
    if not isinstance(names, tuple):
        raise ValueError(f"{argument} is {names!r}, expected a tuple of names such as ('swish',); () is the identity")
    for name in names:
        require_choice(argument, name, choices)


def width(name: str, size: int) -> int:
    """How many features the map ``name`` makes of ``size``."""
    if name == "cosformer":
        return 2 * size
    if name == "taylor":
        return 1 + size + size * size
    return size * size if name == "squared_layer_norm" else size


class FeatureMap(nn.Module):
    """Maps by name, applied from left to right; () is the identity. Each acts on the last axis.

    Random features draw as many rows as keep the size, 2 F = size. layer_norm and squared_layer_norm learn a weight and
    a bias, shared by the heads. ``length`` is cosFormer's T, the farthest two steps may be apart.
    """

    def __init__(self, names: tuple[str, ...], size: int, length: int = 2048) -> None:
        super().__init__()
        check_names("feature_map", names)
        self.names, self.length = names, length
        self.needs_positions = "cosformer" in names
        for index, name in enumerate(names):
            if name in ("random_features", "positive_random_features"):
                if size % 2:
                    raise ValueError(f"{name} gives pairs of features, expected an even size, got {size}")
                self.register_buffer(f"projection{index}", torch.empty(size // 2, size))
            elif name in ("layer_norm", "squared_layer_norm"):
                self.register_parameter(f"weight{index}", nn.Parameter(torch.empty(size)))
                self.register_parameter(f"bias{index}", nn.Parameter(torch.empty(size)))
            size = width(name, size)
        self.features = size
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Norms: weight 1, bias 0. Projections: rows N(0, I), at right angles in groups (FAVOR+'s O)."""
        for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
            with torch.no_grad():
                if name.startswith("projection"):
                    tensor.copy_(feature_maps.draw_projection(*tensor.shape, orthogonal=True, device=tensor.device))
                else:
                    tensor.fill_(1.0 if name.startswith("weight") else 0.0)

    def forward(
        self,
        x: Float[Tensor, "batch time heads size"],
        positions: Int[Tensor, "#batch time"] | None = None,
    ) -> Float[Tensor, "batch time heads features"]:
        """phi(x); ``positions`` of the tokens in their sequences where ``needs_positions``."""
        for index, name in enumerate(self.names):
            if name == "cosformer":
                assert positions is not None
                self._check_positions(positions)
                by_head = feature_maps.cosformer(x.transpose(1, 2), length=self.length, positions=positions[:, None])
                x = by_head.transpose(1, 2)
            elif name in ELEMENTWISE:
                x = ELEMENTWISE[name](x)
            elif name == "taylor":
                x = feature_maps.taylor(x)
            elif name == "random_features":
                x = feature_maps.random_features(x, getattr(self, f"projection{index}"))
            elif name == "positive_random_features":
                x = feature_maps.positive_random_features(x, getattr(self, f"projection{index}"))
            else:
                norm = feature_maps.layer_norm if name == "layer_norm" else feature_maps.squared_layer_norm
                x = norm(x, getattr(self, f"weight{index}"), getattr(self, f"bias{index}"))
        return x

    def _check_positions(self, positions: Int[Tensor, "#batch time"]) -> None:
        # The values would have to be fetched from an accelerator, and cannot be known by a compiler.
        if positions.device.type == "cpu" and not torch.compiler.is_compiling() and positions.numel():
            last = int(positions.max())
            if last >= self.length:
                raise ValueError(
                    f"position is {last}, expected below cosformer_length = {self.length}, beyond which cosines turn "
                    "negative; build the model with a larger one"
                )
