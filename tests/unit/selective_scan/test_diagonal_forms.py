"""Every form of ``diagonal_ssm`` is the recurrence: its output, its final state and all its gradients."""

import math
from collections.abc import Callable

import pytest
import torch
from diagonal_examples import CHUNKS, DECAYS, PATHS, example, examples, recurrence, results, truth
from hypothesis import given, settings
from torch import Tensor
from unit.ssd.ssd_examples import BOUNDS, PATTERNS, Example, assert_equal, error

from statedual.selective_scan import diagonal_ssm, op

every_form = pytest.mark.parametrize("form", op.FORMS)
every_path = pytest.mark.parametrize("path", PATHS)


@every_form
@settings(deadline=None, derandomize=True, max_examples=100)
@given(examples(tuple(BOUNDS)), CHUNKS)
def test_any_input(form: str, case: Example, chunk: int) -> None:
    """All head patterns, narrow and wide heads, decays from 0 to -inf in one sequence, any length and chunk size."""
    assert_equal(results(case, form, chunk), truth(case), case)


@every_path
@pytest.mark.parametrize(
    ("pattern", "kind"), [*((name, "mixed") for name in PATTERNS), *(("grouped", kind) for kind in DECAYS)]
)
def test_head_patterns_and_decays(path: str, pattern: str, kind: str) -> None:
    form, head_dim = PATHS[path]
    case = example(37, groups=PATTERNS[pattern], batch=2, head_dim=head_dim, state=5, kind=kind)
    assert_equal(results(case, form, 12), truth(case), case)


@every_path
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("time", [0, 1, 2, 63, 64, 65, 1000])
def test_lengths(path: str, time: int, dtype: torch.dtype) -> None:
    form, head_dim = PATHS[path]
    case = example(time, 2, (2, 1, 1), dtype=dtype, head_dim=head_dim, state=4)
    assert_equal(results(case, form), truth(case), case)


@pytest.mark.parametrize("path", ["steps", "products"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 31, 32, 33, 64, 65, 100, 256, 299, 300, 301, 5000])
def test_chunk_sizes(path: str, chunk: int) -> None:
    """Any number: the tree of halves pads a chunk to a power of two, also one that exceeds the sequence."""
    case = example(300 if chunk > 3 else 100, 4, (4, 2, 1), kind="usual", head_dim=PATHS[path][1])
    assert_equal(results(case, "chunked", chunk), truth(case), case)


@pytest.mark.parametrize("path", ["steps", "products"])
@pytest.mark.parametrize("heads", range(1, 9))
def test_heads(path: str, heads: int) -> None:
    case = example(40, heads, (heads, 1, 1), batch=2, head_dim=PATHS[path][1])
    assert_equal(results(case, "chunked", 16), truth(case), case)


