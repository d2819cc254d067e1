"""Kernel feature maps: each formula by itself, what its products estimate, and their signs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statedual.masked_attention import feature_maps as maps


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


W = torch.linspace(-2, 2, 15, dtype=torch.float64).reshape(5, 3).sin()
MAPS = {
    "identity": maps.identity,
    "swish": maps.swish,
    "exp": maps.exp,
    "relu": maps.relu,
    "elu": maps.elu,
    "cosformer": maps.cosformer,
    "random_features": lambda x: maps.random_features(x, W.to(x.dtype)),
    "positive_random_features": lambda x: maps.positive_random_features(x, W.to(x.dtype)),
    "taylor": maps.taylor,
    "layer_norm": maps.layer_norm,
    "squared_layer_norm": maps.squared_layer_norm,
}


def normed(x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return [(value - mean) / math.sqrt(variance + 1e-5) for value in x]


def formula(name: str, x: list[float], t: int, time: int) -> list[float]:
    """One position's features in plain floats."""
    angle = math.pi * t / (2 * time)
    projected = [sum(w * value for w, value in zip(row, x, strict=True)) for row in W.tolist()]
    half_square = sum(value * value for value in x) / 2
    match name:
        case "identity":
            return x
        case "swish":
            return [value / (1 + math.exp(-value)) for value in x]
        case "exp":
            return [math.exp(value) for value in x]
        case "relu":
            return [max(value, 0) for value in x]
        case "elu":
            return [1 + (value if value > 0 else math.exp(value) - 1) for value in x]
        case "cosformer":
            return [max(value, 0) * wave for wave in (math.cos(angle), math.sin(angle)) for value in x]
        case "random_features":
            return [wave(p) / math.sqrt(5) for wave in (math.cos, math.sin) for p in projected]
        case "positive_random_features":
            return [math.exp(sign * p - half_square) / math.sqrt(10) for sign in (1, -1) for p in projected]
        case "taylor":
            return [1, *x, *(first * second / math.sqrt(2) for first in x for second in x)]
        case "layer_norm":
            return normed(x)
        case _:
            return [first * second for first in normed(x) for second in normed(x)]


