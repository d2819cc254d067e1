"""RMS norms against their formulas in float64, position by position, and what they keep in float32."""

import pytest
import torch
from layer_examples import difference, disturb
from torch import Tensor

from statedual.layers.norm import GatedRMSNorm, RMSNorm

HALF = (torch.bfloat16, torch.float16)
# groups, before_gate, eps
GATED = [(groups, before_gate, eps) for groups in (1, 2, 6) for before_gate in (False, True) for eps in (1e-5, 0.3)]


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def rms_of(x: Tensor, eps: float) -> Tensor:
    """x (size,) divided by the root of its mean square."""
    return x / torch.sqrt(sum(number * number for number in x) / len(x) + eps)


def gated(norm: GatedRMSNorm, y: Tensor, z: Tensor) -> Tensor:
    """The extra norm on single rows."""
    rows = []
    for y_row, z_row in zip(y.flatten(0, -2), z.flatten(0, -2), strict=True):
        gate = z_row / (1 + torch.exp(-z_row))
        row = y_row if norm.before_gate else y_row * gate
        size = len(row) // norm.groups
        row = torch.cat([rms_of(row[k * size : (k + 1) * size], norm.eps) for k in range(norm.groups)]) * norm.weight
        rows.append(row * gate if norm.before_gate else row)
    return torch.stack(rows).reshape(y.shape)


def rounded_once(got: Tensor, truth: Tensor) -> bool:
    """``got`` is the truth in its own dtype: off by no more than rounding to nearest."""
    return bool(((got - truth).abs() <= 0.501 * torch.finfo(got.dtype).eps * truth.abs() + 1e-7).all())


@pytest.mark.parametrize("eps", [1e-5, 0.3])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 0, 5), (4, 2)])
def test_rms_norm_is_its_formula_forward_and_backward(shape: tuple[int, ...], eps: float) -> None:
    """With r = 1 / sqrt(mean(x^2) + eps): y = w r x, dw = sum of r x g, dx = r w g - r^3 x mean(x w g)."""
    norm = RMSNorm(shape[-1], eps).double()
    disturb(norm)
    x, grad = double(*shape), torch.randn(*shape, dtype=torch.float64)
    y = norm(x)
    rows = [rms_of(row, eps) * norm.weight for row in x.reshape(-1, shape[-1])]
    truth = torch.stack(rows).reshape(shape) if rows else torch.zeros_like(x)
    assert difference(y, truth) < 1e-12
    grad_x, grad_weight = torch.autograd.grad(y, [x, norm.weight], grad)
    r = (x.square().mean(-1, keepdim=True) + eps) ** -0.5
    weighted = norm.weight * grad
    assert difference(grad_x, r * weighted - r**3 * x * (x * weighted).mean(-1, keepdim=True)) < 1e-12
    assert difference(grad_weight, (r * x * grad).reshape(-1, shape[-1]).sum(0)) < 1e-12


@pytest.mark.parametrize(("groups", "before_gate", "eps"), GATED)
def test_the_gated_norm_is_its_formula_forward_and_backward(groups: int, before_gate: bool, eps: float) -> None:
    norm = GatedRMSNorm(6, groups, eps, before_gate).double()
    disturb(norm)
    y, z, weights = double(2, 3, 6), double(2, 3, 6), torch.randn(2, 3, 6, dtype=torch.float64)
    got, wanted = norm(y, z), gated(norm, y, z)
    assert difference(got, wanted) < 1e-12
    leaves = [y, z, norm.weight]
    gradients = (torch.autograd.grad((result * weights).sum(), leaves) for result in (got, wanted))
    for one, other in zip(*gradients, strict=True):
        assert difference(one, other) < 1e-12


def test_groups_do_not_see_one_another() -> None:
    norm = GatedRMSNorm(6, 3)
    y, z = torch.randn(4, 6), torch.randn(4, 6)
    louder = y.clone()
    louder[:, 4:] *= 100
    assert torch.equal(norm(louder, z)[:, :4], norm(y, z)[:, :4])
    assert not torch.allclose(GatedRMSNorm(6)(louder, z)[:, :4], GatedRMSNorm(6)(y, z)[:, :4])


