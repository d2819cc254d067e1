"""The peer of every benchmark of ``ssd``: the paper's Listing 1, operation for operation, in our own words."""

import math

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from statedual.shapes import B, C, LogA, X, Y

States = Float[Tensor, "batch heads head_dim state"]


def listing_1(
    x: X, log_a: LogA, b: B, c: C, block_len: int = 64, initial_states: States | None = None
) -> tuple[Y, States]:
    """Minimal SSD in einsums (Dao and Gu 2024, Listing 1), with the operations and intermediates the paper has.

    As there, ``b`` and ``c`` are already broadcast to all heads, and time is a multiple of ``block_len``.

    Returns:
        y as ``x``, and the final state.

    """
    if x.shape[1] % block_len:
        raise ValueError(f"time is {x.shape[1]}, expected a multiple of block_len {block_len}")
    x, log_a, b, c = (rearrange(t, "b (k l) ... -> b k l ...", l=block_len) for t in (x, log_a, b, c))
    log_a = rearrange(log_a, "b k l h -> b h k l")
    sums = torch.cumsum(log_a, -1)

    # Diagonal blocks: every pair of positions in a block.
    y_diagonal = torch.einsum("bklhn,bkshn,bhkls,bkshp->bklhp", c, b, torch.exp(segsum(log_a)), x)

    # Right factors: what each block adds to the state at its end.
    states = torch.einsum("bklhn,bhkl,bklhp->bkhpn", b, torch.exp(sums[..., -1:] - sums), x)

    # Center factors: the true states at the borders, by a matrix over all pairs of blocks.
    first = torch.zeros_like(states[:, 0]) if initial_states is None else initial_states
    between = torch.exp(segsum(pad(sums[..., -1], (1, 0))))
    states = torch.einsum("bhzk,bkhpn->bzhpn", between, torch.cat([first.unsqueeze(1), states], 1))
    states, final_state = states[:, :-1], states[:, -1]

    # Left factors: what the state at the start of a block gives to its outputs.
    y_state = torch.einsum("bklhn,bkhpn,bhkl->bklhp", c, states, torch.exp(sums))
    return rearrange(y_diagonal + y_state, "b k l h p -> b (k l) h p"), final_state


def segsum(log_a: Float[Tensor, "*batch time"]) -> Float[Tensor, "*batch time source"]:
    """log_a[s+1] + ... + log_a[t] at (t, s) as a difference of two cumulative sums, and -inf above the diagonal."""
    sums = torch.cumsum(log_a, -1)
    above = torch.ones(2 * log_a.shape[-1:], dtype=torch.bool, device=log_a.device).triu(1)
    return (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(above, -math.inf)
