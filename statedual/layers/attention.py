"""Softmax attention with grouped heads (GQA), rotary positions, sliding window and short convolution.

The mixer of the paper's Transformer++ and of its hybrids (sec. 9.2.3), and with a window the local attention of Based.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from statedual.checks import require_positive, require_sizes
from statedual.layers.conv import CausalConv1d
from statedual.layers.positions import lengths, positions
from statedual.layers.rotary import rotate
from statedual.shapes import Offsets
from statedual.ssd.inputs import check_offsets_shape, read_offsets

# Queries that share one mask. Masks are (block, slots), so that memory is linear in time.
_BLOCK = 256

Slots: TypeAlias = Float[Tensor, "rows slots kv_heads head_dim"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """What a block of attention is made of.

    heads, kv_heads: heads of q, and of k and v (None: as many); query head i reads i // (heads / kv_heads).
    head_dim: width of a head (None: d_model / heads).    scale: of q . k (None: head_dim^(-1/2)).
    rotary_dim: how much of every head is rotated (None: all of it, 0: nothing), with angles from ``rotary_base``.
    window: position t sees t - window + 1 .. t (None: all up to t).
    conv_width: of a causal convolution over q, k and v, without activation and before the rotation; 0 is none.
    """

    kind: ClassVar[str] = "attention"

    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None
    rotary_base: float = 10000.0
    window: int | None = None
    conv_width: int = 0
    conv_bias: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    scale: float | None = None

    def __post_init__(self) -> None:
        require_positive("heads", self.heads)
        for name in ("kv_heads", "head_dim", "window"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        if self.conv_width != 0:
            require_positive("conv_width", self.conv_width)
        if self.rotary_dim is not None:
            _require_pairs(self.rotary_dim, self.head_dim)
        for name in ("rotary_base", "scale"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value!r}, expected a positive number")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads is {self.kv_heads}, expected a divisor of the {self.heads} heads")

    def build(self, d_model: int) -> Attention:
        """The block for a residual stream of ``d_model``."""
        return Attention(d_model, self)


def _require_pairs(rotary_dim: int, head_dim: int | None) -> None:
    """``rotary_dim`` numbers of a head can be turned in pairs."""
    if rotary_dim % 2 or not 0 <= rotary_dim <= (rotary_dim if head_dim is None else head_dim):
        up_to = "" if head_dim is None else f" up to head_dim {head_dim}"
        raise ValueError(f"rotary_dim is {rotary_dim}, expected an even number{up_to}; 0 means no rotation")


class AttentionState(NamedTuple):
    """All keys and values so far: those of position s lie in slot s, and the slots from ``length`` on are free.

    Keys are rotated. ``conv`` are the last inputs of the convolution over q | k | v, oldest first.
    """

    keys: Slots
    values: Slots
    length: Int[Tensor, " rows"]
    conv: Float[Tensor, "rows history channels"]

    @property
    def longest(self) -> int:
        """Length of the longest row. (On an accelerator it has to be waited for.)"""
        return int(self.length.max()) if len(self.length) else 0

    def with_room(self, tokens: int, longest: int | None = None) -> AttentionState:
        """A state that ``step`` can take ``tokens`` times: this one if it has the slots, or one half as large again.

        Either takes the place of this one, with which it shares memory. ``longest`` is that of the state, if known.
        """
        capacity, longest = self.keys.shape[1], self.longest if longest is None else longest
        if longest > capacity:
            raise ValueError(
                f"state has length {longest} and {capacity} slots: a step has put its last keys into a larger copy, "
                "which it returned; go on with the state that step returns"
            )
        if longest + tokens <= capacity:
            return self
        more = max(longest + tokens - capacity, (capacity + 1) // 2)
        return self._replace(keys=_grown(self.keys, more), values=_grown(self.values, more))


class WindowState(NamedTuple):
    """The keys and values of the last ``window`` positions, newest last, and how many positions there were.

    Sequences that are shorter than the window leave the first slots free.
    """

    keys: Slots
    values: Slots
    length: Int[Tensor, " rows"]
    conv: Float[Tensor, "rows history channels"]

    def with_room(self, tokens: int, longest: int | None = None) -> WindowState:  # noqa: ARG002 - the same for both
        """This one: a window never grows."""
        return self


class Attention(nn.Module):
    """u -> y, (batch, time, model) to itself.

    q, k, v = conv(in_proj(u))      y_t = sum_s softmax_s(scale * R_t q_t . R_s k_s) v_s      out_proj(y)

    over s in t - window + 1 .. t, R_t the rotation by the angles of position t.
    """

    def __init__(self, d_model: int, config: AttentionConfig) -> None:
        super().__init__()
        require_positive("d_model", d_model)
        self.d_model, self.config = d_model, config
        if config.head_dim is None and d_model % config.heads:
            raise ValueError(f"d_model is {d_model}, expected a multiple of the {config.heads} heads; or give head_dim")
        self.heads, self.kv_heads = config.heads, config.kv_heads or config.heads
        self.head_dim = config.head_dim or d_model // config.heads
        self.rotary_dim = self.head_dim if config.rotary_dim is None else config.rotary_dim
        _require_pairs(self.rotary_dim, self.head_dim)
        self.scale = self.head_dim**-0.5 if config.scale is None else config.scale
        channels = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.in_proj = nn.Linear(d_model, channels, bias=config.qkv_bias)
        self.conv1d = CausalConv1d(channels, config.conv_width, config.conv_bias)
        self.out_proj = nn.Linear(self.heads * self.head_dim, d_model, bias=config.out_bias)

    def init_state(self, rows: int) -> AttentionState | WindowState:
        """Before the first token: no slots, or a window of free ones."""
        like = self.in_proj.weight
        slots = like.new_zeros(rows, self.config.window or 0, self.kv_heads, self.head_dim)
        length = torch.zeros(rows, dtype=torch.int64, device=like.device)
        return self._state(slots, slots.clone(), length, self.conv1d.init_state(rows, like))

    def forward(
        self,
        u: Float[Tensor, "batch time model"],
        state: AttentionState | WindowState | None = None,
        cu_seqlens: Offsets | None = None,
    ) -> tuple[Float[Tensor, "batch time model"], AttentionState | WindowState]:
        """Every sequence from its state (None: from the beginning), and the states behind them."""
        batch, time, _ = u.shape
        if cu_seqlens is not None:
            check_offsets_shape(cu_seqlens, batch)
        offsets = read_offsets(cu_seqlens, time)
        rows = batch if offsets is None else len(offsets) - 1
        nothing = torch.zeros(rows, dtype=torch.int64, device=u.device)
        conv, length = (None, nothing) if state is None else (state.conv, state.length)
        if state is not None:
            self._check_state(state, rows)
        qkv, conv = self.conv1d(self.in_proj(u), conv, cu_seqlens)
        # Without a state all rows of a batch have the same angles.
        own = length[:1] if state is None and offsets is None else length
        q, k, v = self._heads(qkv, positions(time, own, cu_seqlens))
        if offsets is None:
            y, keys, values = self._attend(q, k, v, state)
        else:
            y, keys, values = self._attend_packed(q, k, v, state, offsets)
        after = lengths(time, length, cu_seqlens)
        return self.out_proj(y.flatten(2)), self._state(keys, values, after, conv)

    def step(
        self, u: Float[Tensor, "batch model"], state: AttentionState | WindowState
    ) -> Float[Tensor, "batch model"]:
        """One token; ``state``, which has a free slot for it, is updated in place."""
        self._check_state(state, u.shape[0])
        keys, values, after, conv = state
        length = after.clone()  # what indexes must not change under autograd
        rows, slots = keys.shape[:2]
        q, k, v = self._heads(self.conv1d.step(self.in_proj(u), conv)[:, None], length[:, None])
        slot = torch.arange(slots, device=u.device)
        if self.config.window is None:
            row = torch.arange(rows, device=u.device)
            keys[row, length], values[row, length] = k[:, 0].to(keys.dtype), v[:, 0].to(values.dtype)
            seen = slot <= length[:, None]
        else:
            keys.copy_(torch.cat([keys[:, 1:], k.to(keys.dtype)], dim=1))
            values.copy_(torch.cat([values[:, 1:], v.to(values.dtype)], dim=1))
            seen = slot >= slots - 1 - length[:, None]
        after.add_(1)
        # The heads that share keys as so many queries of one head, so that each key is read once: a bfloat16 token over
        # 4096 keys took 4.5 ms on one CPU core, and 43 ms head by head (32 heads on 8, of width 128).
        together = q[:, 0].unflatten(1, (self.kv_heads, -1)).transpose(1, 2).to(keys.dtype)
        y = _softmax_attention(together, keys, values, self.scale, seen[:, None]).transpose(1, 2)
        projected: Tensor = self.out_proj(y.to(q.dtype).flatten(1))
        return projected

    def _check_state(self, state: AttentionState | WindowState, rows: int) -> None:
        for name in ("keys", "values"):
            wanted = {
                "rows": rows,
                "slots": self.config.window,
                "kv_heads": self.kv_heads,
                "head_dim": self.head_dim,
            }
            require_sizes(f"{name} of state", getattr(state, name), wanted, "this block")

    def _state(self, keys: Tensor, values: Tensor, length: Tensor, conv: Tensor) -> AttentionState | WindowState:
        kind = AttentionState if self.config.window is None else WindowState
        return kind(keys, values, length, conv)

    def _heads(
        self, qkv: Float[Tensor, "batch time channels"], where: Int[Tensor, "#batch time"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (batch, time, heads, head_dim), k and v (batch, time, kv_heads, head_dim); q and k rotated."""
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        qk, v = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        if self.rotary_dim:
            qk = rotate(qk, where, self.rotary_dim, self.config.rotary_base)
        q, k = qk.split([self.heads, self.kv_heads], dim=2)
        return q, k, v

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, past: AttentionState | WindowState | None
    ) -> tuple[Tensor, Slots, Slots]:
        """Rows side by side: y (rows, time, heads, head_dim), and the slots of keys and values behind them."""
        window, (rows, time) = self.config.window, q.shape[:2]
        new = torch.arange(time, device=q.device)
        if past is None:
            if window is None or window >= time:
                y = _softmax_attention(q, k, v, self.scale, None)
            else:
                y = _by_blocks(q, k, v, new[None], new[None], window, self.scale)
            return y, _kept(k, window), _kept(v, window)
        dtype, length = past.keys.dtype, past.length[:, None]
        here = length + new
        if window is None:
            row = torch.arange(rows, device=q.device)[:, None]
            keys, values = _grown(past.keys, time), _grown(past.values, time)
            keys[row, here], values[row, here] = k.to(dtype), v.to(dtype)
            there = torch.arange(keys.shape[1], device=q.device)[None]
            return _by_blocks(q.to(dtype), keys, values, here, there, None, self.scale).to(q.dtype), keys, values
        keys, values = torch.cat([past.keys, k.to(dtype)], dim=1), torch.cat([past.values, v.to(dtype)], dim=1)
        there = length + torch.arange(-window, time, device=q.device)
        y = _by_blocks(q.to(dtype), keys, values, here, there, window, self.scale)
        return y.to(q.dtype), _kept(keys, window), _kept(values, window)

    def _attend_packed(
        self, q: Tensor, k: Tensor, v: Tensor, past: AttentionState | WindowState | None, offsets: list[int]
    ) -> tuple[Tensor, Slots, Slots]:
        """Sequences behind one another: each by itself, with no more slots than it has positions."""
        lengths_before = [0] * (len(offsets) - 1) if past is None else past.length.tolist()
        ys, all_keys, all_values = [q[:, :0]], [k[:0, :0]], [v[:0, :0]]
        for row, (start, stop) in enumerate(itertools.pairwise(offsets)):
            own, piece = None, slice(start, stop)
            if past is not None and lengths_before[row]:
                one, used = slice(row, row + 1), slice(self.config.window or lengths_before[row])
                own = past._replace(keys=past.keys[one, used], values=past.values[one, used], length=past.length[one])
            y, keys, values = self._attend(q[:, piece], k[:, piece], v[:, piece], own)
            ys.append(y)
            all_keys.append(keys)
            all_values.append(values)
        capacity = max(keys.shape[1] for keys in all_keys)
        all_keys, all_values = (
            [_grown(slots, capacity - slots.shape[1]) for slots in parts] for parts in (all_keys, all_values)
        )
        return torch.cat(ys, dim=1), torch.cat(all_keys), torch.cat(all_values)


