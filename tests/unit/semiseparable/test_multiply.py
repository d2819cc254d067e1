"""Every algorithm against the matrix built entry by entry, and what section 3 says of special cases."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_examples import KINDS, error, example, examples, leaves, normal, truth

from statedual.semiseparable import SemiseparableMatrix, one_semiseparable
from statedual.semiseparable.multiply import as_columns, chunked, contraction, dense, quadratic, recurrent


@settings(deadline=None, max_examples=40)
@given(examples())
def test_dense_is_the_definition_entry_by_entry(m: SemiseparableMatrix) -> None:
    assert error(dense(m.a, m.b, m.c), truth(m)) < 1e-14


@settings(deadline=None, max_examples=40)
@given(examples(), st.integers(0, 3))
def test_recurrence_is_multiplication_by_the_matrix(m: SemiseparableMatrix, columns: int) -> None:
    x = normal(len(m.b), columns, seed=7)
    assert error(recurrent(m.a, m.b, m.c, x), truth(m) @ x) < 1e-13


@settings(deadline=None, max_examples=25)
@given(examples(), st.integers(0, 3))
def test_quadratic(m: SemiseparableMatrix, columns: int) -> None:
    x = normal(len(m.b), columns, seed=7)
    assert error(quadratic(m.a, m.b, m.c, x), truth(m) @ x) < 1e-13


@settings(deadline=None, max_examples=40)
@given(examples(), st.integers(0, 3), st.sampled_from([1, 2, 3, 4, 64]))
def test_chunked_for_any_length_and_chunk_size(m: SemiseparableMatrix, columns: int, chunk_size: int) -> None:
    x = normal(len(m.b), columns, seed=7)
    assert error(chunked(m.a, m.b, m.c, x, chunk_size), truth(m) @ x) < 1e-13


@settings(deadline=None, max_examples=25)
@given(examples(kinds=("scalar", "diagonal")), st.integers(0, 3))
def test_contraction(m: SemiseparableMatrix, columns: int) -> None:
    x = normal(len(m.b), columns, seed=7)
    assert error(contraction(m.a, m.b, m.c, x), truth(m) @ x) < 1e-13


def test_contraction_computes_the_states_of_the_recurrence() -> None:
    """H of eq:ssm-diagonal, read out with c = e_n, is the n-th coordinate of h_t of eq:s6, for each channel."""
    m, x = example("diagonal", 6, 3), normal(6, 2, seed=1)
    h = torch.zeros(3, 2, dtype=torch.float64)
    states = []
    for t in range(6):
        h = m.a[t, :, None] * h + m.b[t, :, None] * x[t]
        states.append(h)
    for n in range(3):
        one_hot = torch.eye(3, dtype=torch.float64)[n].expand(6, 3)
        assert error(contraction(m.a, m.b, one_hot, x), torch.stack(states)[:, n]) < 1e-14


def test_contraction_refuses_dense_factors() -> None:
    m = example("dense", 4, 2)
    with pytest.raises(ValueError, match=r"scalar .* or diagonal"):
        contraction(m.a, m.b, m.c, normal(4, 1, seed=0))


@pytest.mark.parametrize("algorithm", [recurrent, quadratic, chunked, contraction])
@pytest.mark.parametrize("kind", KINDS)
def test_first_factor_is_never_read(algorithm, kind: str) -> None:
    if algorithm is contraction and kind == "dense":
        pytest.skip("contraction has no dense factors")
    m, x = example(kind, 5, 2), normal(5, 2, seed=3)
    unread = m.a.clone()
    unread[0] = torch.inf
    assert torch.equal(algorithm(unread, m.b, m.c, x), algorithm(m.a, m.b, m.c, x))


@pytest.mark.parametrize("algorithm", [recurrent, quadratic, chunked, contraction])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(algorithm, kind: str) -> None:
    if algorithm is contraction and kind == "dense":
        pytest.skip("contraction has no dense factors")
    m = example(kind, 5, 2, seed=8)
    m.a[2] = 0  # where quotients would fail
    arguments = (*leaves(m), normal(5, 2, seed=4).requires_grad_())
    size = (2,) if algorithm is chunked else ()
    assert torch.autograd.gradcheck(lambda *tensors: algorithm(*tensors, *size), arguments)


def test_every_algorithm_over_a_long_sequence() -> None:
    """Chunks of the default size, float32 against the float64 recurrence."""
    time, order = 203, 4
    m, x = example("diagonal", time, order, seed=3), normal(time, 3, seed=9)
    wanted, h = [], torch.zeros(order, 3, dtype=torch.float64)
    a = m.a.clamp(-1, 1)
    for t in range(time):
        h = a[t, :, None] * h + m.b[t, :, None] * x[t]
        wanted.append(m.c[t] @ h)
    single = [v.float() for v in (a, m.b, m.c, x)]
    for algorithm in (recurrent, quadratic, chunked, contraction):
        assert error(algorithm(a, m.b, m.c, x), torch.stack(wanted)) < 1e-13
        assert error(algorithm(*single), torch.stack(wanted)) < 1e-5


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([1, 2, 3, 7, 12]), st.integers(1, 3), st.integers(0, 1000))
def test_time_invariant_is_causal_convolution(time: int, order: int, seed: int) -> None:
    """eq:ssm: constant A, B, C convolve the input with the kernel c^T A^k b."""
    a, b, c = normal(order, order, seed=seed) / order, normal(order, seed=seed + 1), normal(order, seed=seed + 2)
    x = normal(time, 1, seed=seed + 3)
    kernel = [float(c @ torch.linalg.matrix_power(a, k) @ b) for k in range(time)]
    wanted = torch.zeros(time, 1, dtype=torch.float64)
    for t in range(time):
        for s in range(t + 1):
            wanted[t] += kernel[t - s] * x[s]
    got = recurrent(a.expand(time, -1, -1), b.expand(time, -1), c.expand(time, -1), x)
    assert error(got, wanted) < 1e-13


def test_diagonalisable_ssm_is_a_complex_diagonal_one() -> None:
    """Remark after thm:ssm-efficiency: A = V diag(w) V^-1 changes (A, b, c) into (w, V^-1 b, V^T c) over C."""
    time, order = 11, 4
    a, b, c = normal(order, order, seed=2) / 2, normal(time, order, seed=3), normal(time, order, seed=4)
    x = normal(time, 2, seed=5)
    w, v = torch.linalg.eig(a)
    assert w.imag.abs().max() > 0.1, "the example should need complex numbers"
    b_eig, c_eig = torch.linalg.solve(v, b.mT.to(v.dtype)).mT, (c.to(v.dtype) @ v)
    h = torch.zeros(order, 2, dtype=v.dtype)
    wanted = []
    for t in range(time):
        h = w[:, None] * h + b_eig[t, :, None] * x[t]
        wanted.append(c_eig[t] @ h)
    y = torch.stack(wanted)
    assert y.imag.abs().max() < 1e-12
    assert error(recurrent(a.expand(time, -1, -1), b, c, x), y.real) < 1e-12


@settings(deadline=None, max_examples=25)
@given(examples(kinds=("scalar",)))
def test_scalar_factors_are_a_mask_on_a_gram_matrix(m: SemiseparableMatrix) -> None:
    """The quadratic mode for scalar A is the dual form L o (C B^T); for N = 1 it is diag(c) 1SS(a) diag(b)."""
    mask = one_semiseparable(m.a)
    assert error(dense(m.a, m.b, m.c), mask * (m.c @ m.b.mT)) < 1e-13
    if m.order:
        b, c = m.b[:, :1], m.c[:, :1]
        assert error(dense(m.a, b, c), torch.diag(c[:, 0]) @ mask @ torch.diag(b[:, 0])) < 1e-13


@pytest.mark.usefixtures("unchecked_shapes")
def test_as_columns_refuses_what_has_another_length() -> None:
    with pytest.raises(ValueError, match=r"x has shape \(3, 2\), expected time 4"):
        as_columns(torch.zeros(3, 2), 4)
    with pytest.raises(ValueError, match=r"x has shape \(\)"):
        as_columns(torch.zeros(()), 4)
    with pytest.raises(ValueError, match=r"x has dtype torch\.int64"):
        as_columns(torch.zeros(4, 2, dtype=torch.int64), 4)
    assert as_columns(torch.zeros(4, 2, 3), 4).shape == (4, 6)
    assert as_columns(torch.zeros(0), 0).shape == (0, 1)
