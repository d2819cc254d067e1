"""Kernel feature maps: phi with phi(q) . phi(k) in the place of exp(q . k) (sec. 4.1.3 and 7.3, tables of sec. 9.4).

Each acts on the last axis, (*batch, time, state) to (*batch, time, features), and is applied to q and k before
``structured_attention``.

    map                        features    phi(q) . phi(k)                       sign of the products
    identity                   N           q . k                                 any
    swish                      N                                                 any
    relu                       N                                                 >= 0
    exp                        N                                                 > 0
    elu                        N                                                 > 0
    cosformer                  2 N         relu(q_t) . relu(k_s) cos(t - s)      >= 0
    random_features            2 F         about exp(-|q - k|^2 / 2)             any
    positive_random_features   2 F         about exp(q . k)                      > 0
    taylor                     1 + N + N^2 1 + q . k + (q . k)^2 / 2             > 0
    layer_norm                 N                                                 any
    squared_layer_norm         N^2         (norm(q) . norm(k))^2                 >= 0

``normalised_attention`` can divide wherever the products are nonnegative. A temperature is the caller's: softmax
attention's 1 / sqrt(N) is q and k times N^(-1/4) each.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from statedual.checks import require_floating, require_one_device, require_positive, require_sizes
from statedual.masked_attention.mask import widen


def identity(x: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    """phi(x) = x: no feature map, the "none" of the paper's ablation."""
    return x


