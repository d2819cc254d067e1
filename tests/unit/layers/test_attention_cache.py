"""Key and value caches: slots, windows, room, rows of different length, and states of others."""

import itertools

import pytest
import torch
from attention_examples import D_MODEL, TIME, block, dense_rows, every_case, tokens
from layer_examples import copied, difference, state_difference
from torch import Tensor

from statedual.layers import AttentionConfig, AttentionState


@every_case
def test_rows_of_different_length_go_on_together(case: str) -> None:
    """Packed prefill of ragged sequences, then pieces and single tokens of all rows side by side, and packed again."""
    module, before = block(case), [0, 3, 12, 1, 6]
    u = tokens(len(before), 30)
    truth = dense_rows(module, u)
    offsets = [0, *itertools.accumulate(before)]
    with torch.no_grad():
        row = torch.cat([u[i, :n] for i, n in enumerate(before)])[None]
        y, state = module(row, None, torch.tensor(offsets))
        for i, n in enumerate(before):
            assert difference(y[0, offsets[i] : offsets[i + 1]], truth[i, :n]) < 1e-12
        assert state.length.tolist() == before

        def piece(tensor: Tensor, start: int, stop: int) -> Tensor:
            return torch.stack([tensor[i, n + start : n + stop] for i, n in enumerate(before)])

        y, state = module(piece(u, 0, 5), state)
        assert difference(y, piece(truth, 0, 5)) < 1e-12
        state = state.with_room(6)
        for t in range(5, 11):
            y = module.step(piece(u, t, t + 1)[:, 0], state)
            assert difference(y, piece(truth, t, t + 1)[:, 0]) < 1e-12
        # Sequence i takes i tokens more.
        more = [u[i, n + 11 : n + 11 + i] for i, n in enumerate(before)]
        y, state = module(torch.cat(more)[None], state, torch.tensor([0, 0, 1, 3, 6, 10]))
        wanted = torch.cat([truth[i, n + 11 : n + 11 + i] for i, n in enumerate(before)])[None]
        assert difference(y, wanted) < 1e-12
        assert state.length.tolist() == [n + 11 + i for i, n in enumerate(before)]
        y, _ = module(torch.stack([u[i, n + 11 + i][None] for i, n in enumerate(before)]), state)
        assert difference(y, torch.stack([truth[i, n + 11 + i][None] for i, n in enumerate(before)])) < 1e-12


def test_a_decoded_token_sees_all_keys_and_the_inputs_of_the_convolution() -> None:
    """Two defects of mamba_ssm: decode saw key 0 only, and kept the outputs of the convolution as its inputs."""
    module, u = block("grouped_convolution"), tokens(1, 9)
    truth = dense_rows(module, u)
    with torch.no_grad():
        _, state = module(u[:, :6])
        assert difference(state.conv, (u @ module.in_proj.weight.T)[:, 4:6]) < 1e-12
        state = state.with_room(3)
        for t in range(6, 8):
            assert difference(module.step(u[:, t], state), truth[:, t]) < 1e-12
        last = module.step(u[:, 8], copied(state))
        assert difference(last, truth[:, 8]) < 1e-12
        for position in range(8):
            other = copied(state)
            other.values[:, position] += 1
            assert difference(module.step(u[:, 8], other), last) > 1e-6


@pytest.mark.parametrize("case", ["plain", "window"])
def test_under_autocast_a_float32_cache_goes_on(case: str) -> None:
    module, u = block(case, torch.float32), tokens(2, TIME, torch.float32)
    truth = dense_rows(module, u)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y, state = module(u[:, :20], module.init_state(2))
        assert state.keys.dtype == torch.float32
        state = state.with_room(TIME)
        steps = [module.step(u[:, t], state) for t in range(20, TIME)]
    assert difference(torch.cat([y, torch.stack(steps, 1)], 1), truth) < 1e-2


@pytest.mark.parametrize("case", ["plain", "grouped", "window"])
def test_a_cache_of_more_bits_goes_on(case: str) -> None:
    """A state decides in which precision it is kept and attended to; the output keeps the dtype of the parameters."""
    module, u = block(case, torch.bfloat16), tokens(2, TIME, torch.bfloat16)
    wide = block(case)
    wide.load_state_dict(module.state_dict())
    with torch.no_grad():
        _, state = module(u[:, :9])
        state = state._replace(keys=state.keys.float(), values=state.values.float())
        y, state = module(u[:, 9:20], state)
        state = state.with_room(1)
        last = module.step(u[:, 20], state)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.bfloat16)
    assert state.keys.dtype == state.values.dtype == torch.float32
    assert difference(torch.cat([y, last[:, None]], 1), dense_rows(wide, u.double())[:, 9:21]) < 1e-2


