"""What holds for every mask: its matrix, its product, its share in either form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_examples import NAMES, REAL_NAMES, STRUCTURED_NAMES, Written, build, example, parameters

from statedual.masked_attention import Causal, Dense, OneSemiseparable, Toeplitz

LENGTHS = st.sampled_from([0, 1, 2, 3, 5, 8, 11])
BATCHES = st.sampled_from([(), (2,), (3, 1)])


def close(result: torch.Tensor, truth: torch.Tensor) -> None:
    torch.testing.assert_close(result, truth.to(result.dtype), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=12)
@given(time=LENGTHS, batch=BATCHES, seed=st.integers(0, 99))
def test_dense_is_the_matrix_entry_by_entry(name: str, time: int, batch: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    mask, L = example(name, time, batch)
    close(mask.dense(time, dtype=torch.float64), L)
    assert mask.batch == L.shape[:-2]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=12)
@given(time=LENGTHS, batch=BATCHES, z_batch=st.sampled_from([(), (1,), (3, 2)]), seed=st.integers(0, 99))
def test_matmul_is_the_matrix_product(
    name: str, time: int, batch: tuple[int, ...], z_batch: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    mask, L = example(name, time, batch)
    z = torch.randn(*z_batch, time, 3, dtype=torch.float64)
    result, truth = mask.matmul(z), L @ z.to(L.dtype)
    close(result, truth)
    assert result.dtype == L.dtype


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=12)
@given(time=LENGTHS, batch=BATCHES, g_batch=st.sampled_from([(), (1,), (3, 2)]), seed=st.integers(0, 99))
def test_hadamard_is_the_elementwise_product(
    name: str, time: int, batch: tuple[int, ...], g_batch: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    mask, L = example(name, time, batch)
    g = torch.randn(*g_batch, time, time, dtype=torch.float64)
    close(mask.hadamard(g), g * L)


@pytest.mark.parametrize("name", NAMES)
def test_float64_results_do_not_lose_digits_of_float32_parameters(name: str) -> None:
    given = [parameter.float() for parameter in parameters(name, 9)]
    exact = build(name, [parameter.double() for parameter in given])
    z, g = torch.randn(9, 2, dtype=torch.float64), torch.randn(9, 9, dtype=torch.float64)
    close(build(name, given).matmul(z), exact.matmul(z))
    close(build(name, given).hadamard(g), exact.hadamard(g))


@pytest.mark.parametrize("name", REAL_NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    time = 40
    mask = build(name, [parameter.float() * 0.9 for parameter in parameters(name, time)])
    z, g = torch.randn(time, 3).to(dtype), torch.randn(time, time).to(dtype)
    assert torch.equal(mask.matmul(z), mask.matmul(z.float()).to(dtype))
    assert torch.equal(mask.hadamard(g), mask.hadamard(g.float()).to(dtype))


@pytest.mark.parametrize("name", ["fourier", "turned_fourier"])
def test_half_precision_gives_complex_results_of_single_precision(name: str) -> None:
    mask = build(name, parameters(name, 5))
    z = torch.randn(5, 3).bfloat16()
    assert mask.matmul(z).dtype == torch.complex64
    assert torch.equal(mask.matmul(z), mask.matmul(z.float()))


# Finite differences of -inf do not exist: test_masks.py has the gradients of "forgetting".
@pytest.mark.parametrize("name", [name for name in NAMES if name != "forgetting"])
@pytest.mark.parametrize("time", [1, 2, 5])
def test_gradients_of_both_forms(name: str, time: int) -> None:
    given = [parameter.requires_grad_() for parameter in parameters(name, time)]
    z = torch.randn(time, 2, dtype=torch.float64, requires_grad=True)
    g = torch.randn(time, time, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, *given: build(name, list(given)).matmul(z), (z, *given))
    assert torch.autograd.gradcheck(lambda g, *given: build(name, list(given)).hadamard(g), (g, *given))


@pytest.mark.parametrize("name", STRUCTURED_NAMES)
def test_structured_masks_multiply_in_linear_memory(name: str) -> None:
    """`def:sma`: L is a structured matrix, whose product never writes L down. (An FFT counts as what it writes.)"""

    def written(time: int) -> Written:
        mask = build(name, parameters(name, time))
        with Written() as count:
            mask.matmul(torch.randn(time, 1))
        return count

    short, long = written(256), written(512)
    assert short.largest <= 8 * 256
    assert long.largest <= 2 * short.largest
    assert long.total <= 2.1 * short.total


@pytest.mark.parametrize("name", ["one_semiseparable", "dense_semiseparable", "toeplitz", "dense"])
@pytest.mark.usefixtures("unchecked_shapes")
def test_a_mask_of_another_length_is_an_error(name: str) -> None:
    mask, _ = example(name, 4)
    with pytest.raises(ValueError, match=r"asked for \(time, source\) = \(4, 3\), expected \(4, 4\)"):
        mask.matmul(torch.randn(3, 2))
    with pytest.raises(ValueError, match="expected"):
        mask.dense(5)
    with pytest.raises(ValueError, match="expected"):
        mask.hadamard(torch.randn(3, 3))


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_structured_mask_is_square() -> None:
    with pytest.raises(ValueError, match="structured masks are square"):
        Causal().hadamard(torch.randn(3, 4))


@pytest.mark.usefixtures("unchecked_shapes")
def test_integers_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"z has dtype torch\.int64"):
        Causal().matmul(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"g has dtype torch\.int64"):
        Causal().hadamard(torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"log_a has dtype torch\.int64"):
        OneSemiseparable(torch.zeros(3, dtype=torch.int64))


def test_dense_follows_the_default_dtype_or_the_one_asked_for() -> None:
    assert Causal().dense(3).dtype == torch.float32
    assert Dense(torch.ones(2, 3, dtype=torch.float64)).dense(2).dtype == torch.float32
    assert Causal().dense(3, dtype=torch.float64).dtype == torch.float64
    assert example("fourier", 3)[0].dense(3).dtype == torch.complex64


def test_a_mask_with_a_length_of_its_own_needs_none_to_be_dense() -> None:
    alpha = torch.rand(5)
    assert torch.equal(Toeplitz(alpha).dense(), Toeplitz(alpha).dense(5))
    with pytest.raises(ValueError, match="time is None, expected a length: mask Causal is defined for any"):
        Causal().dense()