def swish(x: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    """phi(x) = x sigmoid(x), also known as SiLU: Mamba-2's default (Ramachandran et al. 2017)."""
    return functional.silu(x)


def exp(x: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    """phi(x) = exp(x), elementwise. Positive."""
    return x.exp()


def relu(x: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    """phi(x) = max(x, 0). Nonnegative: a row of products may be all zero."""
    return x.relu()


def elu(x: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
    """phi(x) = 1 + elu(x) = exp(min(x, 0)) + max(x, 0): Linear Attention (Katharopoulos et al. 2020). Positive."""
    # Not 1 + elu(x), which rounds exp(x) away below one ulp of 1 and would be zero there.
    wide = widen(x)
    return (wide.clamp(max=0).exp() + wide.relu()).to(x.dtype)


def cosformer(
    x: Float[Tensor, "*batch time state"],
    *,
    length: int | None = None,
    positions: Int[Tensor, "*#batch time"] | None = None,
) -> Float[Tensor, "*batch time features"]:
    """phi(x_t) = (relu(x_t) cos(pi t / 2T), relu(x_t) sin(pi t / 2T)): cosFormer (Qin et al. 2022). Nonnegative.

    So phi(q_t) . phi(k_s) = relu(q_t) . relu(k_s) cos(pi (t - s) / 2T), which favours near positions. T is ``length``,
    the longest sequence there will be; by default the length of x. ``positions`` are the t, by default 0, 1, 2, ...
    The paper writes (x cos, sin), without the relu and without x in the second half; this is cosFormer's own.
    """
    time = x.shape[-2]
    length = max(time, 1) if length is None else length
    require_positive("length", length)
    if positions is None and time > length:
        raise ValueError(f"length is {length}, expected at least {time}, the time of x; cosines would turn negative")
    wide = widen(x).relu()
    steps = torch.arange(time, device=x.device) if positions is None else positions
    angle = steps[..., None].to(wide.dtype) * (math.pi / (2 * length))
    return torch.cat([wide * angle.cos(), wide * angle.sin()], dim=-1).to(x.dtype)


def draw_projection(
    features: int,
    state: int,
    *,
    orthogonal: bool = False,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Float[Tensor, "features state"]:
    """The W of the random features: rows w ~ N(0, I), (features, state).

    ``orthogonal=True`` draws them at right angles in groups of ``state``, each still N(0, I) by itself (the "O" of
    FAVOR+, Choromanski et al. 2021): the same mean with less variance.
    """
    require_positive("features", features)
    require_positive("state", state)
    w = torch.randn(features, state, generator=generator, dtype=dtype, device=device)
    if not orthogonal:
        return w
    groups = torch.randn(-(-features // state), state, state, generator=generator, dtype=dtype, device=device)
    q, r = torch.linalg.qr(widen(groups))
    # A QR decomposition fixes the signs of its columns; R's diagonal gives them back, so that q is uniform.
    directions: Tensor = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]).mT.flatten(0, 1)[:features]
    return (directions * widen(w).square().sum(-1, keepdim=True).sqrt()).to(w.dtype)


def _project(x: Float[Tensor, "*batch state"], w: Float[Tensor, "random state"]) -> Float[Tensor, "*batch random"]:
    require_floating(w=w)
    require_one_device(x=x, w=w)
    require_sizes("w", w, {"random": None, "state": x.shape[-1]}, "x")
    return x @ w.to(x.dtype).mT


def random_features(
    x: Float[Tensor, "*batch state"], w: Float[Tensor, "random state"]
) -> Float[Tensor, "*batch features"]:
    """phi(x) = F^(-1/2) (cos(W x), sin(W x)): Random Feature Attention (Peng et al. 2021), W (F, state).

    For w ~ N(0, I), E phi(q) . phi(k) = exp(-|q - k|^2 / 2), which is exp(q . k) / e for q and k of unit length. The
    estimate may be negative.
    """
    projected = _project(widen(x), w)
    return (torch.cat([projected.cos(), projected.sin()], dim=-1) / math.sqrt(w.shape[0])).to(x.dtype)


def positive_random_features(
    x: Float[Tensor, "*batch state"], w: Float[Tensor, "random state"]
) -> Float[Tensor, "*batch features"]:
    """phi(x) = exp(-|x|^2 / 2) (2F)^(-1/2) (exp(W x), exp(-W x)): Performer (Choromanski et al. 2021), W (F, state).

    For w ~ N(0, I), E phi(q) . phi(k) = exp(q . k). Positive. The paper's 2^(-1/2) (exp, exp) leaves the first factor
    out, without which the mean would be exp(q . k) exp((|q|^2 + |k|^2) / 2).
    """
    wide = widen(x)
    projected = _project(wide, w)
    half_square = wide.square().sum(-1, keepdim=True) / 2
    # One exponent: exp(-|x|^2 / 2) and exp(W x) may under- and overflow where their product does not.
    features = torch.cat([projected - half_square, -projected - half_square], dim=-1).exp()
    return (features / math.sqrt(2 * w.shape[0])).to(x.dtype)


def taylor(x: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch features"]:
    """phi(x) = (1, x, x ⊗ x / sqrt 2), N to 1 + N + N^2 features: Based (Arora et al. 2024; app. D).

    phi(q) . phi(k) = 1 + q . k + (q . k)^2 / 2, the second-order Taylor polynomial of exp(q . k), which is positive
    though the features are not.
    """
    wide = widen(x)
    square = (wide[..., :, None] * wide[..., None, :]).flatten(-2) / math.sqrt(2)
    return torch.cat([wide.new_ones(*wide.shape[:-1], 1), wide, square], dim=-1).to(x.dtype)


def layer_norm(
    x: Float[Tensor, "*batch state"],
    weight: Float[Tensor, " state"] | None = None,
    bias: Float[Tensor, " state"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch state"]:
    """phi(x) = weight (x - mean) / sqrt(variance + eps) + bias over the state axis, so per head (sec. 9.4)."""
    wide = widen(x)
    weight = None if weight is None else weight.to(wide.dtype)
    bias = None if bias is None else bias.to(wide.dtype)
    return functional.layer_norm(wide, x.shape[-1:], weight, bias, eps).to(x.dtype)


def squared_layer_norm(
    x: Float[Tensor, "*batch state"],
    weight: Float[Tensor, " state"] | None = None,
    bias: Float[Tensor, " state"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch features"]:
    """phi(x) = n ⊗ n with n = layer_norm(x), N to N^2 features: ReBased (Aksenov et al. 2024; app. D).

    phi(q) . phi(k) = (n_q . n_k)^2 >= 0: the quadratic kernel, whose minimum the weight and bias can move.
    """
    normed = layer_norm(widen(x), weight, bias, eps=eps)
    return (normed[..., :, None] * normed[..., None, :]).flatten(-2).to(x.dtype)
