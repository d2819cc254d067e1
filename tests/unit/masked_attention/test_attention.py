"""Structured masked attention: one contraction, two orders, and its normalised variant."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_examples import NAMES, REAL_NAMES, Written, build, example, parameters
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from statedual.masked_attention import (
    Causal,
    Decay,
    Dense,
    Fourier,
    OneSemiseparable,
    Toeplitz,
    feature_maps,
    kernel_attention,
    normalised_attention,
    structured_attention,
)

FORMS = ["linear", "quadratic"]
LENGTHS = st.sampled_from([0, 1, 2, 3, 5, 8, 11])


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def contraction(q: Tensor, k: Tensor, v: Tensor, L: Tensor) -> Tensor:
    """`eq:sha`, all four at once."""
    return torch.einsum("...tn,...sn,...sp,...ts->...tp", *(x.to(L.dtype) for x in (q, k, v)), L)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=10)
@given(
    time=LENGTHS,
    batch=st.sampled_from([(), (3,), (2, 3)]),
    mask_batch=st.sampled_from([(), (1,), (3,)]),
    state=st.integers(0, 3),
    head_dim=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_both_forms_are_the_four_way_contraction(
    form,
    name: str,
    time: int,
    batch: tuple[int, ...],
    mask_batch: tuple[int, ...],
    state: int,
    head_dim: int,
    seed: int,
) -> None:
    """`def:sma`: `eq:sha-quad` and `eq:sha-lin` are two orders of `eq:sha`."""
    torch.manual_seed(seed)
    mask, L = example(name, time, mask_batch)
    batch = torch.broadcast_shapes(batch, mask.batch)
    q, k, v = double(*batch, time, state), double(*batch, time, state), double(*batch, time, head_dim)
    result = structured_attention(q, k, v, mask, form=form)
    torch.testing.assert_close(result, contraction(q, k, v, L), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_batch_axes_broadcast(form) -> None:
    """Keys and values shared by the heads, a decay for each head."""
    gamma = torch.rand(3, dtype=torch.float64)
    q, k, v = double(2, 3, 6, 4), double(2, 1, 6, 4), double(6, 5)
    L = torch.stack([Decay(g).dense(6, dtype=torch.float64) for g in gamma])
    result = structured_attention(q, k, v, Decay(gamma), form=form)
    torch.testing.assert_close(result, contraction(q, k, v, L))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("time", "source"), [(3, 5), (5, 3), (0, 2), (2, 0), (1, 4)])
def test_cross_attention(form, time: int, source: int) -> None:
    """`eq:kernel-attention` has T != S; so have ``Dense`` and no mask at all."""
    q, k, v, L = double(2, time, 4), double(2, source, 4), double(2, source, 3), double(time, source)
    torch.testing.assert_close(structured_attention(q, k, v, Dense(L), form=form), contraction(q, k, v, L))
    truth = contraction(q, k, v, torch.ones_like(L))
    torch.testing.assert_close(structured_attention(q, k, v, None, form=form), truth)


def test_without_a_mask_the_product_is_associative() -> None:
    """Sec. 2.2: (Q K^T) V = Q (K^T V), in time T S and in time T + S."""
    q, k, v = double(64, 2), double(64, 2), double(64, 2)
    with FlopCounterMode(display=False) as linear:
        y = structured_attention(q, k, v, None, form="linear")
    with FlopCounterMode(display=False) as quadratic:
        torch.testing.assert_close(structured_attention(q, k, v, None, form="quadratic"), y)
    assert linear.get_total_flops() == 2 * 2 * 64 * 2 * 2
    assert quadratic.get_total_flops() == 2 * 2 * 64 * 64 * 2


def test_linear_attention_is_queries_times_a_cumulative_sum() -> None:
    """`eq:sha-lin-matrix`: Y = Q cumsum(K^T V) is `eq:sha-quad-matrix`: Y = (L ∘ Q K^T) V."""
    q, k, v = double(9, 3), double(9, 3), double(9, 4)
    states = torch.stack([torch.outer(k[t], v[t]) for t in range(9)]).cumsum(0)
    truth = torch.stack([q[t] @ states[t] for t in range(9)])
    torch.testing.assert_close(structured_attention(q, k, v, Causal(), form="quadratic"), truth)


def test_linear_attention_is_a_recurrence_with_constant_time_per_step() -> None:
    """`prop:linear-attention`, step by step and counted."""
    time = 40
    q, k, v = double(time, 3), double(time, 3), double(time, 4)
    state, rows, costs = torch.zeros(4, 3, dtype=torch.float64), [], []
    for t in range(time):
        with Written() as step:
            state = state + v[t, :, None] * k[t]
            rows.append((state * q[t]).sum(-1))
        costs.append(step.total)
    assert len(set(costs)) == 1
    assert costs[0] < time * time
    for form in FORMS:
        torch.testing.assert_close(structured_attention(q, k, v, Causal(), form=form), torch.stack(rows))


@pytest.mark.parametrize("mask", [Causal(), Decay(torch.tensor(0.9)), Fourier()])
def test_the_linear_form_is_linear_in_time_and_the_quadratic_one_quadratic(mask) -> None:
    """The two orders have the same value and different complexity (sec. 4.3.1)."""

    def written(time: int, form) -> int:
        q = k = v = torch.randn(time, 2)
        with Written() as count:
            structured_attention(q, k, v, mask, form=form)
        return count.total

    assert 1.9 <= written(512, "linear") / written(256, "linear") <= 2.1
    assert 3.8 <= written(512, "quadratic") / written(256, "quadratic") <= 4.1


@pytest.mark.parametrize("form", FORMS)
def test_one_semiseparable_attention_is_an_ssm_with_scalar_times_identity_transitions(form) -> None:
    """`cor:1ss-sma`: the diagonal SSM h_t = A_t h_{t-1} + B_t x_t, y_t = C_t h_t with A_t = a_t I, B = K, C = Q."""
    time, state = 11, 3
    log_a = -torch.rand(time, dtype=torch.float64)
    q, k, v = double(time, state), double(time, state), double(time, 4)
    h, rows = torch.zeros(state, 4, dtype=torch.float64), []
    for t in range(time):
        h = (log_a[t].exp() * torch.eye(state, dtype=torch.float64)) @ h + torch.outer(k[t], v[t])
        rows.append(q[t] @ h)
    torch.testing.assert_close(structured_attention(q, k, v, OneSemiseparable(log_a), form=form), torch.stack(rows))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "forgetting"])
def test_gradients(form, name: str) -> None:
    given = [parameter.requires_grad_() for parameter in parameters(name, 4)]
    q, k, v = (double(4, size).requires_grad_() for size in (2, 2, 3))
    assert torch.autograd.gradcheck(
        lambda q, k, v, *given: structured_attention(q, k, v, build(name, list(given)), form=form), (q, k, v, *given)
    )


@pytest.mark.parametrize("form", FORMS)
def test_forgetting_leaves_all_gradients_finite_and_equal_in_both_forms(form) -> None:
    log_a = torch.tensor([-math.inf, -0.1, -math.inf, -math.inf, -0.2], dtype=torch.float64)
    q, k, v, weight = double(5, 2), double(5, 2), double(5, 3), double(5, 3)
    finite = log_a.clamp(min=-800)  # exp(-800) is zero in float64: the same mask without an infinity

    def gradients(decays: Tensor, form) -> tuple[Tensor, ...]:
        inputs = [x.clone().requires_grad_() for x in (q, k, v, decays)]
        y = structured_attention(*inputs[:3], OneSemiseparable(inputs[3]), form=form)
        return torch.autograd.grad((y * weight).sum(), inputs)

    torch.testing.assert_close(gradients(log_a, form), gradients(finite, "quadratic"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", REAL_NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(form, name: str, dtype: torch.dtype) -> None:
    mask = build(name, [parameter.float() * 0.9 for parameter in parameters(name, 20)])
    q, k, v = (torch.randn(20, 4).to(dtype) for _ in range(3))
    wide = structured_attention(q.float(), k.float(), v.float(), mask, form=form)
    assert torch.equal(structured_attention(q, k, v, mask, form=form), wide.to(dtype))


@pytest.mark.parametrize("form", FORMS)
def test_mixed_precision_returns_the_dtype_of_the_values(form) -> None:
    q, k, v = torch.randn(5, 2), double(5, 2), torch.randn(5, 3).bfloat16()
    truth = structured_attention(q.double(), k, v.double(), Causal(), form=form)
    for mask in (Causal(), None):
        assert structured_attention(q, k, v, mask, form=form).dtype == torch.bfloat16
    assert torch.equal(structured_attention(q, k, v, Causal(), form=form), truth.bfloat16())
    assert structured_attention(q, k, v, Fourier(), form=form).is_complex()


@settings(deadline=None, max_examples=10)
@given(time=st.integers(0, 5), source=st.integers(1, 5), seed=st.integers(0, 99))
def test_softmax_attention_is_the_normalised_exponential_kernel(time: int, source: int, seed: int) -> None:
    """`eq:kernel-attention` with f = softmax (sec. 2.2), and its split into exp and division (sec. 4.1.3)."""
    torch.manual_seed(seed)
    q, k, v = double(time, 2), double(source, 2), double(source, 3)
    truth = torch.zeros(time, 3, dtype=torch.float64)
    for t in range(time):
        weights = [math.exp(q[t] @ k[s]) for s in range(source)]
        truth[t] = sum(weight * v[s] for s, weight in enumerate(weights)) / sum(weights)
    torch.testing.assert_close(kernel_attention(q, k, v, lambda g: g.softmax(-1)), truth)
    numerator = kernel_attention(q, k, v, torch.exp)
    denominator = kernel_attention(q, k, torch.ones_like(v[:, :1]), torch.exp)
    torch.testing.assert_close(numerator / denominator, truth)


def test_the_taylor_map_approaches_softmax_attention_to_third_order() -> None:
    q, k, v = double(6, 4), double(6, 4), double(6, 3)

    def error(size: float) -> float:
        truth = kernel_attention(size * q, k, v, lambda g: g.softmax(-1))
        features = feature_maps.taylor(size * q), feature_maps.taylor(k)
        return float((normalised_attention(*features, v, None) - truth).norm())

    assert error(0.01) < 1e-4
    assert error(0.02) / error(0.01) == pytest.approx(8, rel=0.2)


@pytest.mark.parametrize("phi", [feature_maps.random_features, feature_maps.positive_random_features])
def test_random_features_approach_softmax_attention(phi) -> None:
    """As 1 / sqrt(F). For q and k of unit length the Gaussian kernel is the exponential one up to a constant."""
    q, k = (torch.nn.functional.normalize(double(8, 4), dim=-1) for _ in range(2))
    v = double(8, 3)
    truth = kernel_attention(q, k, v, lambda g: g.softmax(-1))

    def error(features: int) -> float:
        w = feature_maps.draw_projection(features, 4, dtype=torch.float64)
        return float((normalised_attention(phi(q, w), phi(k, w), v, None) - truth).norm() / truth.norm())

    assert error(100_000) < 0.02
    assert error(100_000) < error(100) / 8


PRODUCTS_AT_LEAST_ZERO = {
    "exp": feature_maps.exp,
    "elu": feature_maps.elu,
    "relu": lambda x: feature_maps.relu(x) + 1e-3,
    "cosformer": lambda x: feature_maps.cosformer(x.abs()),
    "positive_random_features": lambda x: feature_maps.positive_random_features(x, torch.eye(x.shape[-1]).to(x)),
    "taylor": feature_maps.taylor,
    "squared_layer_norm": feature_maps.squared_layer_norm,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PRODUCTS_AT_LEAST_ZERO)
@pytest.mark.parametrize(
    "mask",
    [None, Causal(), Decay(torch.tensor(0.9)), OneSemiseparable(-torch.rand(9)), Toeplitz(torch.rand(9) + 0.1)],
    ids=lambda mask: type(mask).__name__,
)
def test_normalised_rows_sum_to_one(form, name: str, mask) -> None:
    """Sec. 4.1.3 and `sec:architecture:kernels`: pass V = 1 and divide, M = G / G 1 1^T."""
    phi = PRODUCTS_AT_LEAST_ZERO[name]
    q, k, v = phi(double(2, 9, 4)), phi(double(2, 9, 4)), double(2, 9, 3)
    L = torch.ones(9, 9, dtype=torch.float64) if mask is None else mask.dense(9, dtype=torch.float64)
    m = L * (q @ k.mT)
    truth = (m / m.sum(-1, keepdim=True)) @ v
    torch.testing.assert_close(normalised_attention(q, k, v, mask, form=form), truth, rtol=1e-9, atol=1e-9)
    ones = torch.ones_like(v)
    torch.testing.assert_close(normalised_attention(q, k, ones, mask, form=form), ones)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_without_weight_is_zero_with_finite_gradients(form) -> None:
    q, k, v = double(4, 2).abs(), double(4, 2).abs(), double(4, 3)
    q[2] = 0
    inputs = [x.requires_grad_() for x in (q, k, v)]
    y = normalised_attention(*inputs, Causal(), form=form)
    assert torch.equal(y[2], torch.zeros(3, dtype=torch.float64))
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(y.sum(), inputs))
    sums = normalised_attention(q, k, torch.ones_like(v), Causal(), form=form)
    torch.testing.assert_close(sums[[0, 1, 3]], torch.ones(3, 3, dtype=torch.float64))


def test_the_denominator_does_not_pass_through_half_precision() -> None:
    """400 equal weights: bfloat16 would round their sum."""
    q = k = torch.ones(401, 1, dtype=torch.bfloat16)
    v = torch.ones(401, 1, dtype=torch.bfloat16)
    assert torch.equal(normalised_attention(q, k, v, Causal()), v)
    wide = normalised_attention(q.float(), k.float(), v.float() * 1.5, Causal())
    assert torch.equal(normalised_attention(q, k, v * 1.5, Causal()), wide.bfloat16())


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_the_normalised_variant(form) -> None:
    q, k, v = double(4, 2).abs().requires_grad_(), double(4, 2).abs().requires_grad_(), double(4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k, v: normalised_attention(q, k, v, Causal(), form=form), (q, k, v))


@pytest.mark.parametrize("name", ["causal", "decay", "one_semiseparable", "toeplitz"])
@pytest.mark.usefixtures("unchecked_shapes")
def test_torch_compile_captures_one_graph(name: str) -> None:
    mask, L = example(name, 6)
    q, k, v = double(6, 2), double(6, 2), double(6, 3)
    compiled = torch.compile(structured_attention, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, mask), contraction(q, k, v, L))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("q", "k", "v", "mask", "message"),
    [
        ((5, 2), (5, 3), (5, 4), Causal(), r"q has shape \(5, 2\), k \(5, 3\), v \(5, 4\), expected q \(\*batch, time"),
        ((5, 2), (4, 2), (5, 4), Causal(), "expected q"),
        ((2,), (5, 2), (5, 4), Causal(), "expected q"),
        ((4, 2), (5, 2), (5, 4), Causal(), r"asked for \(time, source\) = \(4, 5\), expected \(4, 4\)"),
        ((5, 2), (5, 2), (5, 4), OneSemiseparable(torch.zeros(6)), r"= \(5, 5\), expected \(6, 6\)"),
        (
            (2, 5, 2),
            (3, 5, 2),
            (5, 4),
            None,
            r"batch axes are q \(2,\), k \(3,\), v \(\), expected shapes that broadcast",
        ),
        ((2, 5, 2), (5, 2), (5, 4), Decay(torch.ones(3)), r"mask \(3,\)"),
    ],
)
def test_shapes_that_do_not_fit(q, k, v, mask, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        structured_attention(torch.randn(q), torch.randn(k), torch.randn(v), mask)


@pytest.mark.usefixtures("unchecked_shapes")
def test_arguments_that_cannot_be_used() -> None:
    x = torch.randn(3, 2)
    with pytest.raises(ValueError, match="form is 'chunked', expected one of 'linear', 'quadratic'"):
        structured_attention(x, x, x, None, form="chunked")
    with pytest.raises(ValueError, match=r"k has dtype torch\.int64"):
        structured_attention(x, x.long(), x, None)
    with pytest.raises(ValueError, match=r"v has dtype torch\.int64"):
        kernel_attention(x, x, x.long(), torch.exp)
    with pytest.raises(ValueError, match="mask is Fourier, whose entries are complex"):
        normalised_attention(x, x, x, Fourier())