@pytest.mark.parametrize("before_gate", [False, True])
def test_the_gate_stands_where_it_should(before_gate: bool) -> None:
    """After the norm nothing holds the gate back; before it, only its share of the whole counts."""
    norm = GatedRMSNorm(4, before_gate=before_gate)
    y, z = torch.ones(1, 4), torch.full((1, 4), 50.0)
    torch.testing.assert_close(norm(y, z), torch.full((1, 4), 50.0 if before_gate else 1.0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("before_gate", [False, True])
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_float32_inside(dtype: torch.dtype, before_gate: bool) -> None:
    """Results are the truth of the rounded inputs, rounded once; gradients stay below 1e-2."""
    plain, gate = RMSNorm(64), GatedRMSNorm(64, 4, before_gate=before_gate)
    x, y, z = (torch.randn(5, 64) for _ in range(3))
    for norm, inputs in ((plain, (x,)), (gate, (y, z))):
        disturb(norm)
        norm.to(dtype)
        narrow = [t.to(dtype).requires_grad_() for t in inputs]
        got = norm(*narrow)
        grad = torch.randn(5, 64).to(dtype)
        gradients = torch.autograd.grad(got, [*narrow, norm.weight], grad)
        wide = [t.detach().double().requires_grad_() for t in narrow]
        norm.double()
        truth = (
            gated(norm, *wide) if norm is gate else torch.stack([rms_of(row, 1e-5) for row in wide[0]]) * norm.weight
        )
        assert got.dtype == dtype
        assert rounded_once(got, truth)
        wanted = torch.autograd.grad(truth, [*wide, norm.weight], grad.double())
        for one, other in zip(gradients, wanted, strict=True):
            assert one.dtype == dtype
            assert difference(one, other) < 1e-2


def test_squares_beyond_the_range_of_float16() -> None:
    x = torch.full((2, 8), 1000.0, dtype=torch.float16)
    ones = torch.ones(2, 8, dtype=torch.float16)
    assert torch.equal(RMSNorm(8).half()(x), ones)
    assert torch.equal(GatedRMSNorm(8).half()(x, x), ones)
    assert torch.equal(GatedRMSNorm(8, before_gate=True).half()(x, ones * 20), ones * 20)


@pytest.mark.parametrize("dtype", HALF)
def test_a_float32_input_meets_half_weights_unrounded(dtype: torch.dtype) -> None:
    """The residual stream, or y of the SSM, beside activations of half precision: result in theirs."""
    x, z = torch.randn(5, 64), torch.randn(5, 64).to(dtype)
    got = RMSNorm(64).to(dtype)(x)
    assert got.dtype == dtype
    assert rounded_once(got, torch.stack([rms_of(row, 1e-5) for row in x.double()]))
    norm = GatedRMSNorm(64).to(dtype)
    got = norm(x, z)
    assert got.dtype == dtype
    assert rounded_once(got, gated(norm.double(), x.double(), z.double()))


def test_autocast_changes_nothing() -> None:
    x, z = torch.randn(5, 64), torch.randn(5, 64)
    plain, gate = RMSNorm(64), GatedRMSNorm(64, 4)
    with torch.autocast("cpu", torch.bfloat16):
        got = plain(x), gate(x, z)
    assert torch.equal(got[0], plain(x))
    assert torch.equal(got[1], gate(x, z))


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e15])
def test_rows_of_any_size_have_finite_gradients(value: float) -> None:
    for norm, inputs in ((RMSNorm(4), 1), (GatedRMSNorm(4, 2), 2), (GatedRMSNorm(4, 2, before_gate=True), 2)):
        given = [torch.full((1, 4), value, requires_grad=True), torch.ones(1, 4, requires_grad=True)][:inputs]
        result = norm(*given)
        assert result.isfinite().all()
        for gradient in torch.autograd.grad(result.sum(), [*given, norm.weight]):
            assert gradient.isfinite().all()


def test_parameters_begin_as_ones_and_do_so_again() -> None:
    for norm in (RMSNorm(4), GatedRMSNorm(4, 2)):
        assert [(name, tuple(p.shape)) for name, p in norm.named_parameters()] == [("weight", (4,))]
        for _ in range(2):
            assert torch.equal(norm.weight, torch.ones(4))
            disturb(norm)
            assert not torch.equal(norm.weight, torch.ones(4))
            norm.reset_parameters()
    x = torch.randn(3, 4)
    assert RMSNorm(4)(x).square().mean(-1).sqrt().tolist() == pytest.approx([1.0] * 3, abs=1e-3)
