"""The axis legend: every letter that appears in a shape, once.

    batch     b   sequences side by side           heads     h   SSM heads, as many as ``log_a`` has
    time      t   target position                  head_dim  p   P, channels of a head
    source    s   source position                  state     n   N, state expansion
    chunk     c   chunk of a sequence              groups    g   heads that share one x, b or c
    pos       l   position inside a chunk (Q)      model     d   residual width D

Signatures carry these names through jaxtyping. They are checked under pytest only (``--jaxtyping-packages`` in
``pyproject.toml``), so a user never pays for them.
"""

from typing import TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

X: TypeAlias = Float[Tensor, "batch time heads_x head_dim"]
LogA: TypeAlias = Float[Tensor, "batch time heads"]
B: TypeAlias = Float[Tensor, "batch time heads_b state"]
C: TypeAlias = Float[Tensor, "batch time heads_c state"]
Y: TypeAlias = Float[Tensor, "batch time heads head_dim"]
State: TypeAlias = Float[Tensor, "sequences heads head_dim state"]
"""One state a sequence: ``sequences`` is ``batch``, or the number of packed sequences."""
DiagonalLogA: TypeAlias = Float[Tensor, "batch time heads state"]
Offsets: TypeAlias = Int[Tensor, " offsets"]
"""``cu_seqlens``: num_seqs + 1 offsets, the first 0, the last ``time``."""
