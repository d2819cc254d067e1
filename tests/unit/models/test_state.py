"""States as values: snapshots, rows, room, files."""

import itertools
import os
from pathlib import Path

import pytest
import torch
from model_examples import (
    EXAMPLES,
    FEW,
    HAVE_STATE,
    difference,
    memory,
    model,
    packed,
    same,
    state_difference,
    tensors_of,
    tokens,
)
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.utils import _pytree

from statedual.layers import AttentionState, Stateless
from statedual.models import LanguageModel, ModelState

# Shapes are checked in the tests of the layers; here it would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked_shapes")
every_example = pytest.mark.parametrize("name", EXAMPLES)
every_state = pytest.mark.parametrize("name", HAVE_STATE)
few = pytest.mark.parametrize("name", FEW)
HYBRID = "hybrid, everything"


@torch.no_grad()
def read(lm: LanguageModel, *lengths: int) -> ModelState:
    """The state of rows of these lengths."""
    return packed(lm, [tokens(length) for length in lengths], None)[1]


def on(lm: LanguageModel, state: ModelState, ids: torch.Tensor) -> torch.Tensor:
    """The logits of a few more steps, (rows, time, vocabulary); ``state`` is left as it is."""
    state, logits = state.clone(), []
    with torch.no_grad():
        for token in ids.unbind(1):
            output = lm.step(token, state)
            logits.append(output.logits)
            state = output.state
    return torch.stack(logits, 1)


@every_example
def test_a_clone_shares_no_memory(name: str) -> None:
    state = read(model(name), 5, 3)
    copy = state.clone()
    assert same(copy, state)
    assert not memory(*tensors_of(copy)) & memory(*tensors_of(state))


@few
def test_every_tensor_of_a_state_has_memory_of_its_own(name: str) -> None:
    """A step that overwrites one must not reach another."""
    lm = model(name)
    for state in (lm.init_state(2), read(lm, 5, 3), read(lm, 4).with_room(3)):
        held = [tensor for tensor in tensors_of(state) if tensor.numel()]
        assert len(memory(*held)) == len(held)


@few
@torch.no_grad()
def test_back_to_a_snapshot(name: str) -> None:
    """What was tried is forgotten, and what is read instead is as if nothing had been tried."""
    lm = model(name)
    prompt, tried, instead = tokens(2, 6), tokens(2, 5), tokens(2, 4)
    state = lm(prompt).state.with_room(5)
    snapshot = state.clone()
    for token in tried.unbind(1):
        state = lm.step(token, state).state
    if name != "mlp":
        assert not same(state, snapshot)
    for token in instead.unbind(1):
        output = lm.step(token, snapshot)
        snapshot = output.state
    wanted = lm(torch.cat([prompt, instead], 1))
    assert difference(output.logits, wanted.logits[:, -1]) < 1e-5
    assert state_difference(snapshot, wanted.state) < 1e-5


ROWS = {
    "slice": (slice(1, 3), [1, 2]),
    "every second": (slice(None, None, 2), [0, 2]),
    "list": ([2, 0, 2], [2, 0, 2]),
    "negative": ([-1], [3]),
    "none": ([], []),
    "tensor": (torch.tensor([3, 1]), [3, 1]),
    "bools": (torch.tensor([True, False, False, True]), [0, 3]),
    "list of bools": ([False, True, True, False], [1, 2]),
}


@few
@pytest.mark.parametrize("which", ROWS)
def test_select(name: str, which: str) -> None:
    state = read(model(name), 5, 3, 0, 1)
    given, wanted = ROWS[which]
    chosen = state.select(given)
    for got, block in zip(tensors_of(chosen), tensors_of(state), strict=True):
        assert got.dtype == block.dtype
        assert torch.equal(got, block[torch.tensor(wanted, dtype=torch.int64)])
    assert chosen.rows == (0 if name == "mlp" else len(wanted))
    assert not memory(*tensors_of(chosen)) & memory(*tensors_of(state))