@pytest.mark.parametrize("name", MAPS)
@settings(deadline=None, max_examples=10)
@given(time=st.sampled_from([0, 1, 2, 5]), batch=st.sampled_from([(), (2,), (2, 1)]), seed=st.integers(0, 99))
def test_each_map_is_its_formula(name: str, time: int, batch: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    x = double(*batch, time, 3)
    truth = [formula(name, row, i % time, time) for i, row in enumerate(x.reshape(-1, 3).tolist())]
    result = MAPS[name](x)
    assert result.shape[:-1] == x.shape[:-1]
    torch.testing.assert_close(
        result, torch.tensor(truth, dtype=torch.float64).reshape(result.shape), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("name", MAPS)
def test_gradients(name: str) -> None:
    assert torch.autograd.gradcheck(MAPS[name], (double(2, 4, 3).requires_grad_(),))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(7, 3).to(dtype)
    w = W.to(dtype)
    phi = {
        "random_features": lambda x: maps.random_features(x, w),
        "positive_random_features": lambda x: maps.positive_random_features(x, w),
    }.get(name, MAPS[name])
    assert torch.equal(phi(x), phi(x.float()).to(dtype))


AT_LEAST_ZERO = ["exp", "relu", "elu", "cosformer", "positive_random_features", "taylor", "squared_layer_norm"]
ABOVE_ZERO = ["exp", "elu", "positive_random_features", "taylor"]


@pytest.mark.parametrize("name", MAPS)
def test_the_signs_of_products_are_as_listed(name: str) -> None:
    """`sec:architecture:kernels`: for a normaliser the products must be positive."""
    phi = MAPS[name](3 * double(300, 3))
    products = phi @ phi.mT
    assert bool((products >= -1e-12).all()) == (name in AT_LEAST_ZERO)
    if name in ABOVE_ZERO:
        assert products.min() > 0


@pytest.mark.parametrize("x", [-20.0, -80.0])
def test_elu_stays_positive_where_one_plus_elu_is_rounded_to_zero(x: float) -> None:
    assert maps.elu(torch.tensor([x])).item() == pytest.approx(math.exp(x), rel=1e-6)
    assert 1 + torch.nn.functional.elu(torch.tensor([x])).item() == 0


def test_the_cosformer_product_depends_on_the_distance() -> None:
    q, k = double(6, 3), double(6, 3)
    result = maps.cosformer(q, length=10) @ maps.cosformer(k, length=10).mT
    for t in range(6):
        for s in range(6):
            truth = q[t].relu() @ k[s].relu() * math.cos(math.pi * (t - s) / 20)
            torch.testing.assert_close(result[t, s], truth)


def test_cosformer_takes_positions_of_its_own() -> None:
    """By default 0, 1, 2, ...; given, they may be anything, one row for all of x or rows of its shape."""
    x = double(2, 3, 4, 5).requires_grad_()
    where = torch.tensor([[[0, 3, 3, 9]], [[7, 0, 1, 2]]])
    result = maps.cosformer(x, length=10, positions=where)
    for row in range(2):
        for head in range(3):
            for i, t in enumerate(where[row, 0].tolist()):
                alone = maps.cosformer(x[row, head, i].expand(t + 1, -1), length=10)[t]
                torch.testing.assert_close(result[row, head, i], alone)
    assert torch.autograd.gradcheck(lambda x: maps.cosformer(x, length=10, positions=where), (x,))
    counted = torch.arange(4)
    for rows in (counted, counted[None, None], counted.expand(2, 3, -1)):
        assert torch.equal(maps.cosformer(x, positions=rows), maps.cosformer(x))
    half = x.bfloat16()
    assert torch.equal(maps.cosformer(half, positions=where), maps.cosformer(half.float(), positions=where).bfloat16())


def test_cosformer_positions_may_go_beyond_the_length() -> None:
    """What is asked for is that no two are farther apart: a window of a longer sequence, or a single token of it."""
    q, k = double(1, 3), double(1, 3)
    for t, s in ((100, 100), (103, 94), (2, 9)):
        q_features, k_features = (
            maps.cosformer(x, length=10, positions=torch.tensor([where])) for x, where in ((q, t), (k, s))
        )
        truth = q[0].relu() @ k[0].relu() * math.cos(math.pi * (t - s) / 20)
        torch.testing.assert_close(q_features[0] @ k_features[0], truth)
    many = maps.cosformer(double(15, 3), length=4, positions=torch.arange(15))
    assert many.shape == (15, 6)


@settings(deadline=None, max_examples=20)
@given(state=st.integers(0, 6), seed=st.integers(0, 99))
def test_the_taylor_product_is_the_quadratic_polynomial_of_exp(state: int, seed: int) -> None:
    """App. D: exp(u) ~ 1 + u + u^2 / 2 for u = q . k, from 1 + N + N^2 features."""
    torch.manual_seed(seed)
    q, k = double(4, state), double(5, state)
    u = q @ k.mT
    torch.testing.assert_close(maps.taylor(q) @ maps.taylor(k).mT, 1 + u + u**2 / 2)


def test_the_squared_layer_norm_product_is_the_square_of_the_normed_one() -> None:
    """App. D: x ⊗ x corresponds to the kernel u^2."""
    q, k = double(4, 5), double(3, 5)
    weight, bias = double(5), double(5)
    u = maps.layer_norm(q, weight, bias) @ maps.layer_norm(k, weight, bias).mT
    result = maps.squared_layer_norm(q, weight, bias) @ maps.squared_layer_norm(k, weight, bias).mT
    torch.testing.assert_close(result, u**2)


def test_the_state_sizes_of_the_ablation() -> None:
    """App. D: 8 features become 64 with ReBased and 73 with Based."""
    x = torch.randn(2, 8)
    assert maps.squared_layer_norm(x).shape == (2, 64)
    assert maps.taylor(x).shape == (2, 73)


def test_layer_norm_has_an_affine_part_and_a_guard() -> None:
    x, weight, bias = double(4, 3), double(3), double(3)
    truth = torch.tensor([normed(row) for row in x.tolist()], dtype=torch.float64) * weight + bias
    torch.testing.assert_close(maps.layer_norm(x, weight, bias), truth)
    torch.testing.assert_close(maps.layer_norm(x.float(), weight.float(), bias), truth.float())
    assert torch.equal(maps.layer_norm(torch.ones(2, 3)), torch.zeros(2, 3))


@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("name", ["random_features", "positive_random_features"])
def test_random_features_estimate_their_kernel_without_bias(name: str, orthogonal: bool) -> None:
    """Sec. `sec:attention:kernel`: the mean over many draws is the kernel, within four standard errors."""
    # Of length 0.7: the variance for exp(q . k) grows as exp(|q + k|^2), and a missing factor would still show.
    q, k = (0.7 * torch.nn.functional.normalize(double(5, 4), dim=-1) for _ in range(2))
    if name == "random_features":
        phi, kernel = maps.random_features, torch.exp(-((q - k) ** 2).sum(-1) / 2)
    else:
        phi, kernel = maps.positive_random_features, torch.exp((q * k).sum(-1))
    estimates = []
    for _ in range(400):
        w = maps.draw_projection(64, 4, orthogonal=orthogonal, dtype=torch.float64)
        estimates.append((phi(q, w) * phi(k, w)).sum(-1))
    sample = torch.stack(estimates)
    standard_error = sample.std(0) / math.sqrt(len(sample))
    # Small beside the kernel, so that a missing factor could not hide in it.
    assert (standard_error < 0.02 * kernel).all()
    assert ((sample.mean(0) - kernel).abs() < 4 * standard_error).all()


def test_orthogonal_features_have_less_variance() -> None:
    """FAVOR+ (Choromanski et al. 2021)."""
    q, k = double(4) / 2, double(4) / 2

    def variance(orthogonal: bool) -> Tensor:
        draws = [maps.draw_projection(8, 4, orthogonal=orthogonal, dtype=torch.float64) for _ in range(2000)]
        products = [maps.positive_random_features(q, w) @ maps.positive_random_features(k, w) for w in draws]
        return torch.stack(products).var()

    assert variance(True) < 0.9 * variance(False)


def test_the_paper_s_positive_features_without_their_factor_are_biased() -> None:
    """2^(-1/2) (exp(w x), exp(-w x)) alone has the mean exp(q . k) exp((|q|^2 + |k|^2) / 2)."""
    q, k = double(4) / 2, double(4) / 2
    w = maps.draw_projection(400_000, 4, dtype=torch.float64)
    q_features, k_features = ((torch.cat([w @ x, -(w @ x)]).exp() / math.sqrt(2 * len(w))) for x in (q, k))
    expected = math.exp(q @ k + (q @ q + k @ k) / 2)
    assert float(q_features @ k_features) == pytest.approx(expected, rel=0.02)
    assert expected > 1.2 * math.exp(q @ k)


@pytest.mark.parametrize(("features", "state"), [(1, 1), (3, 4), (4, 4), (10, 4)])
def test_orthogonal_projections_are_orthogonal_in_groups(features: int, state: int) -> None:
    w = maps.draw_projection(features, state, orthogonal=True, dtype=torch.float64)
    assert w.shape == (features, state)
    for group in w.split(state):
        gram = group @ group.mT
        torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-12, rtol=0)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_rows_of_the_projection_are_standard_normal(orthogonal: bool) -> None:
    w = maps.draw_projection(40_000, 4, orthogonal=orthogonal, dtype=torch.float64)
    # Four standard errors of a mean and of a (co)variance over at least 10,000 independent groups.
    assert w.mean(0).abs().max() < 0.04
    assert (w.mT @ w / len(w) - torch.eye(4)).abs().max() < 0.06
    assert (w**4).mean().item() == pytest.approx(3, abs=0.2)


def test_the_generator_decides_the_projection() -> None:
    draws = [
        maps.draw_projection(6, 4, orthogonal=True, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_features_that_would_overflow_in_two_factors_do_not_in_one() -> None:
    """exp(100) and exp(-100^2 / 2) are out of float32's range; exp(w x - x^2 / 2) at w = x is exp(x^2 / 2)."""
    x = torch.tensor([[12.0]])
    w = torch.tensor([[12.0]])
    torch.testing.assert_close(maps.positive_random_features(x, w)[0, 0].log(), torch.tensor(72.0 - math.log(2) / 2))


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_sizes() -> None:
    with pytest.raises(ValueError, match="length is 3, expected at least 4, the time of x"):
        maps.cosformer(torch.randn(4, 2), length=3)
    with pytest.raises(ValueError, match="length is 0, expected a positive integer"):
        maps.cosformer(torch.randn(4, 2), length=0)
    with pytest.raises(ValueError, match="features is 0, expected a positive integer"):
        maps.draw_projection(0, 3)
    with pytest.raises(ValueError, match="state is -1, expected a positive integer"):
        maps.draw_projection(2, -1)
    for phi in (maps.random_features, maps.positive_random_features):
        with pytest.raises(ValueError, match=r"w has state 3 \(axis 1 of \(5, 3\)\), expected 4 as in x"):
            phi(torch.randn(2, 4), torch.randn(5, 3))
