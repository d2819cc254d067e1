"""Every form is the recurrence: its output, its final state and all its gradients."""

import pytest
import torch
from hypothesis import given, settings
from ssd_examples import (
    BOUNDS,
    CHUNKS,
    DECAYS,
    FORMS,
    PATTERNS,
    Example,
    assert_equal,
    example,
    examples,
    results,
    truth,
)

every_form = pytest.mark.parametrize("form", FORMS)
HALVES = (torch.bfloat16, torch.float16)


@every_form
@settings(deadline=None, derandomize=True, max_examples=60)
@given(examples(tuple(BOUNDS)), CHUNKS)
def test_any_input(form: str, case: Example, chunk: int) -> None:
    """All head patterns, decays from 0 to -inf in one sequence, all dtypes, any length and chunk size."""
    assert_equal(results(case, form, chunk), truth(case), case)


@every_form
@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_head_patterns_and_decays(form: str, pattern: str, kind: str) -> None:
    case = example(65, groups=PATTERNS[pattern], batch=2, kind=kind)
    assert_equal(results(case, form, 16), truth(case), case)


@every_form
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("time", [0, 1, 2, 63, 64, 65, 1000])
def test_lengths(form: str, time: int, dtype: torch.dtype) -> None:
    case = example(time, 2, (2, 1, 1), dtype=dtype, head_dim=5, state=4)
    assert_equal(results(case, form), truth(case), case)


@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 31, 32, 64, 65, 100, 128, 200, 256, 999, 1000, 1001, 5000])
def test_chunk_sizes(chunk: int) -> None:
    """The blocks of the decomposition (thm:algorithm) may have any size, also one that exceeds the sequence."""
    case = example(1000 if chunk > 2 else 100, 4, (4, 2, 1), kind="usual")
    assert_equal(results(case, "chunked", chunk), truth(case), case)


@pytest.mark.parametrize("heads", range(1, 9))
def test_heads(heads: int) -> None:
    case = example(70, heads, (heads, 1, 1), batch=2)
    expected = truth(case)
    for form in FORMS:
        assert_equal(results(case, form), expected, case)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_a_long_sequence(form: str, kind: str) -> None:
    case = example(4099, 2, (2, 1, 1), kind=kind)
    assert_equal(results(case, form), truth(case), case)


@pytest.mark.parametrize(("form", "dtype"), [("quadratic", torch.float32), *(("chunked", half) for half in HALVES)])
def test_a_long_sequence_quadratic_and_in_half_precision(form: str, dtype: torch.dtype) -> None:
    case = example(4099, 1, (1, 1, 1), dtype=dtype)
    assert_equal(results(case, form), truth(case), case)


def test_wide_heads_are_cut_into_segments() -> None:
    """Sizes of a real layer, at which the work buffers hold a part of the sequence and of the batch only."""
    case = example(500, 8, (8, 1, 1), batch=3, head_dim=64, state=64, kind="usual")
    assert_equal(results(case, "chunked", 256), truth(case), case)
    case = example(1100, 8, (8, 2, 8), head_dim=64, state=64, kind="mixed")
    assert_equal(results(case, "chunked", 64), truth(case), case)


@pytest.mark.long
@every_form
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_over_a_long_sequence(form: str, pattern: str, dtype: torch.dtype) -> None:
    groups, heads = PATTERNS[pattern], 6
    if form == "quadratic":  # time squared for each head: as few heads as the pattern allows
        heads = 2 if pattern != "grouped" else 6
        groups = tuple(min(k, heads) for k in groups)
    time = 4099 if heads == 2 or form != "quadratic" else 2049
    case = example(time, heads, groups, dtype=dtype)
    expected = truth(case)
    for chunk in (16, 64, 200, 256) if form == "chunked" else (None,):
        assert_equal(results(case, form, chunk), expected, case)


@pytest.mark.long
@every_form
@settings(deadline=None, derandomize=True, max_examples=600)
@given(examples(tuple(BOUNDS)), CHUNKS)
def test_many_inputs(form: str, case: Example, chunk: int) -> None:
    assert_equal(results(case, form, chunk), truth(case), case)
