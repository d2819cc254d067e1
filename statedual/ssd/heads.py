"""The one rule of heads (sec. 7.2): head i reads group i // (heads / groups)."""

from jaxtyping import Float
from torch import Tensor


def spread(tensor: Float[Tensor, "batch groups *rest"], heads: int) -> Float[Tensor, "batch heads *rest"]:
    """Each group repeated for its heads: a view where a view can say it, one token's copy where not."""
    groups = tensor.shape[1]
    share = heads // groups
    return tensor.unsqueeze(2).expand(-1, -1, share, *tensor.shape[2:]).flatten(1, 2)