@pytest.mark.parametrize(("wide", "head_dims"), [(1, (1, 2, 7)), (999, (8, 16))])
def test_either_chunked_form_is_exact_at_any_head_dim(
    wide: int, head_dims: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of the two is faster decides between them, nothing else."""
    monkeypatch.setattr(op, "WIDE", wide)
    for head_dim in head_dims:
        case = example(70, groups=(6, 2, 3), head_dim=head_dim)
        assert_equal(results(case, "chunked", 24), truth(case), case)


@pytest.mark.parametrize(("head_dim", "wanted"), [(1, "steps"), (7, "steps"), (8, "products"), (64, "products")])
def test_wide_heads_take_products_and_narrow_ones_steps(
    head_dim: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks as large as is asked for."""
    taken: list[tuple[str, int]] = []

    def noted(name: str, operator: Callable) -> Callable:
        def run(*given):
            taken.append((name, given[6]))
            return operator(*given)

        return run

    for name in ("steps", "products"):
        monkeypatch.setattr(op, f"diagonal_ssm_{name}", noted(name, getattr(op, f"diagonal_ssm_{name}")))
    case = example(5, 1, (1, 1, 1), head_dim=head_dim)
    for chunk_size in (1, 3, 100, None):
        diagonal_ssm(*case.tensors()[:4], chunk_size=chunk_size)
    default = op.DEFAULT_CHUNK
    assert taken == [(wanted, 1), (wanted, 3), (wanted, 100), (wanted, default)]


@pytest.mark.parametrize("kind", ["strong_then_weak", "mixed", "by_channel", "none", "strong"])
def test_wide_heads_and_states_keep_all_digits_at_any_decay(kind: str) -> None:
    """Gated linear attention's sizes: a step of -1e4 before steps of -1e-4, of which differences of sums keep none."""
    case = example(200, 2, (2, 1, 2), head_dim=64, state=64, kind=kind)
    assert_equal(results(case, "chunked"), truth(case), case)


@every_path
def test_what_follows_a_strong_decay_is_as_if_it_were_alone(path: str) -> None:
    """All that remains of the sum behind -1e4 has to be right: y of the weak steps, each digit, in float32."""
    form, head_dim = PATHS[path]
    case = example(64, 1, (1, 1, 1), head_dim=head_dim, initial=False)
    log_a = torch.full_like(case.log_a, -1e-4)
    log_a[:, 7] = -1e4
    y = diagonal_ssm(case.x, log_a, case.b, case.c, form=form, chunk_size=64).y[:, 7:]
    wanted, _ = recurrence(*(t.double()[:, 7:] for t in (case.x, log_a, case.b, case.c)), None)
    assert error(y, wanted) < 1e-6


@every_path
def test_forgetting_cuts_the_gradients_of_its_own_channel_alone(path: str) -> None:
    """Exactly zero, wherever nothing before the cut is asked for; the other channels go on as if nothing had been."""
    form, head_dim = PATHS[path]
    case = example(40, 2, (2, 2, 2), head_dim=head_dim, kind="usual")
    case.log_a[:, 21, :, 1] = -math.inf
    case.grad_y[:, :21] = 0
    got = results(case, form, 16)
    for gradient in (got.initial_state, got.b[:, :21], got.log_a[:, :22]):
        assert not gradient[..., 1].any()
        assert gradient[..., [0, 2]].all()


@every_path
def test_gradients_by_finite_differences(path: str) -> None:
    """Independent of any formula, also of autograd's for the truth. Decays: 0.1 to 2, forgotten by one channel."""
    form, head_dim = PATHS[path]
    case = example(5, 2, (2, 1, 2), head_dim=head_dim, state=2, dtype=torch.float64, kind="usual")
    forget = torch.zeros_like(case.log_a)
    forget[:, 3, 0, 1] = -math.inf

    def function(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        return diagonal_ssm(x, 2 * log_a - 0.1 + forget, b, c, initial_state=initial, form=form, chunk_size=3)

    assert torch.autograd.gradcheck(function, [t.requires_grad_() for t in case.tensors()])


def test_the_recurrent_form_can_be_differentiated_twice() -> None:
    case = example(4, 2, (2, 1, 2), head_dim=2, state=2, dtype=torch.float64, kind="usual")

    def function(*tensors: Tensor) -> Tensor:
        return diagonal_ssm(*tensors[:4], initial_state=tensors[4], form="recurrent").y

    assert torch.autograd.gradgradcheck(function, [t.requires_grad_() for t in case.tensors()])


@pytest.mark.parametrize("path", ["steps", "products"])
def test_a_long_sequence(path: str) -> None:
    case = example(4099, 1, (1, 1, 1), head_dim=PATHS[path][1], state=2)
    assert_equal(results(case, "chunked"), truth(case), case)


@pytest.mark.parametrize("path", ["steps", "products"])
def test_equal_weak_decays_do_not_drift(path: str) -> None:
    """exp(-1e-4) is off by 2e-8 in float32, each time to the same side: nothing may multiply it thousands of times."""
    case = example(4099, 1, (1, 1, 1), head_dim=PATHS[path][1], state=1, kind="none")
    case.log_a.fill_(-1e-4)
    assert_equal(results(case, "chunked"), truth(case), case)


@pytest.mark.long
@every_path
@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_long_sequence_of_any_decays(path: str, dtype: torch.dtype, kind: str) -> None:
    form, head_dim = PATHS[path]
    case = example(4099, 2, (2, 1, 2), head_dim=head_dim, kind=kind, dtype=dtype)
    assert_equal(results(case, form, 200), truth(case), case)


@pytest.mark.long
@every_form
@settings(deadline=None, derandomize=True, max_examples=600)
@given(examples(tuple(BOUNDS)), CHUNKS)
def test_many_inputs(form: str, case: Example, chunk: int) -> None:
    assert_equal(results(case, form, chunk), truth(case), case)
