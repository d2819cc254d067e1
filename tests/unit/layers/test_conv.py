"""The short causal convolution against its sum as a loop: dense, packed, step by step, with states."""

import itertools
import re

import pytest
import torch
from layer_examples import difference
from torch import Tensor

from statedual.layers.conv import CausalConv1d

CHANNELS = 3
WIDTHS = (0, 1, 2, 4, 7)
OFFSETS = (0, 0, 2, 3, 3, 9, 10, 16, 16)  # empty at both ends and between; shorter than most widths
every_width = pytest.mark.parametrize("width", WIDTHS)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def plain(conv: CausalConv1d, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence x (time, channels) behind the inputs ``past`` (width - 1, channels): y, and the last inputs."""
    if conv.weight is None:
        return x, past
    history, ys = conv.width - 1, [x[:0]]
    for t in range(len(x)):
        y = torch.zeros(CHANNELS, dtype=x.dtype) if conv.bias is None else conv.bias
        for back in range(conv.width):  # the tap for the token that stands ``back`` positions before t
            source = x[t - back] if back <= t else past[history + t - back]
            y = y + conv.weight[:, 0, history - back] * source
        ys.append(y[None])
    return torch.cat(ys), torch.cat([past, x])[len(x) :]


def assert_same(got: list[Tensor], wanted: list[Tensor], leaves: list[Tensor]) -> None:
    """Results, and the gradients of their sums with random weights."""
    weights = [torch.randn_like(result) for result in got]
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        assert difference(one, other) < 1e-12
    sums = [
        sum((result * weight).sum() for result, weight in zip(results, weights, strict=True))
        for results in (got, wanted)
    ]
    gradients = (torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True) for total in sums)
    for one, other in zip(*gradients, strict=True):
        assert difference(one, other) < 1e-12


@pytest.mark.parametrize("time", [0, 1, 3, 11])
@pytest.mark.parametrize("bias", [True, False])
@every_width
def test_the_sum_forward_and_backward_from_any_state(width: int, bias: bool, time: int) -> None:
    conv = CausalConv1d(CHANNELS, width, bias).double()
    x, state = double(2, time, CHANNELS), double(2, max(width - 1, 0), CHANNELS)
    truths = [plain(conv, *row) for row in zip(x, state, strict=True)]
    wanted = [torch.stack(parts) for parts in zip(*truths, strict=True)]
    assert_same(list(conv(x, state)), wanted, [x, state, *conv.parameters()])


@every_width
def test_without_a_state_zeros_stand_before_the_start(width: int) -> None:
    conv = CausalConv1d(CHANNELS, width).double()
    x = double(2, 5, CHANNELS)
    state = conv.init_state(2, x)
    assert state.shape == (2, max(width - 1, 0), CHANNELS)
    assert not state.any()
    for one, other in zip(conv(x), conv(x, state), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@every_width
def test_packed_sequences_are_each_by_itself_forward_and_backward(width: int, dtype: torch.dtype, given: bool) -> None:
    conv = CausalConv1d(CHANNELS, width).double()
    x, state = double(1, OFFSETS[-1], CHANNELS), double(len(OFFSETS) - 1, max(width - 1, 0), CHANNELS)
    states = state if given else torch.zeros_like(state)
    pieces = [x[0, start:stop] for start, stop in itertools.pairwise(OFFSETS)]
    truths = [plain(conv, *row) for row in zip(pieces, states, strict=True)]
    wanted = [torch.cat([y for y, _ in truths])[None], torch.stack([last for _, last in truths])]
    got = conv(x, state if given else None, torch.tensor(OFFSETS, dtype=dtype))
    assert_same(list(got), wanted, [x, *([state] if given else []), *conv.parameters()])


@every_width
def test_no_sequences_at_all(width: int) -> None:
    y, state = CausalConv1d(CHANNELS, width)(torch.zeros(1, 0, CHANNELS), None, torch.tensor([0]))
    assert y.shape == (1, 0, CHANNELS)
    assert state.shape == (0, max(width - 1, 0), CHANNELS)


@every_width
def test_steps_are_the_sum_and_write_into_the_state(width: int) -> None:
    """Also where the state is part of a cache: nothing beside it changes."""
    conv = CausalConv1d(CHANNELS, width).double()
    history = max(width - 1, 0)
    x, cache = double(2, 9, CHANNELS).detach(), double(5, history + 2, CHANNELS).detach()
    state, before = cache[1:5:2, 1 : history + 1], cache.clone()
    truths = [plain(conv, *row) for row in zip(x, state.clone(), strict=True)]
    with torch.no_grad():
        y = torch.stack([conv.step(x[:, t], state) for t in range(9)], 1)
    assert difference(y, torch.stack([row for row, _ in truths])) < 1e-12
    assert torch.equal(state, torch.stack([last for _, last in truths]))
    before[1:5:2, 1 : history + 1] = state
    assert torch.equal(cache, before)


def test_the_gradient_of_a_step() -> None:
    conv = CausalConv1d(CHANNELS, 4).double()
    x, state = double(2, CHANNELS), double(2, 3, CHANNELS)
    walked = state.clone()
    got = [conv.step(x, walked), walked]
    truths = [plain(conv, token[None], past) for token, past in zip(x, state, strict=True)]
    wanted = [torch.cat([y for y, _ in truths]), torch.stack([last for _, last in truths])]
    assert_same(got, wanted, [x, state, *conv.parameters()])


@every_width
def test_a_call_changes_no_tensor_that_it_was_given(width: int) -> None:
    """And gives none of its memory away: whoever steps on the new state writes into that one only."""
    conv = CausalConv1d(CHANNELS, width)
    with torch.no_grad():
        for time, offsets in ((6, None), (0, None), (6, torch.tensor([0, 6])), (0, torch.tensor([0, 0]))):
            x, state = torch.randn(1, time, CHANNELS), torch.randn(1, max(width - 1, 0), CHANNELS)
            kept = x.clone(), state.clone()
            _, after = conv(x, state, offsets)
            conv.step(torch.randn(1, CHANNELS), after)
            assert torch.equal(x, kept[0])
            assert torch.equal(state, kept[1])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_a_state_holds_no_more_memory_than_itself(width: int, batch: int) -> None:
    conv = CausalConv1d(CHANNELS, width)
    dense, packed = torch.randn(batch, 100, CHANNELS), torch.randn(1, 100, CHANNELS)
    for _, state in (conv(dense), conv(packed, None, torch.linspace(0, 100, batch + 1).long())):
        assert state.untyped_storage().nbytes() == state.nbytes == batch * (width - 1) * CHANNELS * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 4, 7])
def test_half_precision_is_rounded_once(width: int, dtype: torch.dtype) -> None:
    """Sums are float32; forward and backward stay below 1e-2, and y is the truth rounded to its own dtype."""
    conv = CausalConv1d(CHANNELS, width).to(dtype)
    x, state = torch.randn(2, 50, CHANNELS).to(dtype), torch.randn(2, width - 1, CHANNELS).to(dtype)
    leaves = [x.requires_grad_(), state.requires_grad_(), *conv.parameters()]
    y, last = conv(x, state)
    grad = torch.randn(2, 50, CHANNELS).to(dtype)
    got = torch.autograd.grad(y, leaves, grad, materialize_grads=True)
    exact = CausalConv1d(CHANNELS, width).double()
    exact.load_state_dict({name: value.double() for name, value in conv.state_dict().items()})
    wide = [x.detach().double().requires_grad_(), state.detach().double().requires_grad_()]
    truth = torch.stack([plain(exact, *row)[0] for row in zip(*wide, strict=True)])
    wanted = torch.autograd.grad(truth, [*wide, *exact.parameters()], grad.double(), materialize_grads=True)
    assert y.dtype == last.dtype == dtype
    # The most that rounding to nearest is off by, and what float32 sums of a few numbers near 1 are.
    assert ((y - truth).abs() <= 0.5 * torch.finfo(dtype).eps * truth.abs() + 1e-6).all()
    for one, other in zip(got, wanted, strict=True):
        assert difference(one, other) < 1e-2
    with torch.no_grad():
        walked = state.clone()
        steps = torch.stack([conv.step(x[:, t], walked) for t in range(50)], 1)
    assert torch.equal(steps, y)


def test_a_state_of_another_dtype_is_taken_over() -> None:
    conv = CausalConv1d(CHANNELS, 4)
    x, state = torch.randn(2, 9, CHANNELS), torch.randn(2, 3, CHANNELS).bfloat16()
    for one, other in zip(conv(x, state), conv(x, state.float()), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("width", [0, 1, 4])
def test_packed_sequences_compile_whole_and_without_recompilation(width: int) -> None:
    """Offsets are never read on the host: one compiled graph serves any number and lengths of sequences."""
    torch.compiler.reset()
    conv = CausalConv1d(CHANNELS, width)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager", dynamic=True)
    stance = "default"
    # Numbers of sequences and of channels differ: the compiler takes equal sizes of a first call for equal ever after.
    for offsets in ((0, 2, 2, 7, 9, 11), (0, 5, 9, 9, 14, 17, 17, 19), (0, 0, 3)):
        x, state = torch.randn(1, offsets[-1], CHANNELS), torch.randn(len(offsets) - 1, max(width - 1, 0), CHANNELS)
        with torch.compiler.set_stance(stance):
            got = compiled(x, state, torch.tensor(offsets))
        for one, other in zip(got, conv(x, state, torch.tensor(offsets)), strict=True):
            torch.testing.assert_close(one, other)
        stance = "fail_on_recompile"


def test_packed_sequences_need_no_values_of_their_offsets() -> None:
    """On "meta" tensors have none: a host that asked for one would get an error."""
    conv = CausalConv1d(CHANNELS, 4).to("meta")
    y, state = conv(torch.zeros(1, 9, CHANNELS, device="meta"), None, torch.zeros(4, dtype=torch.int64, device="meta"))
    assert (y.shape, state.shape) == ((1, 9, CHANNELS), (3, 3, CHANNELS))


@pytest.mark.parametrize("width", [1, 4])
def test_it_is_pytorch_s_depthwise_convolution(width: int) -> None:
    conv, other = CausalConv1d(5, width), torch.nn.Conv1d(5, 5, width, groups=5, padding=width - 1)
    other.load_state_dict(conv.state_dict())  # of the same names and shapes
    x = torch.randn(2, 9, 5)
    torch.testing.assert_close(conv(x)[0], other(x.mT)[..., :9].mT)


def test_parameters() -> None:
    assert {name: tuple(p.shape) for name, p in CausalConv1d(6, 4).named_parameters()} == {
        "weight": (6, 1, 4),
        "bias": (6,),
    }
    assert [name for name, _ in CausalConv1d(6, 4, bias=False).named_parameters()] == ["weight"]
    assert list(CausalConv1d(6, 0).parameters()) == []
    conv = CausalConv1d(1000, 4)
    for parameter in conv.parameters():  # U(-1/2, 1/2): its ends, mean and variance
        assert 0.49 < parameter.abs().max() <= 0.5
        assert parameter.mean().abs() < 0.05
        assert parameter.var().item() == pytest.approx(1 / 12, rel=0.1)
    before = conv.weight.clone()
    conv.reset_parameters()
    assert not torch.equal(conv.weight, before)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("batch", "state", "offsets", "message"),
    [
        (2, (3, 3, CHANNELS), None, "state has rows 3 (axis 0 of (3, 3, 3)), expected 2"),
        (2, (2, 4, CHANNELS), None, "state has history 4 (axis 1 of (2, 4, 3)), expected 3"),
        (2, (2, 3, 5), None, "state has channels 5 (axis 2 of (2, 3, 5)), expected 3"),
        (2, (2, 3), None, "state has shape (2, 3), expected 3 axes (rows, history, channels)"),
        (1, (1, 3, CHANNELS), [0, 2, 5], "state has rows 1 (axis 0 of (1, 3, 3)), expected 2"),
        (2, None, [0, 2, 5], "cu_seqlens was given with batch 2, expected batch 1"),
        (1, None, [0.0, 5.0], "cu_seqlens has dtype torch.float32, expected int32 or int64"),
        (1, None, [[0, 5]], "cu_seqlens has shape (1, 2), expected (num_seqs + 1,)"),
    ],
)
def test_a_state_or_offsets_that_do_not_fit(
    batch: int, state: tuple[int, ...] | None, offsets: list | None, message: str
) -> None:
    given = None if state is None else torch.zeros(state)
    with pytest.raises(ValueError, match=re.escape(message)):
        CausalConv1d(CHANNELS, 4)(
            torch.zeros(batch, 5, CHANNELS), given, None if offsets is None else torch.tensor(offsets)
        )


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("state", "message"),
    [((2, 4, CHANNELS), "state has history 4"), ((1, 3, CHANNELS), "state has rows 1"), ((2, 3, 1), "channels 1")],
)
def test_a_step_with_a_state_that_does_not_fit(state: tuple[int, ...], message: str) -> None:
    """Some caches keep one input more, the newest: such a state would silently be read one position off."""
    with pytest.raises(ValueError, match=message):
        CausalConv1d(CHANNELS, 4).step(torch.zeros(2, CHANNELS), torch.zeros(state))
