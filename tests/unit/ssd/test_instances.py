"""Linear attention, retention and GateLoop are ``ssd`` with their own decays, and nothing else."""

import pytest
import torch
from torch import Tensor

from statedual.masked_attention import Causal, Decay, OneSemiseparable, structured_attention
from statedual.ssd import gateloop, linear_attention, retention

BATCH, TIME, HEADS, STATE, HEAD_DIM = 2, 70, 3, 4, 5
GAMMA = torch.tensor([0.3, 0.97, 1.0], dtype=torch.float64)
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
every_dtype = pytest.mark.parametrize("dtype", BOUNDS)


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    widths = (STATE, STATE, HEAD_DIM)
    return tuple(torch.randn(BATCH, TIME, HEADS, width, dtype=torch.float64) for width in widths)


def attention(q: Tensor, k: Tensor, v: Tensor, weight) -> Tensor:
    """y_t = sum over s <= t of weight(t, s) (q_t . k_s) v_s, sum by sum; ``weight`` is (batch, heads) or broadcasts."""
    y = torch.zeros_like(v)
    for t in range(TIME):
        for s in range(t + 1):
            score = (q[:, t] * k[:, s]).sum(-1) * weight(t, s)
            y[:, t] += score.unsqueeze(-1) * v[:, s]
    return y


def by_mask(q: Tensor, k: Tensor, v: Tensor, mask) -> Tensor:
    return structured_attention(*(t.transpose(1, 2) for t in (q, k, v)), mask).transpose(1, 2)


def assert_equal(run, qkv: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype, wanted: Tensor) -> None:
    """``run`` in ``dtype`` has that dtype, and the value of the float64 truth."""
    y = run(*(t.to(dtype) for t in qkv))
    assert y.dtype == dtype
    assert (y - wanted).norm() / wanted.norm() < BOUNDS[dtype]


@every_dtype
def test_linear_attention_is_its_formula_and_has_the_causal_mask(qkv, dtype: torch.dtype) -> None:
    """prop:linear-attention."""
    qkv = tuple(t.to(dtype).double() for t in qkv)
    wanted = attention(*qkv, lambda t, s: 1.0)  # noqa: ARG005 - the weight of every pair
    torch.testing.assert_close(by_mask(*qkv, Causal()), wanted)
    assert_equal(linear_attention, qkv, dtype, wanted)


@every_dtype
def test_retention_is_its_formula_and_has_the_decay_mask(qkv, dtype: torch.dtype) -> None:
    """gamma^(t-s), a gamma for each head."""
    qkv = tuple(t.to(dtype).double() for t in qkv)
    gamma = GAMMA if dtype == torch.float64 else GAMMA.float()
    wanted = attention(*qkv, lambda t, s: gamma.double() ** (t - s))
    torch.testing.assert_close(by_mask(*qkv, Decay(gamma.double())), wanted)
    assert_equal(lambda q, k, v: retention(q, k, v, gamma), qkv, dtype, wanted)


def test_retention_with_gamma_zero_looks_at_the_present_only(qkv) -> None:
    """0^0 = 1: the identity is the mask. Gamma one is linear attention."""
    q, k, v = qkv
    torch.testing.assert_close(retention(q, k, v, torch.zeros(HEADS)), (q * k).sum(-1, keepdim=True) * v)
    torch.testing.assert_close(retention(q, k, v, torch.ones(HEADS)), linear_attention(q, k, v))


@every_dtype
def test_gateloop_is_its_formula_and_has_the_one_semiseparable_mask(qkv, dtype: torch.dtype) -> None:
    """Gates that depend on the input: the product of those after s, up to t."""
    qkv = tuple(t.to(dtype).double() for t in qkv)
    gates = torch.rand(BATCH, TIME, HEADS, dtype=torch.float64)
    gates[0, 40, 1] = 0.0
    log_a = gates.log().to(torch.promote_types(dtype, torch.float32))
    gates = log_a.double().exp()
    wanted = attention(*qkv, lambda t, s: gates[:, s + 1 : t + 1].prod(1))
    torch.testing.assert_close(by_mask(*qkv, OneSemiseparable(log_a.double().transpose(1, 2))), wanted)
    assert_equal(lambda q, k, v: gateloop(q, k, v, log_a), qkv, dtype, wanted)


def test_all_that_is_learned_gets_its_gradient(qkv) -> None:
    """Of q, k, v, and of gamma or the gates, as the explicit masks give them."""
    log_a = -torch.rand(BATCH, TIME, HEADS, dtype=torch.float64)
    weights = torch.randn(BATCH, TIME, HEADS, HEAD_DIM, dtype=torch.float64)
    position = torch.arange(TIME)
    distance = (position[:, None] - position).clamp(min=0)

    def linear(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.einsum("bthn,bshn->bhts", q, k) * mask.tril()
        return torch.einsum("bhts,bshp->bthp", scores, v)

    def gated(q: Tensor, k: Tensor, v: Tensor, log_a: Tensor) -> Tensor:
        sums = log_a.transpose(1, 2).cumsum(-1)
        return linear(q, k, v, (sums.unsqueeze(-1) - sums.unsqueeze(-2)).exp())

    pairs = [
        (linear_attention, lambda q, k, v: linear(q, k, v, torch.ones(TIME, TIME)), ()),
        (retention, lambda q, k, v, gamma: linear(q, k, v, gamma[:, None, None] ** distance), (GAMMA,)),
        (gateloop, gated, (log_a,)),
    ]
    for ours, plain, learned in pairs:
        found = []
        for run in (ours, plain):
            leaves = [t.clone().requires_grad_() for t in (*qkv, *learned)]
            found.append(torch.autograd.grad((run(*leaves) * weights).sum(), leaves))
        for got, wanted in zip(*found, strict=True):
            assert (got - wanted).norm() / wanted.norm() < 1e-11


@pytest.mark.parametrize("time", [0, 1])
def test_short_sequences(qkv, time: int) -> None:
    q, k, v = (t[:, :time] for t in qkv)
    own = (q * k).sum(-1, keepdim=True) * v
    for y in (linear_attention(q, k, v), retention(q, k, v, GAMMA), gateloop(q, k, v, torch.zeros(BATCH, time, HEADS))):
        torch.testing.assert_close(y, own)


def test_retention_that_forgets_at_once_has_its_gradient(qkv) -> None:
    """gamma = 0, of which the logarithm has none: y_t = (q_t . k_t) v_t, and its derivative brings in one step back."""
    q, k, v = qkv
    gamma = torch.tensor([0.0, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    y = retention(q, k, v, gamma)
    torch.testing.assert_close(y[:, :, :2], ((q * k).sum(-1, keepdim=True) * v)[:, :, :2])
    (gradient,) = torch.autograd.grad(y.sum(), gamma)
    one_back = ((q[:, 1:] * k[:, :-1]).sum(-1) * v[:, :-1].sum(-1)).sum((0, 1))
    torch.testing.assert_close(gradient[:2], one_back[:2])