def _by_blocks(
    q: Float[Tensor, "rows time heads head_dim"],
    keys: Slots,
    values: Slots,
    here: Int[Tensor, "#rows time"],
    there: Int[Tensor, "#rows slots"],
    window: int | None,
    scale: float,
) -> Float[Tensor, "rows time heads head_dim"]:
    """Softmax attention of the queries at positions ``here`` over the keys at ``there`` that each may see.

    Those are 0 <= there <= here, and here - window < there. Query t finds them among the slots up to slots - time + t,
    and with a window among the last ``window`` of these. Memory is linear in time and in slots.
    """
    time, before = q.shape[1], keys.shape[1] - q.shape[1]

    def block(first: int, last: int) -> Float[Tensor, "rows block heads head_dim"]:
        reached = slice(0 if window is None else max(before + first - window + 1, 0), before + last)
        seen = _visible(here[:, first:last], there[:, reached], window)
        return _softmax_attention(q[:, first:last], keys[:, reached], values[:, reached], scale, seen)

    if torch.compiler.is_compiling():
        # Here, for the import takes a quarter of a second.
        from torch.fx.experimental.symbolic_shapes import has_static_value

        if not has_static_value(time):  # a compiler cannot walk blocks that it cannot count
            return block(0, time)
    # For the gradient PyTorch keeps every mask, in all (time, slots) where no window bounds them. Making a block once
    # more is cheaper to hold.
    again = window is None and torch.is_grad_enabled()
    ys = [q[:, :0]]
    for first in range(0, time, _BLOCK):
        last = min(first + _BLOCK, time)
        ys.append(
            checkpoint(block, first, last, use_reentrant=False, preserve_rng_state=False)
            if again
            else block(first, last)
        )
    return torch.cat(ys, dim=1)


