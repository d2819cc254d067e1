"""Theorem thm:ssm-efficiency: any SSM as rotations, the same function at 8 operations a state and step."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import KINDS, error, example, examples, normal, truth
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statedual.semiseparable import RotationSSM, SemiseparableMatrix, preprocess, semiseparable_rank
from statedual.semiseparable.multiply import recurrent


def rotations(angle: Tensor, c: Tensor, x: Tensor) -> Tensor:
    """The definition, one rotation at a time, for x of shape (T, P)."""
    time, order = angle.shape
    g = [[0.0] * x.shape[1] for _ in range(order)]
    y = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(time):
        for p, carry in enumerate(x[t].tolist()):
            for k, theta in enumerate(angle[t].tolist()):
                state = g[k][p]
                g[k][p] = math.cos(theta) * state + math.sin(theta) * carry
                carry = math.cos(theta) * carry - math.sin(theta) * state
            y[t, p] = sum(float(c[t, k]) * g[k][p] for k in range(order))
    return y


class Arithmetic(TorchDispatchMode):
    """Counts the elements that every operation writes, by its name. A view writes none."""

    def __init__(self) -> None:
        super().__init__()
        self.written = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not any(returned.alias_info for returned in func._schema.returns):
            self.written[func.overloadpacket.__name__] += result.numel()
        return result


def count(ssm: RotationSSM, columns: int) -> Counter:
    with Arithmetic() as arithmetic:
        ssm.matmul(torch.ones(len(ssm.c), columns, dtype=torch.float64))
    return arithmetic.written


def random_ssm(time: int, order: int) -> RotationSSM:
    return RotationSSM(3 * normal(time, order, seed=1), normal(time, order, seed=2))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.sampled_from([0, 1, 2, 3, 7, 12]), st.integers(0, 5), st.sampled_from([0, 1, 3]), st.integers(0, 999))
def test_any_angles_are_a_system_of_rotations(time: int, order: int, columns: int, seed: int) -> None:
    angle, c = 4 * normal(time, order, seed=seed), normal(time, order, seed=seed + 1)
    x = normal(time, columns, seed=seed + 2)
    assert error(RotationSSM(angle, c).matmul(x), rotations(angle, c, x)) < 1e-13


@settings(deadline=None, derandomize=True, max_examples=50)
@given(examples(), st.sampled_from([0, 1, 3]))
def test_same_outputs_as_the_system_it_came_from(m: SemiseparableMatrix, columns: int) -> None:
    x = normal(len(m.b), columns, seed=7)
    ssm = preprocess(m)
    assert ssm.angle.shape == ssm.c.shape == m.b.shape
    assert error(ssm.matmul(x), truth(m) @ x) < 1e-12


def hard(name: str, time: int = 10, order: int = 4) -> SemiseparableMatrix:
    """Dynamics that cannot be diagonalised or inverted, and inputs that reach nothing."""
    a, b, c = normal(time, order, order, seed=1) / 2, normal(time, order, seed=2), normal(time, order, seed=3)
    match name:
        case "nilpotent":
            a = torch.diag(torch.ones(order - 1, dtype=torch.float64), 1).expand(time, -1, -1)
        case "jordan block":
            a = (torch.eye(order) / 2 + torch.diag(torch.ones(order - 1), 1)).double().expand(time, -1, -1)
        case "zero dynamics":
            a = torch.zeros_like(a)
        case "rank one":
            a = a[:, :, :1] * a[:, :1, :]
        case "growing":
            a = 6 * a
        case "no input":
            b = torch.zeros_like(b)
        case "first coordinate only":
            b = torch.cat([b[:, :1], torch.zeros_like(b[:, 1:])], 1)
        case "late input":
            b = torch.where(torch.arange(time)[:, None] < 6, 0.0, b)
        case "identity":
            a = torch.eye(order, dtype=torch.float64).expand(time, -1, -1)
    return SemiseparableMatrix(a, b, c)


HARD = ["nilpotent", "jordan block", "zero dynamics", "rank one", "growing", "no input", "late input", "identity"]


@pytest.mark.parametrize("name", [*HARD, "first coordinate only"])
def test_every_real_system_has_rotations(name: str) -> None:
    m, x = hard(name), normal(10, 3, seed=5)
    ssm = preprocess(m)
    assert ssm.angle.isfinite().all()
    assert ssm.c.isfinite().all()
    assert error(ssm.matmul(x), truth(m) @ x) < 1e-12


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_long_sequence(dtype: torch.dtype, bound: float) -> None:
    m, x = example("dense", 300, 4, seed=2), normal(300, 2, seed=3)
    h, wanted = torch.zeros(4, 2, dtype=torch.float64), []
    for t in range(300):
        h = m.a[t] @ h + m.b[t, :, None] * x[t]
        wanted.append(m.c[t] @ h)
    ssm = preprocess(SemiseparableMatrix(m.a.to(dtype), m.b.to(dtype), m.c.to(dtype)))
    assert error(ssm.matmul(x.to(dtype)), torch.stack(wanted)) < bound


@pytest.mark.parametrize(("time", "order", "columns"), [(1, 1, 1), (7, 3, 1), (3, 7, 2), (20, 8, 3), (5, 0, 2)])
def test_eight_operations_for_each_step_state_and_column(time: int, order: int, columns: int) -> None:
    """Counted while it runs; beside them, only moves, and the cosine and sine of every angle once."""
    written = count(random_ssm(time, order), columns)
    assert sum(written[name] for name in ("add", "sub", "mul")) == 8 * time * order * columns
    assert written["cos"] == written["sin"] == time * order
    moves = {"arange", "cat", "index", "new_zeros", "ones", "rsub", "stack", "zeros_like"}
    assert set(written) <= {"add", "sub", "mul", "cos", "sin"} | moves


@pytest.mark.parametrize("order", [1, 8])
def test_all_that_is_written_grows_with_time_and_state_only(order: int) -> None:
    """O(TN), moves included: twice the time or twice the state is at most about twice the numbers."""
    whole = [count(random_ssm(*shape), 4).total() for shape in ((128, order), (256, order), (128, 2 * order))]
    assert whole[1] <= 2.02 * whole[0]
    assert whole[2] <= 2.2 * whole[0]


def test_the_dense_recurrence_costs_a_product_by_the_state_more() -> None:
    """What the theorem improves: N^2 multiplications a step for A h beside the N for c . h, and N^2 numbers for A."""
    for order in (4, 8, 16):
        m = example("dense", 30, order)
        with Arithmetic() as arithmetic:
            recurrent(m.a, m.b, m.c, torch.ones(30, 1, dtype=torch.float64))
        assert order * arithmetic.written["mm"] == 29 * order**2 + 30 * order  # each entry is a sum over the state
        assert preprocess(m).num_parameters == 2 * 30 * order < m.a.numel()


def test_number_of_parameters() -> None:
    """prop:ss-mvm."""
    assert random_ssm(7, 3).num_parameters == 2 * 7 * 3


@pytest.mark.parametrize(("time", "order"), [(1, 2), (9, 1), (9, 3)])
def test_any_angles_are_semiseparable(time: int, order: int) -> None:
    dense = random_ssm(time, order).matmul(torch.eye(time, dtype=torch.float64))
    assert not dense.triu(1).any()
    assert semiseparable_rank(dense) == min(order, (time + 1) // 2)


def test_no_step_adds_to_the_length_of_the_state() -> None:
    """Rotations keep lengths: what enters a step is either stored or dropped."""
    ssm, x = random_ssm(6, 3), normal(6, seed=4)
    axes = torch.eye(3, dtype=torch.float64)
    g = torch.stack([RotationSSM(ssm.angle, axis.expand(6, 3)).matmul(x) for axis in axes], 1)
    before = torch.cat([torch.zeros(1), g.square().sum(1)[:-1]])
    assert (g.square().sum(1) < before + x.square()).all()


@pytest.mark.parametrize("columns", [(), (1,), (2, 3)])
def test_shape_of_the_input(columns: tuple[int, ...]) -> None:
    m, x = example("diagonal", 6, 2), normal(6, *columns, seed=3)
    assert error(preprocess(m).matmul(x), torch.einsum("ts,s...->t...", truth(m), x)) < 1e-12


@pytest.mark.parametrize(("time", "order"), [(1, 1), (2, 3), (4, 2)])
def test_gradients(time: int, order: int) -> None:
    inputs = [normal(*shape, seed=k).requires_grad_() for k, shape in enumerate([(time, order)] * 2 + [(time, 2)])]
    assert torch.autograd.gradcheck(lambda angle, c, x: RotationSSM(angle, c).matmul(x), inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_preprocessing_reads_its_input_only(kind: str) -> None:
    """No gradient, no change, and the first factor is not read."""
    m = example(kind, 5, 2, seed=3)
    m.b.requires_grad_()
    wanted = preprocess(m)
    assert not wanted.angle.requires_grad
    m.a[0] = torch.nan
    kept = m.a.clone()
    got = preprocess(m)
    assert torch.equal(got.angle, wanted.angle)
    assert torch.equal(got.c, wanted.c)
    assert torch.equal(m.a[1:], kept[1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_float32(dtype: torch.dtype) -> None:
    wide = example("dense", 12, 3, seed=1)
    m = SemiseparableMatrix(wide.a.to(dtype), wide.b.to(dtype), wide.c.to(dtype))
    ssm = preprocess(m)
    assert ssm.angle.dtype == ssm.c.dtype == torch.float32
    x = normal(12, 2, seed=6).to(dtype)
    assert error(ssm.matmul(x), truth(m) @ x.double()) < 1e-5
    assert RotationSSM(ssm.angle.to(dtype), ssm.c.to(dtype)).matmul(x).dtype == dtype


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"angle has shape \(4,\), expected 2 axes \(time, state\)"):
        RotationSSM(torch.zeros(4), torch.zeros(4))
    with pytest.raises(ValueError, match=r"c has state 3 .* expected 2 as in angle"):
        RotationSSM(torch.zeros(4, 2), torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"angle has dtype torch\.int64"):
        RotationSSM(torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="c is on meta"):
        RotationSSM(torch.zeros(4, 2), torch.zeros(4, 2, device="meta"))
    ssm = RotationSSM(torch.zeros(4, 2), torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"x has shape \(3,\), expected time 4"):
        ssm.matmul(torch.zeros(3))
    with pytest.raises(ValueError, match="x is on meta"):
        ssm.matmul(torch.zeros(4, device="meta"))
