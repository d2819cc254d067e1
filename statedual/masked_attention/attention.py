"""Structured masked attention, one function and its two contraction orders (sec. 4)."""

from collections.abc import Callable
from functools import reduce
from typing import Literal

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from statedual.checks import require_choice, require_floating, require_one_device
from statedual.masked_attention.mask import Mask, narrow


def kernel_attention(
    q: Float[Tensor, "*#batch time state"],
    k: Float[Tensor, "*#batch source state"],
    v: Float[Tensor, "*#batch source head_dim"],
    f: Callable[[Tensor], Tensor],
) -> Float[Tensor, "*#batch time head_dim"]:
    """Attention with any function of the Gram matrix: Y = f(Q K^T) V (`eq:kernel-attention`).

    f = softmax over the sources is softmax attention (sec. 2.2). The paper's last line reads Y = G V; it means M V.
    """
    _require_attention(q, k, v, None)
    dtype = v.dtype
    q, k, v = _promoted(q, k, v)
    return (f(q @ k.mT) @ v).to(dtype)


def structured_attention(
    q: Float[Tensor, "*#batch time state"],
    k: Float[Tensor, "*#batch source state"],
    v: Float[Tensor, "*#batch source head_dim"],
    mask: Mask | None,
    *,
    form: Literal["linear", "quadratic"] = "linear",
) -> Inexact[Tensor, "*#batch time head_dim"]:
    """Structured masked attention (`def:sma`): one contraction of four tensors, Y = (L ∘ Q K^T) V.

        Y = contract(TN, SN, SP, TS -> TP)(Q, K, V, L)                              (`eq:sha`)

        quadratic (`eq:sha-quad`)              linear (`eq:sha-lin`)
        G = contract(TN, SN -> TS)(Q, K)       Z = contract(SP, SN -> SPN)(V, K)
        M = contract(TS, TS -> TS)(G, L)       H = contract(TS, SPN -> TPN)(L, Z)
        Y = contract(TS, SP -> TP)(M, V)       Y = contract(TN, TPN -> TP)(Q, H)

    Both forms are the same function. The quadratic one costs T S (N + P) and stores (T, S); the linear one stores Z and
    H of (T, P, N) and costs P N products with the mask, each in the mask's own time. Feature maps are applied to q and
    k beforehand. ``mask=None`` is the mask of ones, where the linear form is Q (K^T V).

    Batch axes broadcast. y has v's dtype, or is complex where the mask is.
    """
    require_choice("form", form, ("linear", "quadratic"))
    _require_attention(q, k, v, mask)
    dtype = v.dtype
    q, k, v = _promoted(q, k, v)
    if form == "quadratic":
        g = q @ k.mT
        m = g if mask is None else mask.hadamard(g)
        return narrow(m @ v.to(m.dtype), dtype)
    if mask is None:
        return narrow(q @ (k.mT @ v), dtype)
    z = v[..., :, None] * k[..., None, :]
    h = mask.matmul(z.flatten(-2))
    h = h.reshape(*h.shape[:-1], *z.shape[-2:])
    return narrow(torch.einsum("...tn,...tpn->...tp", q.to(h.dtype), h), dtype)


def normalised_attention(
    q: Float[Tensor, "*#batch time state"],
    k: Float[Tensor, "*#batch source state"],
    v: Float[Tensor, "*#batch source head_dim"],
    mask: Mask | None,
    *,
    form: Literal["linear", "quadratic"] = "linear",
    eps: float = 1e-12,
) -> Float[Tensor, "*#batch time head_dim"]:
    """Structured masked attention whose rows sum to one: Y = M V / (M 1), M = L ∘ Q K^T (sec. 4.1.3, 7.3).

    One pass: the column of ones goes along with v. Every entry of M must be nonnegative, so q and k come from a feature
    map whose products are (see ``feature_maps``), and the mask is nonnegative. A row that weighs less than ``eps`` in
    all is divided by ``eps``: a row of zeros gives zero, with finite gradients.
    """
    _require_attention(q, k, v, mask)
    dtype = v.dtype
    q, k, v = _promoted(q, k, v)
    ones = v.new_ones(*v.shape[:-1], 1)
    y = structured_attention(q, k, torch.cat([v, ones], dim=-1), mask, form=form)
    if y.is_complex():
        raise ValueError(
            f"mask is {type(mask).__name__}, whose entries are complex, expected one with nonnegative entries; "
            "use structured_attention, which does not normalise"
        )
    return (y[..., :-1] / y[..., -1:].clamp(min=eps)).to(dtype)


def _promoted(*tensors: Tensor) -> list[Tensor]:
    """All in one dtype, at least float32."""
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
    return [tensor.to(dtype) for tensor in tensors]


def _require_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> None:
    require_floating(q=q, k=k, v=v)
    if mask is not None and not isinstance(mask, Mask):
        raise ValueError(f"mask is {mask!r:.60}, expected a Mask such as Causal(), Dense(matrix), or None for all ones")
    require_one_device(q=q, k=k, v=v, **(mask.tensors() if mask is not None else {}))
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"q has shape {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, expected "
            "q (*batch, time, state), k (*batch, source, state), v (*batch, source, head_dim)"
        )
    batches = {"q": q.shape[:-2], "k": k.shape[:-2], "v": v.shape[:-2]}
    if mask is not None:
        mask.require_lengths(q.shape[-2], k.shape[-2])
        batches["mask"] = mask.batch
    try:
        torch.broadcast_shapes(*batches.values())
    except RuntimeError as error:
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in batches.items())
        raise ValueError(f"batch axes are {shapes}, expected shapes that broadcast; add axes of size 1") from error