def _visible(
    here: Int[Tensor, "#rows time"], there: Int[Tensor, "#rows slots"], window: int | None
) -> Bool[Tensor, "rows time slots"]:
    """Which keys, at positions ``there`` (negative: a free slot), the queries at positions ``here`` may see."""
    distance = here[:, :, None] - there[:, None, :]
    seen = (distance >= 0) & (there >= 0)[:, None, :]
    return seen if window is None else seen & (distance < window)


def _softmax_attention(
    q: Float[Tensor, "rows time heads head_dim"],
    keys: Slots,
    values: Slots,
    scale: float,
    seen: Bool[Tensor, "#rows #time slots"] | None,
) -> Float[Tensor, "rows time heads head_dim"]:
    """PyTorch's own, over the keys that are ``seen`` (None: query t sees the keys up to t)."""
    return functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=None if seen is None else seen[:, None],
        is_causal=seen is None,
        scale=scale,
        enable_gqa=keys.shape[2] < q.shape[2],
    ).transpose(1, 2)


def _kept(slots: Slots, window: int | None) -> Float[Tensor, "rows kept kv_heads head_dim"]:
    """The last ``window`` slots (free ones before them if there are fewer), or all of them, in memory of their own."""
    # A view would keep all of what it is a part of, the queries among it, and a step may write to what is kept.
    if window is None:
        return slots.clone(memory_format=torch.contiguous_format)
    return functional.pad(slots, (0, 0, 0, 0, window - slots.shape[1], 0))


def _grown(slots: Slots, more: int) -> Float[Tensor, "rows capacity kv_heads head_dim"]:
    """A copy with ``more`` free slots behind."""
    return functional.pad(slots, (0, 0, 0, 0, 0, more))
