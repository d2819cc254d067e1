"""Models as compilers see them: whole, for any length, without compiling again at every token; and stored programs."""

import inspect
import itertools
from pathlib import Path

import jaxtyping
import pytest
import torch
from model_examples import FEW, difference, model, state_difference, tensors_of, tokens
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from statedual.layers import AttentionState
from statedual.models import LanguageModel, LMOutput, ModelState

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
QUICK = ("mamba2, released", "mamba1", "hybrid, mamba2 + attention")
COMPILED = (
    *FEW,
    "mamba2, sequential",
    "mamba2, performer",
    "attention, window",
    "attention, convolved, partial rotary",
    "short convolution",
    "retention",
    "gateloop",
    "taylor",
)
"""Every kind of block; what differs otherwise is arithmetic, which compilers know."""
every_example, every_hybrid = (
    pytest.mark.parametrize(
        "name", [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in COMPILED]
    )
    for quick in (QUICK, QUICK[-1:])
)
"""Those that are not quick in the long tests."""
LENGTHS = (9, 13, 17, 8)
BOUND = 1e-5


@pytest.fixture(autouse=True)
def _fresh_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the code as users have it: jaxtyping wraps what is in classes and functions in what cannot be compiled."""
    monkeypatch.setattr(ModelState, "__init__", inspect.unwrap(ModelState.__init__))
    monkeypatch.setattr(ModelState, "rows", property(inspect.unwrap(ModelState.rows.fget)))
    monkeypatch.setattr(jaxtyping, "jaxtyped", lambda **_: lambda function: function)
    torch._dynamo.reset()


def assert_same(got: LMOutput, wanted: LMOutput) -> None:
    assert difference(got.logits, wanted.logits) < BOUND
    assert state_difference(got.state, wanted.state) < BOUND


def counted() -> CompileCounterWithBackend:
    """Counts compilations."""
    return CompileCounterWithBackend("aot_eager")


@every_example
@torch.no_grad()
def test_compiled_prefill(name: str) -> None:
    """One program for the first length, and one for all others."""
    lm, counter = model(name), counted()
    compiled = torch.compile(lm, backend=counter, fullgraph=True)
    for time in LENGTHS:
        ids = tokens(2, time)
        assert_same(compiled(ids), lm(ids))
    assert counter.frame_count == 2


@every_hybrid
@torch.no_grad()
def test_compiled_prefill_goes_on(name: str) -> None:
    """From states, in chunks of any length."""
    lm, counter = model(name), counted()
    compiled = torch.compile(lm, backend=counter, fullgraph=True)
    got, wanted = lm.init_state(2), lm.init_state(2)
    for time in LENGTHS:
        ids = tokens(2, time)
        one, other = compiled(ids, got), lm(ids, wanted)
        assert_same(one, other)
        got, wanted = one.state, other.state
    assert counter.frame_count == 2


@every_example
@torch.no_grad()
def test_compiled_steps(name: str) -> None:
    """One program for all tokens, which works in the memory of the state that it is given."""
    lm, counter = model(name), counted()
    compiled = torch.compile(lm.step, backend=counter, fullgraph=True)
    got = lm(tokens(2, 5)).state.with_room(8)
    wanted = got.clone()
    where = [tensor.data_ptr() for tensor in tensors_of(got)]
    for token in tokens(8, 2):
        output = compiled(token, got)
        assert_same(output, lm.step(token, wanted))
        assert state_difference(got, wanted) < BOUND
        got = output.state
    assert counter.frame_count == 1
    assert [tensor.data_ptr() for tensor in tensors_of(got)] == where


@pytest.mark.parametrize("name", ["mamba2, released", pytest.param("hybrid, everything", marks=pytest.mark.long)])
def test_compiled_training(name: str) -> None:
    """Gradients of the compiled model are those of the model."""
    lm = model(name)
    compiled = torch.compile(lm, backend="aot_eager", fullgraph=True)
    ids = tokens(2, 12)
    parameters = dict(lm.named_parameters())
    got, wanted = (torch.autograd.grad(run(ids).logits.square().sum(), parameters.values()) for run in (compiled, lm))
    for key, one, other in zip(parameters, got, wanted, strict=True):
        assert difference(one, other) < BOUND, key


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["mamba2, dt_limit", "mamba1", "hybrid, mamba2 + mlp + attention", "hybrid, Based"])
@torch.no_grad()
def test_inductor(name: str) -> None:
    """PyTorch's own compiler, which fuses."""
    lm = model(name)
    prefill = torch.compile(lm, fullgraph=True)
    for time in LENGTHS:
        ids = tokens(2, time)
        assert_same(prefill(ids), lm(ids))
    step, state = torch.compile(lm.step, fullgraph=True), lm(tokens(2, 5)).state.with_room(4)
    wanted = state.clone()
    for token in tokens(4, 2):
        assert_same(step(token, state), lm.step(token, wanted))