@pytest.mark.parametrize("given", [2, torch.tensor(1), [[0, 1]], torch.tensor([0.0]), [0.5], [2], [0, -3]])
def test_rows_that_are_none(given: object) -> None:
    state = read(model(HYBRID), 5, 3)
    with pytest.raises(ValueError, match=r"rows is .*, expected numbers"):
        state.select(given)


@every_state
def test_split_and_cat(name: str) -> None:
    state = read(model(name), 5, 3, 0)
    rows = state.split()
    assert [row.rows for row in rows] == [1, 1, 1]
    assert all(same(row, state.select([index])) for index, row in enumerate(rows))
    joined = ModelState.cat(rows)
    assert same(joined, state)
    assert not memory(*tensors_of(joined)) & memory(*tensors_of(state), *itertools.chain(*map(tensors_of, rows)))


def test_cat_of_one_state_is_a_copy() -> None:
    state = read(model(HYBRID), 5)
    joined = ModelState.cat([state])
    assert same(joined, state)
    assert not memory(*tensors_of(joined)) & memory(*tensors_of(state))


@every_state
def test_rows_of_different_histories_go_on_together(name: str) -> None:
    """Key and value caches of different capacity take the largest: each row goes on as it would alone."""
    lm = model(name)
    states = [read(lm, 9), read(lm, 2).with_room(1), read(lm, 0, 5), lm.init_state(1)]
    joined = ModelState.cat(states)
    assert joined.rows == 5
    ids = tokens(5, 4)
    wanted = [on(lm, row, ids[index : index + 1]) for index, row in enumerate(s for one in states for s in one.split())]
    assert difference(on(lm, joined, ids), torch.cat(wanted)) < 1e-5


def test_cat_of_nothing_or_of_states_of_different_models() -> None:
    with pytest.raises(ValueError, match="states is empty, expected at least one"):
        ModelState.cat([])
    states = [model(name).init_state(1) for name in ("mamba1", "attention")]
    with pytest.raises(ValueError, match="different models"):
        ModelState.cat(states)
    with pytest.raises(ValueError, match="different models"):
        ModelState.cat([states[0], ModelState(states[0].blocks[:1])])
    for name, field in (("attention, grouped", "keys"), ("attention, no rotary", "conv")):
        with pytest.raises(ValueError, match=rf"{field} of AttentionState is .*, expected states of one model"):
            ModelState.cat([states[1], model(name).init_state(1)])
    with pytest.raises(ValueError, match=r"conv of Mamba1State is .* torch.float32 .*, expected states of one model"):
        ModelState.cat([states[0], model("mamba1", dtype=torch.float64).init_state(1)])


@pytest.mark.parametrize("tokens", [-1, 1.5, None])
def test_room_for_what_is_no_number_of_tokens(tokens: object) -> None:
    with pytest.raises(ValueError, match=r"tokens is .*, expected an integer of at least 0"):
        model("mamba1").init_state(1).with_room(tokens)


@torch.no_grad()
def test_a_state_that_a_step_has_left_behind() -> None:
    """Full caches were replaced: whoever goes on with the old state is told, and gets no wrong text."""
    lm = model("attention")
    old = lm(tokens(2, 4)).state
    new = lm.step(tokens(2), old).state
    assert new is not old
    with pytest.raises(ValueError, match=r"state has length 5 and 4 slots: .* go on with the state that step returns"):
        lm.step(tokens(2), old)


@every_example
@torch.no_grad()
def test_with_room_steps_need_no_new_memory(name: str) -> None:
    lm = model(name)
    state = read(lm, 4, 1)
    before = state.clone()
    roomy = state.with_room(7)
    assert same(state, before)
    assert state_difference(roomy, state) == 0.0
    if not any(isinstance(block, AttentionState) for block in state.blocks):
        assert roomy is state
    assert roomy.with_room(7) is roomy
    where = [tensor.data_ptr() for tensor in tensors_of(roomy)]
    for token in tokens(2, 7).unbind(1):
        output = lm.step(token, roomy)
        assert output.state is roomy
    assert [tensor.data_ptr() for tensor in tensors_of(roomy)] == where


