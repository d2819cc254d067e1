import pytest
import torch
from hypothesis import given, settings
from matrix_examples import KINDS, error, example, examples, normal

from statedual.semiseparable import SemiseparableMatrix
from statedual.semiseparable.transition import (
    act,
    as_dense,
    left_factor,
    products_from_first,
    products_to_last,
    right_factor,
    transpose,
)


@settings(deadline=None, max_examples=25)
@given(examples())
def test_structures_act_like_their_dense_matrices(m: SemiseparableMatrix) -> None:
    h = normal(len(m.b), m.order, 2, seed=5)
    for t in range(len(m.b)):
        matrix = torch.zeros(m.order, m.order, dtype=torch.float64)
        for n in range(m.order):
            for k in range(m.order):
                if m.a.ndim == 3:
                    matrix[n, k] = m.a[t, n, k]
                elif n == k:
                    matrix[n, k] = m.a[t, n] if m.a.ndim == 2 else m.a[t]
        assert torch.equal(as_dense(m.a, m.order)[t], matrix)
        assert error(act(m.a[t], h[t]), matrix @ h[t]) < 1e-14
        assert error(act(transpose(m.a)[t], h[t]), matrix.mT @ h[t]) < 1e-14
        assert error(act(m.a, h)[t], matrix @ h[t]) < 1e-14


@settings(deadline=None, max_examples=25)
@given(examples(min_order=1))
def test_products_and_factors(m: SemiseparableMatrix) -> None:
    time, order = m.b.shape
    factors = as_dense(m.a, order)
    from_first, to_last = (as_dense(f(m.a), order) for f in (products_from_first, products_to_last))
    left, right = left_factor(m.a, m.c), right_factor(m.a, m.b)
    for t in range(time):
        since, until = torch.eye(order, dtype=torch.float64), torch.eye(order, dtype=torch.float64)
        for s in range(1, t + 1):
            since = factors[s] @ since
        for s in range(t + 1, time):
            until = factors[s] @ until
        assert error(from_first[t], since) < 1e-13
        assert error(to_last[t], until) < 1e-13
        assert error(left[t], m.c[t] @ since) < 1e-13
        assert error(right[:, t], until @ m.b[t]) < 1e-13


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_factor_is_never_read(kind: str) -> None:
    a = example(kind, 5, 3).a
    unread = a.clone()
    unread[0] = torch.nan
    assert torch.equal(products_from_first(unread), products_from_first(a))
    assert torch.equal(products_to_last(unread), products_to_last(a))
