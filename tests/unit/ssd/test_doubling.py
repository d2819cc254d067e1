"""The work memory of the chunked form is that of one segment, however long the sequence is."""

import pytest
import torch
from ssd_examples import Example, example
from torch import Tensor

from statedual.benchmarks.measure import peak_bytes
from statedual.ssd import SSDOutput, segments, ssd

CHUNK, HEADS, HEAD_DIM, STATE = 16, 4, 16, 8
BUDGET = 200_000
LENGTHS = (516, 1028)  # the same rest after whole chunks


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(segments._BUDGET, "cpu", BUDGET)


def case(time: int, batch: int = 1) -> Example:
    return example(time, HEADS, (HEADS, 2, 1), batch=batch, head_dim=HEAD_DIM, state=STATE, kind="usual")


def call(leaves: list[Tensor]) -> SSDOutput:
    return ssd(*leaves[:4], initial_state=leaves[4], chunk_size=CHUNK)


def kept_bytes(given: Example) -> int:
    """What the forward keeps for the backward beside its inputs."""
    leaves, saved = [t.detach().requires_grad_() for t in given.tensors()], []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        call(leaves)
    inputs = {t.data_ptr() for t in leaves}
    return sum(t.nbytes for t in saved if t.data_ptr() not in inputs)


def work_bytes(given: Example, gradients: bool) -> int:
    """The peak beyond the results, and beyond what is kept for the backward."""
    leaves = [t.requires_grad_(gradients) for t in given.tensors()]

    def run() -> tuple[Tensor, ...]:
        y, final = call(leaves)
        if not gradients:
            return y, final
        return y.detach(), final.detach(), *torch.autograd.grad((y, final), leaves, (given.grad_y, given.grad_final))

    beyond = peak_bytes(run) - sum(t.nbytes for t in run())
    return beyond - (kept_bytes(given) if gradients else 0)


directions = pytest.mark.parametrize("gradients", [False, True], ids=["forward", "forward and backward"])


@directions
def test_twice_the_time_needs_no_more_work_memory(gradients: bool) -> None:
    """Forwards, nothing grows but the output. Backwards the gradients and the kept states also do, nothing else."""
    once, twice = (work_bytes(case(time), gradients) for time in LENGTHS)
    assert once == twice


@directions
def test_more_rows_need_no_more_work_memory(gradients: bool) -> None:
    """Rows too long to go side by side go one after another."""
    two, four = (work_bytes(case(260, batch), gradients) for batch in (2, 4))
    assert two == four


def test_work_memory_is_within_the_budget() -> None:
    """That of the forward: its buffers, and what it allocates on the way, for one segment."""
    assert 0 < work_bytes(case(516), False) < 1.2 * BUDGET


def test_what_is_kept_is_at_most_a_state_a_chunk() -> None:
    """Heads N P numbers each, and nothing that grows faster than the input."""
    one = HEADS * HEAD_DIM * STATE * 4
    for time in LENGTHS:
        assert 0 < kept_bytes(case(time)) <= -(-time // CHUNK) * one
