import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statedual.semiseparable import scan
from statedual.semiseparable.scan_modes import MODES

LENGTHS = st.one_of(st.sampled_from([0, 1, 2, 3, 4, 5, 8, 16]), st.integers(0, 40))
every_mode = pytest.mark.parametrize("mode", MODES)


def recurrence(a: Tensor, b: Tensor, initial: Tensor | None = None) -> Tensor:
    """eq:ssm-scan in float64, time last, ``a`` of the shape of ``b``."""
    h = torch.zeros(b.shape[:-1], dtype=torch.float64) if initial is None else initial.double()
    states = torch.zeros(b.shape, dtype=torch.float64)
    for t in range(b.shape[-1]):
        h = a[..., t].double() * h + b[..., t].double()
        states[..., t] = h
    return states


def decays(shape: tuple[int, ...], kind: str, generator: torch.Generator) -> Tensor:
    a = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    match kind:
        case "zeros":
            return a * (torch.rand(shape, generator=generator) < 0.7)
        case "signs":
            return a.sign()
        case "ones":
            return torch.ones_like(a)
        case _:
            return a


@every_mode
@settings(deadline=None, max_examples=25)
@given(
    time=LENGTHS,
    batch=st.lists(st.integers(0, 3), max_size=3),
    axis=st.integers(0, 3),
    shared=st.lists(st.booleans(), min_size=4, max_size=4),
    kind=st.sampled_from(["uniform", "zeros", "signs", "ones"]),
    given_initial=st.booleans(),
    seed=st.integers(0, 999),
)
def test_any_shape_equals_the_recurrence(
    mode: str,
    time: int,
    batch: list[int],
    axis: int,
    shared: list[bool],
    kind: str,
    given_initial: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    axis = min(axis, len(batch))
    shape = [*batch[:axis], time, *batch[axis:]]
    b = torch.randn(shape, generator=generator, dtype=torch.float64)
    a_shape = [1 if one else size for one, size in zip(shared, shape, strict=False)]
    a = decays(tuple(a_shape), kind, generator)
    initial = torch.randn(batch, generator=generator, dtype=torch.float64) if given_initial else None
    expected = recurrence(a.expand(shape).movedim(axis, -1), b.movedim(axis, -1), initial).movedim(-1, axis)
    for dim in (axis, axis - len(shape)):
        h = scan(a, b, initial=initial, dim=dim, mode=mode)
        torch.testing.assert_close(h, expected, atol=1e-12, rtol=1e-12)


@every_mode
@pytest.mark.parametrize("time", [0, 1, 5])
def test_one_sequence_of_decays_serves_every_axis(mode: str, time: int) -> None:
    a, b = torch.rand(time), torch.randn(2, time, 5)
    expected = scan(a[:, None].expand(2, time, 5), b, dim=1, mode=mode)
    torch.testing.assert_close(scan(a, b, dim=1, mode=mode), expected, atol=0, rtol=0)
    torch.testing.assert_close(scan(a[None, :, None], b, dim=-2, mode=mode), expected, atol=0, rtol=0)


@every_mode
def test_a_scalar_is_a_constant_decay(mode: str) -> None:
    b = torch.randn(2, 7)
    expected = scan(torch.full((7,), 0.5), b, mode=mode)
    torch.testing.assert_close(scan(torch.tensor(0.5), b, mode=mode), expected, atol=0, rtol=0)


@every_mode
@pytest.mark.parametrize("split", [0, 1, 4, 11])
def test_splitting_and_passing_the_state_is_the_same_function(mode: str, split: int) -> None:
    a, b = torch.rand(11, dtype=torch.float64), torch.randn(3, 11, dtype=torch.float64)
    initial = torch.randn(3, dtype=torch.float64)
    left = scan(a[:split], b[:, :split], initial=initial, mode=mode)
    state = left[:, -1] if split else initial
    right = scan(a[split:], b[:, split:], initial=state, mode=mode)
    whole = scan(a, b, initial=initial, mode=mode)
    torch.testing.assert_close(torch.cat([left, right], -1), whole, atol=1e-13, rtol=1e-13)


@every_mode
def test_reduces_to_cumprod_without_entries(mode: str) -> None:
    """With b = 0 the cumprodsum is the cumprod, times h_{-1}: with h_{-1} = 0 it is 0."""
    a = torch.randn(13, dtype=torch.float64)
    h = scan(a, torch.zeros_like(a), initial=torch.tensor(1.0, dtype=torch.float64), mode=mode)
    torch.testing.assert_close(h, a.cumprod(0), atol=0, rtol=1e-13)
    impulse = torch.zeros_like(a)
    impulse[0] = a[0]
    torch.testing.assert_close(scan(a, impulse, mode=mode), a.cumprod(0), atol=0, rtol=1e-13)
    assert not scan(a, torch.zeros_like(a), mode=mode).any()


@every_mode
def test_reduces_to_cumsum_without_decay(mode: str) -> None:
    b = torch.randn(13, dtype=torch.float64)
    torch.testing.assert_close(scan(torch.ones_like(b), b, mode=mode), b.cumsum(0), atol=1e-14, rtol=1e-13)


@every_mode
@pytest.mark.parametrize("time", [1, 2, 3, 6])
def test_gradients(mode: str, time: int) -> None:
    a = torch.rand(2, time, 1, dtype=torch.float64) * 2 - 1
    a[0, time // 2] = 0
    b, initial = torch.randn(2, time, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (a, b, initial)]

    def from_initial(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
        return scan(a, b, initial=initial, dim=1, mode=mode)

    assert torch.autograd.gradcheck(from_initial, inputs)
    assert torch.autograd.gradcheck(lambda a, b: scan(a, b, dim=1, mode=mode), inputs[:2])
    if time == 3:
        assert torch.autograd.gradgradcheck(from_initial, inputs)


@every_mode
def test_float32_over_a_long_stretch(mode: str) -> None:
    """Products underflow on the way and zeros forget: nothing is divided, so nothing overflows."""
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(2000, generator=generator)
    a[500:900], a[1200], a[1600:] = 1e-6, 0, 1
    b = torch.randn(2, 2000, generator=generator)
    expected = recurrence(a.expand_as(b), b)
    h = scan(a, b, mode=mode)
    assert h.dtype == torch.float32
    assert torch.linalg.norm(h - expected) / torch.linalg.norm(expected) < 1e-6


@every_mode
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(mode: str, dtype: torch.dtype) -> None:
    a, b, initial = torch.rand(50).to(dtype), torch.randn(3, 50).to(dtype), torch.randn(3).to(dtype)
    h = scan(a, b, initial=initial, mode=mode)
    expected = scan(a.float(), b.float(), initial=initial.float(), mode=mode)
    torch.testing.assert_close(h, expected.to(dtype), atol=0, rtol=0)


def test_mixed_precision_is_computed_in_the_widest_and_returned_as_b() -> None:
    a, b, initial = torch.rand(50, dtype=torch.float64), torch.randn(3, 50), torch.randn(3).bfloat16()
    h = scan(a, b, initial=initial)
    expected = recurrence(a.expand_as(b), b, initial).float()
    torch.testing.assert_close(h, expected, atol=1e-7, rtol=2e-7)
    assert scan(a, b.bfloat16()).dtype == torch.bfloat16


@every_mode
@pytest.mark.parametrize("time", [1, 2, 5])
def test_result_shares_no_memory_with_the_input(mode: str, time: int) -> None:
    b = torch.randn(time)
    kept = b.clone()
    scan(torch.rand(time), b, mode=mode).zero_()
    assert torch.equal(b, kept)


@every_mode
@pytest.mark.usefixtures("unchecked_shapes")
def test_compiles_whole(mode: str) -> None:
    torch.compiler.reset()  # each mode is a recompilation, and their number is limited
    a, b, initial = torch.rand(9), torch.randn(2, 9), torch.randn(2)
    compiled = torch.compile(scan, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(a, b, initial=initial, mode=mode), scan(a, b, initial=initial, mode=mode), atol=0, rtol=0
    )


@every_mode
def test_vmap(mode: str) -> None:
    a, b = torch.rand(4, 6), torch.randn(4, 6)
    mapped = torch.vmap(lambda a, b: scan(a, b, mode=mode))(a, b)
    torch.testing.assert_close(mapped, scan(a, b, mode=mode), atol=0, rtol=0)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "parallel"}, "mode is 'parallel', expected one of 'sequential', 'associative'"),
        ({"b": torch.zeros(2, 5, dtype=torch.int64)}, "b has dtype torch.int64"),
        ({"a": torch.zeros(5, dtype=torch.complex64)}, "a has dtype torch.complex64"),
        ({"initial": torch.zeros(2, dtype=torch.bool)}, "initial has dtype torch.bool"),
        ({"a": torch.zeros(5, device="meta")}, "a is on meta, expected cpu"),
        ({"dim": 2}, r"dim is 2, expected an axis of b, which has shape \(2, 5\)"),
        ({"dim": -3}, "dim is -3"),
        ({"a": torch.zeros(4)}, r"a has shape \(4,\), expected \(5,\), one value a step of axis -1 of b"),
        ({"a": torch.zeros(5), "dim": 0}, r"a has shape \(5,\), expected \(2,\), one value a step of axis 0 of b"),
        ({"a": torch.zeros(3, 5)}, r"a has shape \(3, 5\), .* broadcasts to \(2, 5\), the shape of b"),
        ({"a": torch.zeros(1, 2, 5)}, r"a has shape \(1, 2, 5\)"),
        ({"initial": torch.zeros(5)}, r"initial has shape \(5,\), expected one that broadcasts to \(2,\)"),
        ({"initial": torch.zeros(1, 2)}, r"initial has shape \(1, 2\)"),
        ({"b": torch.tensor(1.0)}, r"dim is -1, expected an axis of b, which has shape \(\)"),
    ],
)
def test_bad_input_is_named(changes: dict[str, object], message: str) -> None:
    arguments = {"a": torch.zeros(5), "b": torch.zeros(2, 5)} | changes
    with pytest.raises(ValueError, match=message):
        scan(**arguments)
