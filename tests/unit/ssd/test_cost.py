"""The cost formulas (sec. 6.3) count what is done: in plain loops, and inside the forms themselves."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ssd_examples import PATTERNS, divisors, error, example, recurrence
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from statedual.ssd import ssd, ssd_step
from statedual.ssd.cost import (
    SSDShape,
    bmm_flops,
    chunked_flops,
    flops,
    intermediate_elements,
    least_bytes,
    state_elements,
    step_flops,
)

SHAPE = SSDShape(batch=2, time=44, heads=6, head_dim=5, state=3)


class Operations(NamedTuple):
    """Multiplications and additions: two for each term of a matrix product, and those of each element elsewhere."""

    products: int
    elementwise: int

    @property
    def total(self) -> int:
        return self.products + self.elementwise


ELEMENTWISE = {"mul": 1, "add": 1, "addcmul": 2}


def counted(run: Callable[[], object]) -> Operations:
    """From the shapes that the profiler sees, also inside of our own operators."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as recorded:
        run()
    products = elementwise = 0
    for event in recorded.events():
        name, shapes = event.name.removeprefix("aten::").removesuffix("_"), event.input_shapes
        if name in ("mm", "bmm", "baddbmm"):
            left, right = shapes[name == "baddbmm" :][:2]
            products += 2 * math.prod(left) * right[-1]
        elif name in ELEMENTWISE:
            operands = shapes[: 3 if name == "addcmul" else 2]
            elementwise += ELEMENTWISE[name] * math.prod(torch.broadcast_shapes(*operands))
    return Operations(products, elementwise)