def test_slots_of_the_full_cache() -> None:
    """A key's slot is its position; what is free is zero; keys are rotated, values and keys are convolved."""
    module, u = block("grouped_convolution"), tokens(2, 9)
    _, state = module(u)
    assert isinstance(state, AttentionState)
    assert state.keys.shape == state.values.shape == (2, 9, 2, 4)
    for slots in (state.keys, state.values):
        assert slots.untyped_storage().nbytes() == slots.numel() * 8  # not a view that keeps the queries too
    _, ragged = module(u[:, :5].flatten(0, 1)[None], None, torch.tensor([0, 3, 10]))
    assert ragged.length.tolist() == [3, 7]
    assert not ragged.keys[0, 3:].any()
    _, both = module(u[:, 5:], ragged)
    assert both.keys.shape[1] == 7 + 4
    assert torch.equal(both.keys[0, :3], ragged.keys[0, :3])
    assert both.keys[0, :7].all(-1).all()
    assert not both.keys[0, 7:].any()
    assert not both.values[0, 7:].any()
    # Packed sequences take no more slots than the longest has positions, whatever room there was.
    _, packed = module(u[:1, :3], both.with_room(50), torch.tensor([0, 2, 3]))
    assert packed.length.tolist() == [9, 12]
    assert packed.keys.shape[1] == 12
    assert torch.equal(packed.keys[0, :7], both.keys[0, :7])


def test_the_window_is_chronological() -> None:
    module, u = block("window"), tokens(1, 9)
    full = block("plain")
    full.load_state_dict(module.state_dict())
    _, all_keys = full(u)
    walked = module.init_state(1)
    for t in range(9):
        storage = walked.keys.data_ptr(), walked.values.data_ptr()
        module.step(u[:, t], walked)
        assert (walked.keys.data_ptr(), walked.values.data_ptr()) == storage
        _, state = module(u[:, : t + 1])
        assert state_difference(walked, state) < 1e-12
        valid = min(t + 1, 5)
        assert difference(state.keys[:, 5 - valid :], all_keys.keys[:, t + 1 - valid : t + 1]) < 1e-12
        assert difference(state.values[:, 5 - valid :], all_keys.values[:, t + 1 - valid : t + 1]) < 1e-12
        assert not state.keys[:, : 5 - valid].any()
        assert state.keys.untyped_storage().nbytes() == 5 * D_MODEL * 8  # not a view of all keys
    assert walked.with_room(1000) is walked


def test_room_grows_by_half() -> None:
    module = block("plain")
    state = module.init_state(2)
    assert state.with_room(0) is state
    state = state.with_room(1)
    assert state.keys.shape[1] == 1
    _, state = module(tokens(2, 10))
    roomy = state.with_room(1)
    assert roomy.keys.shape == roomy.values.shape == (2, 15, 4, 4)
    assert torch.equal(roomy.keys[:, :10], state.keys)
    assert torch.equal(roomy.values[:, :10], state.values)
    assert roomy.with_room(5) is roomy
    assert roomy.with_room(6).keys.shape[1] == 23
    assert roomy.with_room(90).keys.shape[1] == 100
    # The longest row decides.
    ragged = roomy._replace(length=torch.tensor([3, 12]))
    assert ragged.with_room(3) is ragged
    assert ragged.with_room(4).keys.shape[1] == 23
    empty = module.init_state(0)
    assert empty.with_room(2).keys.shape[1] == 2


def test_a_step_without_room_is_refused() -> None:
    module = block("plain")
    with pytest.raises(IndexError):
        module.step(tokens(1, 1)[:, 0], module.init_state(1))


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_state_whose_last_keys_are_elsewhere_is_told() -> None:
    """Who goes on with a state that step has replaced by a larger one lacks its newest key."""
    module = AttentionConfig(heads=2).build(16)
    with torch.no_grad():
        _, state = module(torch.randn(1, 6, 16))
        module.step(torch.randn(1, 16), state.with_room(1))
        with pytest.raises(ValueError, match="state has length 7 and 6 slots"):
            state.with_room(1)


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_state_of_another_block_is_told() -> None:
    module, u = AttentionConfig(heads=2, window=4).build(16), torch.randn(1, 16)
    others = (
        AttentionConfig(heads=2, window=8),
        AttentionConfig(heads=4, window=4),
        AttentionConfig(heads=2, head_dim=4),
    )
    for other in others:
        state = other.build(16).init_state(1)
        with pytest.raises(ValueError, match="keys of state has"):
            module.step(u, state)
        with pytest.raises(ValueError, match="keys of state has"):
            module(u[:, None], state)


@pytest.mark.parametrize("window", [None, 3])
def test_a_step_can_be_differentiated(window: int | None) -> None:
    module = AttentionConfig(heads=2, window=window).build(16).double()
    u = torch.randn(1, 6, 16, dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(module(u)[0][:, -1].square().sum(), u)
    _, state = module(u[:, :5])
    (stepped,) = torch.autograd.grad(module.step(u[:, 5], copied(state).with_room(1)).square().sum(), u)
    assert difference(stepped, whole) < 1e-12