@torch.no_grad()
def test_full_caches_grow_by_more_than_one_slot() -> None:
    """Each step that copies all keys would make generation quadratic."""
    lm = model("attention")
    state, copies = lm.init_state(1), 0
    for token in tokens(200, 1):
        after = lm.step(token, state).state
        copies += after is not state
        state = after
    assert copies < 20


def test_rows_and_bytes() -> None:
    state = read(model("mamba2, released", dtype=torch.bfloat16), 5, 3, 1)
    conv, ssm = 3 * (32 + 2 * 8) * 2, 4 * 8 * 8 * 4
    assert (state.rows, state.bytes) == (3, 3 * 2 * (conv + ssm))
    state = read(model("attention, grouped"), 5, 3)
    assert (state.rows, state.bytes) == (2, 2 * 2 * (2 * 5 * 2 * 6 * 4 + 8))
    assert (model("mlp").init_state(3).rows, model("mlp").init_state(3).bytes) == (0, 0)


# Files


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.bfloat16) for name in EXAMPLES]
    + [(name, dtype) for dtype in (torch.float32, torch.float64) for name in FEW],
)
def test_save_and_load(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Bit by bit, and what is read afterwards too."""
    lm = model(name, dtype=dtype)
    state = read(lm, 6, 0, 2).with_room(1)
    state.save(tmp_path / "new folder" / "state.safetensors")
    loaded = ModelState.load(tmp_path / "new folder" / "state.safetensors")
    assert same(loaded, state)
    ids = tokens(3, 2)
    assert torch.equal(on(lm, loaded, ids), on(lm, state, ids))


def test_a_state_of_parts_of_other_tensors_is_saved_whole(tmp_path: Path) -> None:
    """Views of one memory, neither contiguous nor apart."""
    state = read(model(HYBRID), 6, 4, 2)
    views = ModelState(tuple(type(block)(*(None if t is None else t[::2] for t in block)) for block in state.blocks))
    views.save(tmp_path / "state.safetensors")
    assert same(ModelState.load(tmp_path / "state.safetensors"), state.select([0, 2]))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A state that was saved."""
    path = tmp_path / "state.safetensors"
    read(model(HYBRID), 6, 2).save(path)
    return path


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_an_interrupted_save_leaves_what_was_there(step: str, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored.read_bytes()

    def fail(*given: object) -> None:
        if step == "write_bytes":
            with open(str(given[0]), "wb") as file:
                file.write(b"half of i")
        raise KeyboardInterrupt

    monkeypatch.setattr(Path if step == "write_bytes" else os, step, fail)
    state = read(model(HYBRID), 3)
    with pytest.raises(KeyboardInterrupt):
        state.save(stored)
    with pytest.raises(KeyboardInterrupt):
        state.save(stored.with_name("other.safetensors"))
    assert stored.read_bytes() == before
    assert list(stored.parent.iterdir()) == [stored]


@pytest.mark.parametrize("kept", [0, 5, 100, 2000, -1])
def test_a_truncated_file(kept: int, stored: Path) -> None:
    stored.write_bytes(stored.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"state\.safetensors is not a whole safetensors file"):
        ModelState.load(stored)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.safetensors", tmp_path):
        with pytest.raises(FileNotFoundError, match="is not a file, expected a state"):
            ModelState.load(path)


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata()


@pytest.mark.parametrize("kinds", [None, "", "Mamba2State,NoState", "Mamba2State,", "[]"])
def test_a_file_of_something_else(kinds: str | None, stored: Path) -> None:
    save_file(load_file(stored), stored, None if kinds is None else {"statedual_state": kinds})
    with pytest.raises(ValueError, match="holds no state of a model, expected a file that"):
        ModelState.load(stored)


def test_a_missing_tensor_and_one_too_many(stored: Path) -> None:
    tensors, kinds = load_file(stored), metadata(stored)
    without = {name: tensor for name, tensor in tensors.items() if name not in ("3.keys", "3.conv", "5.ssm")}
    save_file(without, stored, kinds)
    with pytest.raises(ValueError, match=r"lacks 3\.keys, 3\.conv"):
        ModelState.load(stored)
    save_file({**tensors, "3.more": torch.zeros(2)}, stored, kinds)
    with pytest.raises(ValueError, match=r"unexpected tensors 3\.more"):
        ModelState.load(stored)


def test_a_length_is_stored_where_there_is_one(stored: Path) -> None:
    """Of Mamba-2 blocks only those with a map that needs positions keep it."""
    names = set(load_file(stored))
    assert {"5.length", "3.length", "6.length"} <= names
    state = read(model("mamba2, released"), 2)
    state.save(stored)
    assert set(load_file(stored)) == {"0.conv", "0.ssm", "1.conv", "1.ssm"}
    assert all(block.length is None for block in ModelState.load(stored).blocks)


@every_example
def test_a_state_is_a_tree_of_its_tensors(name: str) -> None:
    """For torch.func, torch.export and others that walk through arguments."""
    state = read(model(name), 3, 1)
    leaves, tree = _pytree.tree_flatten(state)
    given = [leaf for leaf in leaves if leaf is not None]
    assert all(one is other for one, other in zip(given, tensors_of(state), strict=True))
    again = _pytree.tree_unflatten(leaves, tree)
    assert isinstance(again, ModelState)
    assert [type(block) for block in again.blocks] == [type(block) for block in state.blocks]
    assert same(again, state)
    doubled = _pytree.tree_map_only(torch.Tensor, lambda tensor: 2 * tensor, state)
    assert all(torch.equal(two, 2 * one) for two, one in zip(tensors_of(doubled), tensors_of(state), strict=True))
    stored_tree = _pytree.treespec_loads(_pytree.treespec_dumps(tree))
    assert same(_pytree.tree_unflatten(leaves, stored_tree), state)


def test_a_stateless_block_takes_part_in_everything(tmp_path: Path) -> None:
    state = read(model("hybrid, mamba2 + mlp + attention"), 3, 1)
    assert isinstance(state.blocks[1], Stateless)
    state.save(tmp_path / "state.safetensors")
    for other in (state.clone(), ModelState.cat(state.split()), ModelState.load(tmp_path / "state.safetensors")):
        assert same(other, state)
        assert isinstance(other.blocks[1], Stateless)


@pytest.mark.parametrize("name", FEW)
def test_a_snapshot_is_a_place_to_return_to(name: str) -> None:
    """Keys and values are not copied, and what was written behind them since does not matter."""
    lm = model(name, dtype=torch.float64).requires_grad_(False)
    state = lm(tokens(2, 9)).state.with_room(8)
    snapshot, apart = state.snapshot(), state.clone()
    for _ in range(3):
        state = lm.step(tokens(2), state).state
    ids = tokens(4, 2)
    for step in ids:
        returned, snapshot = lm.step(step, snapshot)
        truth, apart = lm.step(step, apart)
        assert torch.equal(returned, truth)


def test_a_snapshot_does_not_copy_keys_and_values() -> None:
    lm = model("hybrid, mamba2 + attention").requires_grad_(False)
    state = lm(tokens(2, 9)).state
    snapshot = state.snapshot()
    caches = [
        (block, copy) for block, copy in zip(state.blocks, snapshot.blocks, strict=True) if hasattr(block, "keys")
    ]
    assert caches
    for block, copy in caches:
        assert copy.keys is block.keys
        assert copy.values is block.values
        assert not memory(copy.length, copy.conv) & memory(block.length, block.conv)