# Stored programs


class Step(nn.Module):
    """A step as a module, for export takes those."""

    def __init__(self, lm: LanguageModel) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, ids: Tensor, state: ModelState) -> LMOutput:
        return self.lm.step(ids, state)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
@pytest.mark.parametrize("name", QUICK)
@torch.no_grad()
def test_inductor_on_a_gpu(name: str) -> None:
    lm, ids = model(name).cuda(), tokens(2, 40).cuda()
    truth = lm(ids)
    assert difference(torch.compile(lm, fullgraph=True)(ids).logits, truth.logits) < BOUND
    state = truth.state.with_room(4)
    step, again = torch.compile(lm.step, fullgraph=True), state.clone()
    for token in tokens(4, 2).cuda():
        assert_same(step(token, again), lm.step(token, state))


def through_a_file(program: torch.export.ExportedProgram, folder: Path) -> nn.Module:
    torch.export.save(program, folder / "program.pt2")
    return torch.export.load(folder / "program.pt2").module()


@every_example
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.long)])
@torch.no_grad()
def test_exported_prefill(name: str, strict: bool, tmp_path: Path) -> None:
    """One program for any number of sequences of any length, through a file."""
    lm = model(name)
    sizes = {0: torch.export.Dim("batch", max=1024), 1: torch.export.Dim("time", min=6, max=100_000)}
    program = torch.export.export(lm, (tokens(2, 9),), dynamic_shapes={"ids": sizes}, strict=strict)
    stored = through_a_file(program, tmp_path)
    for rows, time in ((2, 9), (1, 6), (3, 40)):
        ids = tokens(rows, time)
        for run in (program.module(), stored):
            output = run(ids)
            assert isinstance(output.state, ModelState)
            assert_same(output, lm(ids))


@every_hybrid
@torch.no_grad()
def test_exported_prefill_goes_on(name: str) -> None:
    """From states, in chunks of any length, with caches of any capacity."""
    lm = model(name)
    ids, state = tokens(2, 9), lm(tokens(2, 7)).state
    shapes = torch.export.ShapesCollection()
    shapes[ids] = {1: torch.export.Dim("time", min=2, max=100_000)}
    for block in state.blocks:
        if isinstance(block, AttentionState):
            shapes[block.keys] = shapes[block.values] = {1: torch.export.Dim.DYNAMIC}
    run = torch.export.export(lm, (ids, state), dynamic_shapes=shapes).module()
    wanted = state
    for time in (9, 3, 20):
        ids = tokens(2, time)
        output, truth = run(ids, state), lm(ids, wanted)
        assert_same(output, truth)
        state, wanted = output.state, truth.state


@every_example
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.long)])
@torch.no_grad()
def test_exported_step(name: str, strict: bool, tmp_path: Path) -> None:
    """Token after token, in place, through a file."""
    lm = model(name)
    start = lm(tokens(2, 5)).state.with_room(6)
    program = torch.export.export(Step(lm), (tokens(2), start.clone()), strict=strict)
    for run in (program.module(), through_a_file(program, tmp_path)):
        state, wanted = start.clone(), start.clone()
        for token in tokens(6, 2):
            output = run(token, state)
            assert_same(output, lm.step(token, wanted))
            assert state_difference(state, wanted) < BOUND
            state = output.state


def test_lengths_differ() -> None:
    """Otherwise one program for each would be as few."""
    assert all(one != other for one, other in itertools.combinations(LENGTHS, 2))
