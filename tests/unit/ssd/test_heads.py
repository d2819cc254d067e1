"""The one rule of heads (sec. 7.2): head i reads group i // (heads / groups). No form writes the broadcast down."""

import itertools
from typing import NamedTuple

import pytest
import torch
from ssd_examples import FORMS, Example, divisors, error, example
from torch import Tensor

from statedual.benchmarks.measure import peak_bytes
from statedual.ssd import segments, ssd, ssd_step
from statedual.ssd.heads import spread

every_form = pytest.mark.parametrize("form", FORMS)
HEADS = 6
TRIPLES = list(itertools.product(divisors(HEADS), repeat=3))


def by_the_rule(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Head after head, each one matrix: y_t = sum over s <= t of (decays after s) (c_t . b_s) x_s, and the past."""
    heads = log_a.shape[2]
    ys, finals = [], []
    for i in range(heads):
        x_i, b_i, c_i = (t[:, :, i // (heads // t.shape[2])] for t in (x, b, c))
        sums = log_a[:, :, i].cumsum(1)
        L = (sums.unsqueeze(2) - sums.unsqueeze(1)).exp().tril()
        past = sums.exp().unsqueeze(2) * (c_i @ state[:, i].mT)
        ys.append((L * (c_i @ b_i.mT)) @ x_i + past)
        finals.append(sums[:, -1].exp()[:, None, None] * state[:, i] + (L[:, -1].unsqueeze(2) * x_i).mT @ b_i)
    return torch.stack(ys, 2), torch.stack(finals, 1)


def gradients(run, case: Example) -> list[Tensor]:
    """Both results, and the gradients of every input."""
    leaves = [t.clone().requires_grad_() for t in case.tensors()]
    y, final = run(*leaves)
    return [y, final, *torch.autograd.grad((y, final), leaves, (case.grad_y, case.grad_final))]


@every_form
@pytest.mark.parametrize("groups", TRIPLES, ids=str)
def test_head_i_reads_group_i_divided_by_its_share(form: str, groups: tuple[int, int, int]) -> None:
    """Whatever divides the heads. The gradient of a group is the sum over the heads that read it."""
    case = example(11, HEADS, groups, batch=2, kind="usual", dtype=torch.float64)

    def run(x, log_a, b, c, state):
        return ssd(x, log_a, b, c, initial_state=state, form=form, chunk_size=4)

    for got, wanted in zip(gradients(run, case), gradients(by_the_rule, case), strict=True):
        assert error(got, wanted) < case.bound


@pytest.mark.parametrize("groups", TRIPLES, ids=str)
def test_a_step_keeps_the_same_rule(groups: tuple[int, int, int]) -> None:
    case = example(1, HEADS, groups, batch=2, kind="usual", dtype=torch.float64)
    y, final = ssd_step(case.initial_state.clone(), *(t[:, 0] for t in case.tensors()[:4]))
    wanted, wanted_final = by_the_rule(*case.tensors())
    assert error(y, wanted[:, 0]) < case.bound
    assert error(final, wanted_final) < case.bound


@pytest.mark.parametrize("groups", divisors(HEADS))
def test_spread_is_the_rule(groups: int) -> None:
    tensor = torch.randn(2, groups, 3)
    for i in range(HEADS):
        assert torch.equal(spread(tensor, HEADS)[:, i], tensor[:, i // (HEADS // groups)])
    if groups in (1, HEADS):
        assert spread(tensor, HEADS).data_ptr() == tensor.data_ptr(), "a view can say this"


class Sizes(NamedTuple):
    time: int
    head_dim: int
    state: int
    groups: tuple[int, int, int]
    most: float
    """The bytes beyond the results, in bytes of one broadcast."""


MANY = 32
WIDE_STATE, WIDE_INPUT, LONG_WIDE_STATE, LONG_WIDE_INPUT = (128, 1, 64), (128, 64, 1), (256, 1, 64), (256, 64, 1)
# The quadratic form holds (time, time) scores for each head: only where state exceeds time is a broadcast more than
# these. It also lays a b or c that all heads have of their own out anew, and holds x weighted by each head's decays.
SQUARE = (32, 1, 1024)
MEMORY = {
    "recurrent multi_input": Sizes(*WIDE_STATE, (MANY, 1, 1), 0.1),
    "recurrent multi_contract": Sizes(*WIDE_STATE, (1, 1, MANY), 0.1),
    "recurrent multi_expand": Sizes(*WIDE_STATE, (1, MANY, 1), 0.1),
    "recurrent one x": Sizes(*WIDE_INPUT, (1, 1, 1), 1.5),  # y twice, once as its rows
    "quadratic multi_input": Sizes(*SQUARE, (MANY, 1, 1), 0.5),
    "quadratic multi_contract": Sizes(*SQUARE, (1, 1, MANY), 1.5),
    "quadratic multi_expand": Sizes(*SQUARE, (1, MANY, 1), 1.5),
    "chunked multi_input": Sizes(*LONG_WIDE_STATE, (MANY, 1, 1), 0.2),
    "chunked multi_contract": Sizes(*LONG_WIDE_STATE, (1, 1, MANY), 0.2),
    "chunked multi_expand": Sizes(*LONG_WIDE_STATE, (1, MANY, 1), 0.2),
    "chunked one x": Sizes(*LONG_WIDE_INPUT, (1, 1, 1), 0.4),
    "chunked backward multi_input": Sizes(*LONG_WIDE_STATE, (MANY, 1, 1), 0.7),
    "chunked backward multi_contract": Sizes(*LONG_WIDE_STATE, (1, 1, MANY), 0.7),
    "chunked backward multi_expand": Sizes(*LONG_WIDE_STATE, (1, MANY, 1), 0.7),
    "chunked backward one x": Sizes(*LONG_WIDE_INPUT, (1, 1, 1), 0.7),
}


@pytest.mark.parametrize("name", MEMORY)
def test_no_broadcast_is_held(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory beyond the results stays under what x, b or c would take if it were written down for every head."""
    monkeypatch.setitem(segments._BUDGET, "cpu", 20_000)
    sizes, form = MEMORY[name], name.split()[0]
    case = example(sizes.time, MANY, sizes.groups, head_dim=sizes.head_dim, state=sizes.state, kind="usual")
    given = [t.requires_grad_("backward" in name) for t in case.tensors()[:4]]

    def run() -> tuple[Tensor, ...]:
        y, final = ssd(*given, form=form, chunk_size=16)
        if "backward" not in name:
            return y, final
        return y.detach(), final.detach(), *torch.autograd.grad((y, final), given, (case.grad_y, case.grad_final))

    results = sum(t.nbytes for t in run())
    broadcast = sizes.time * MANY * max(sizes.state, sizes.head_dim) * 4
    beyond = (peak_bytes(run) - results) / broadcast
    assert beyond < sizes.most