def inputs(shape: SSDShape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, log_a, b, c of this shape, float64."""
    groups = (shape.heads_x or shape.heads, shape.heads_b, shape.heads_c)
    sizes = {"batch": shape.batch, "head_dim": shape.head_dim, "state": shape.state}
    made = example(shape.time, shape.heads, groups, **sizes, kind="usual", dtype=torch.float64, initial=False)
    return made.x, made.log_a, made.b, made.c


def test_bmm_counts_a_multiplication_and_an_addition_for_each_term() -> None:
    """BMM(B, M, N, K) in four loops, and in a product of matrices."""
    batch, m, n, k = 2, 3, 4, 5
    terms = sum(1 for _ in range(batch) for _ in range(m) for _ in range(n) for _ in range(k))
    assert bmm_flops(batch, m, n, k) == 2 * terms
    with FlopCounterMode(display=False) as counter:
        torch.bmm(torch.ones(batch, m, k), torch.ones(batch, k, n))
    assert bmm_flops(batch, m, n, k) == counter.get_total_flops()


def plain_chunks(x: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int) -> tuple[Tensor, Tensor, dict[str, int]]:
    """The block decomposition of one head, (time, width) each, one number after another; and what each part takes."""
    time, p, n = len(a), x.shape[1], b.shape[1]
    x, a, b, c = x.tolist(), a.tolist(), b.tolist(), c.tolist()
    done = dict.fromkeys(("gram", "diagonal", "right", "center", "left"), 0)

    def product(part: str, left: list[list[float]], right: list[list[float]], columns: int) -> list[list[float]]:
        result = [[0.0] * columns for _ in left]
        for i, row in enumerate(left):
            for j in range(columns):
                for one, other in zip(row, right, strict=True):
                    result[i][j] += one * other[j]
                    done[part] += 2
        return result

    state, ys = [[0.0] * n for _ in range(p)], []
    for start in range(0, time, chunk):
        own = range(start, min(start + chunk, time))
        columns = [list(row) for row in zip(*(b[s] for s in own), strict=True)]
        gram = product("gram", [c[t] for t in own], columns, len(own))
        masked = [
            [gram[i][j] * math.prod(a[s + 1 : t + 1]) if s <= t else 0.0 for j, s in enumerate(own)]
            for i, t in enumerate(own)
        ]
        inside = product("diagonal", masked, [x[s] for s in own], p)
        past = product("left", [c[t] for t in own], [list(column) for column in zip(*state, strict=True)], p)
        for i, t in enumerate(own):
            decay = math.prod(a[start : t + 1])
            ys.append([inside[i][j] + decay * past[i][j] for j in range(p)])
        weighted = [[x[s][j] * math.prod(a[s + 1 : own.stop]) for s in own] for j in range(p)]
        alone = product("right", weighted, [b[s] for s in own], n)
        total = math.prod(a[start : own.stop])
        for i in range(p):
            for j in range(n):
                state[i][j] = total * state[i][j] + alone[i][j]
                done["center"] += 2
    return torch.tensor(ys, dtype=torch.float64), torch.tensor(state, dtype=torch.float64), done


@pytest.mark.parametrize(("time", "chunk"), [(12, 4), (13, 4), (3, 4), (4, 4), (9, 1), (0, 4)])
def test_the_five_parts_are_counted_in_plain_loops(time: int, chunk: int) -> None:
    """A last chunk that is shorter counts as what it is. The loops are right: they are the recurrence."""
    shape = SSDShape(batch=1, time=time, heads=1, head_dim=3, state=2)
    x, log_a, b, c = inputs(shape)
    y, state, done = plain_chunks(x[0, :, 0], log_a[0, :, 0].exp(), b[0, :, 0], c[0, :, 0], chunk)
    wanted, final = recurrence(x, log_a, b, c, None)
    assert error(y.view(1, time, 1, 3), wanted) < 1e-12
    assert error(state.view(1, 1, 3, 2), final) < 1e-12
    got = chunked_flops(shape, chunk)
    assert vars(got) == done
    assert got.total == flops(shape, "chunked", chunk) == sum(done.values())


def test_every_head_and_row_adds_its_own_parts_and_every_pair_of_groups_one_gram() -> None:
    one = chunked_flops(replace(SHAPE, batch=1, heads=1), 16)
    for groups in PATTERNS.values():
        shape = replace(SHAPE, heads_x=groups[0], heads_b=groups[1], heads_c=groups[2])
        several = chunked_flops(shape, 16)
        assert several.gram == 2 * shape.grams * one.gram
        for part in ("diagonal", "right", "center", "left"):
            assert getattr(several, part) == 2 * 6 * getattr(one, part)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(heads=st.integers(1, 24), data=st.data())
def test_grams_are_the_distinct_pairs_of_groups(heads: int, data: st.DataObject) -> None:
    heads_b, heads_c = (data.draw(st.sampled_from(divisors(heads))) for _ in range(2))
    pairs = []
    for head in range(heads):
        pair = (head // (heads // heads_b), head // (heads // heads_c))
        if pair not in pairs:
            pairs.append(pair)
    shape = SSDShape(1, 1, heads, 1, 1, heads_b=heads_b, heads_c=heads_c)
    assert shape.grams == len(pairs)
    if max(heads_b, heads_c) % min(heads_b, heads_c) == 0:
        assert shape.grams == max(heads_b, heads_c)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("chunk", [7, 16, 44, 64])
def test_the_chunked_form_does_these_products_and_no_more(pattern: str, chunk: int) -> None:
    """Its matrix products, counted as they run, are the four parts that are such. (Grouped: a Gram for each of the 6
    pairs of the common refinement, of which 4 are distinct.)"""
    groups = PATTERNS[pattern]
    shape = replace(SHAPE, heads_x=groups[0], heads_b=groups[1], heads_c=groups[2])
    given = inputs(shape)
    done = counted(lambda: ssd(*given, chunk_size=chunk))
    parts = chunked_flops(shape, chunk)
    gram = parts.gram * (6 if pattern == "grouped" else shape.grams) // shape.grams
    assert done.products == gram + parts.diagonal + parts.right + parts.left


def test_the_recurrent_form_does_these_operations() -> None:
    """And two more for each of T N P, for it takes a decay in two parts, ``split_decay``."""
    given = inputs(SHAPE)
    done = counted(lambda: ssd(*given, form="recurrent")).total
    assert done == flops(SHAPE, "recurrent") + 2 * SHAPE.time * state_elements(SHAPE)


def test_a_step_does_these_operations_whatever_the_time() -> None:
    x, log_a, b, c = (t[:, 0] for t in inputs(SHAPE))
    state = torch.zeros(2, 6, 5, 3, dtype=torch.float64)
    done = counted(lambda: ssd_step(state, x, log_a, b, c))
    # And two more for each number of the state, whose decay comes in two parts (one product for each head).
    assert done.total == step_flops(SHAPE) + 2 * state_elements(SHAPE) + 2 * 6
    assert step_flops(SHAPE) == step_flops(replace(SHAPE, time=10**9))
    assert step_flops(SHAPE) * SHAPE.time == flops(SHAPE, "recurrent")


@pytest.mark.parametrize("pattern", ["multi_input", "multi_head"])
def test_the_quadratic_form_is_a_gram_matrix_a_mask_and_the_values(pattern: str) -> None:
    """Y = (L * C B^T) X, eq:ssm-quad, for these patterns; L is given, as in the paper."""
    groups = PATTERNS[pattern]
    shape = replace(SHAPE, heads_b=groups[1], heads_c=groups[2])
    x, log_a, b, c = (t.transpose(1, 2) for t in inputs(shape))
    sums = log_a.cumsum(-1)
    L = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).exp().tril()
    found: list[Tensor] = []
    done = counted(lambda: found.append((L * (c @ b.mT)) @ x))
    wanted, _ = recurrence(*inputs(shape), None)
    assert error(found[0].transpose(1, 2), wanted) < 1e-12
    assert done.total == flops(shape, "quadratic")


@pytest.mark.parametrize("pattern", ["multi_input", "multi_contract", "multi_head"])
def test_the_backward_does_these_products_and_no_more(pattern: str) -> None:
    """Once for each of its two factors, and once again where it was not kept."""
    groups = PATTERNS[pattern]
    shape = replace(SHAPE, heads_x=groups[0], heads_b=groups[1], heads_c=groups[2])
    leaves = [t.requires_grad_() for t in inputs(shape)]
    y, final = ssd(*leaves, chunk_size=16)
    weights = (torch.randn_like(y), torch.randn_like(final))
    done = counted(lambda: torch.autograd.grad((y, final), leaves, weights))
    parts = chunked_flops(shape, 16)
    more_grams = 3 * parts.gram * (6 if pattern == "grouped" else shape.grams) // shape.grams - 3 * parts.gram
    assert done.products == parts.backward + more_grams


@pytest.mark.parametrize("form", ["recurrent", "quadratic"])
def test_pytorch_s_own_counter_finds_the_products(form: str) -> None:
    """It counts matrix products only: 2 of the 5 operations of the recurrence, and nearly all of the quadratic form.
    That also computes states, two products more, of which the paper's formula has none."""
    shape = SSDShape(batch=1, time=256, heads=2, head_dim=64, state=64)
    with FlopCounterMode(display=False) as counter:
        ssd(*inputs(shape), form=form)
    found, formula = counter.get_total_flops(), flops(shape, form)
    if form == "recurrent":
        assert found == formula * 2 // 5
    else:
        assert found - 2 * bmm_flops(2, 256, 64, 64) == pytest.approx(formula, rel=0.01)


def square(time: int, size: int) -> SSDShape:
    """N = P, one head; the chunk will be as long."""
    return SSDShape(batch=1, time=time, heads=1, head_dim=size, state=size)


@pytest.mark.parametrize("size", [8, 64, 128])
def test_with_equal_sizes_the_total_is_time_times_state_squared(size: int) -> None:
    """Theorem 6.1 and Total Cost, N = P = Q: four products BMM(T/N, N, N, N), and a scan that does not count."""
    for time in (size, 10 * size, 1000 * size):
        parts = chunked_flops(square(time, size), size)
        one = bmm_flops(time // size, size, size, size)
        assert (parts.gram, parts.diagonal, parts.right, parts.left) == (one, one, one, one)
        assert parts.center == 2 * time * size
        assert parts.total == 8 * time * size**2 + 2 * time * size
        # O(T N) memory: the masks and the states at the borders, N numbers a position each.
        assert intermediate_elements(square(time, size), "chunked", size) == 2 * time * size


def test_the_chunked_form_is_linear_in_time() -> None:
    """Theorem 6.1, with any sizes: every chunk costs the same, and a tail no more than a chunk."""
    whole = [chunked_flops(replace(SHAPE, time=16 * k), 16).total for k in range(5)]
    assert whole == [k * whole[1] for k in range(5)]
    costs = [chunked_flops(replace(SHAPE, time=time), 16).total for time in range(60)]
    assert costs == sorted(costs)
    assert flops(replace(SHAPE, time=3200), "recurrent") == 100 * flops(replace(SHAPE, time=32), "recurrent")


# tab:compute as exponents of (time, size). "(Naive) memory" is what is held beside input and output.
TABLE = {
    "attention": {"training": (2, 1), "memory": (2, 0)},
    "ssm": {"state": (0, 2), "training": (1, 2), "inference": (0, 2), "memory": (1, 2)},
    "ssd": {"state": (0, 2), "training": (1, 2), "inference": (0, 2), "memory": (1, 1)},
}
FORM_OF = {"attention": "quadratic", "ssm": "recurrent", "ssd": "chunked"}


def quantity(name: str, model: str, time: int, size: int) -> int:
    shape, form = square(time, size), FORM_OF[model]
    match name:
        case "state":
            return state_elements(shape)
        case "training":
            return flops(shape, form, size)
        case "inference":
            return step_flops(shape)
        case "memory":
            return intermediate_elements(shape, form, size)
    raise ValueError(name)


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, row in TABLE.items() for name in row])
def test_the_table_of_costs(model: str, name: str) -> None:
    """Doubling time or size multiplies each quantity by 2 to its exponent. (The table counts a state for each of the P
    channels; here it is that of a head, N P. An attention step is no recurrence: its row has no state of ours.)"""
    in_time, in_size = TABLE[model][name]
    time, size = 1 << 20, 1 << 8
    now = quantity(name, model, time, size)
    assert quantity(name, model, 2 * time, size) / now == pytest.approx(2**in_time, rel=0.02)
    assert quantity(name, model, time, 2 * size) / now == pytest.approx(2**in_size, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_least_bytes_are_those_of_the_tensors(pattern: str, dtype: torch.dtype) -> None:
    case = example(44, groups=PATTERNS[pattern], batch=2, kind="usual", dtype=dtype, initial=False)
    given = [case.x, case.log_a, case.b, case.c]
    leaves = [t.requires_grad_() for t in given]
    y, final = ssd(*leaves)
    gradients = torch.autograd.grad((y, final), leaves, (case.grad_y, case.grad_final))
    groups = PATTERNS[pattern]
    shape = SSDShape(2, 44, 6, 4, 3, *groups)

    def size(*tensors: Tensor) -> int:
        return sum(t.nbytes for t in tensors)

    assert least_bytes(shape, dtype.itemsize) == size(*given, y, final)
    # The backward reads the inputs, dy and the gradient of the final state, and writes the gradients of the inputs.
    backward = size(*given, case.grad_y, case.grad_final, *gradients)
    assert least_bytes(shape, dtype.itemsize, backward=True) == backward


@pytest.mark.parametrize("function", [flops, intermediate_elements])
def test_unknown_forms(function) -> None:
    with pytest.raises(ValueError, match="form is 'linear', expected one of 'recurrent', 'quadratic', 'chunked'"):
        function(SHAPE, "linear")


@pytest.mark.parametrize("chunk", [0, -16, 2.5, True])
@pytest.mark.parametrize("function", [chunked_flops, lambda shape, chunk: flops(shape, "chunked", chunk)])
@pytest.mark.usefixtures("unchecked_shapes")
def test_chunks_are_positive_integers(function, chunk) -> None:
    with pytest.raises(ValueError, match=f"chunk is {chunk!r}, expected a positive integer"):
        function(SHAPE, chunk)


@pytest.mark.usefixtures("unchecked_shapes")
def test_memory_asks_for_a_positive_chunk_too() -> None:
    with pytest.raises(ValueError, match="chunk is 0, expected a positive integer"):
        intermediate_elements(SHAPE, "chunked", 0)
