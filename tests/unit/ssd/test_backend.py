"""Which backend runs is decided in one place, which answers questions; what cannot serve is an error, never slow."""

import re

import pytest
import torch
from ssd_examples import FORMS, example

from statedual.selective_scan import diagonal_ssm
from statedual.ssd import BackendChoice, choose_backend, ssd

ABSENT = ("cpu", "triton")
UNKNOWN = ("cuda", "", "Torch", "numpy")
DEVICES = ("cpu", "cuda", "cuda:1", "meta", torch.device("cpu"), torch.device("cuda", 1))


def raises(message: str):
    return pytest.raises(ValueError, match=re.escape(message))


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_auto_is_pytorch_and_says_for_which_device(device: torch.device | str) -> None:
    choice = choose_backend("auto", device)
    assert isinstance(choice, BackendChoice)
    assert choice.name == "torch"
    assert str(torch.device(device)) in choice.reason


def test_auto_is_the_default() -> None:
    assert choose_backend() == choose_backend("auto", "cpu")


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_pytorch_by_name(device: torch.device | str) -> None:
    choice = choose_backend("torch", device)
    assert (choice.name, choice.reason) == ("torch", "asked for by name")


@pytest.mark.parametrize("name", ABSENT)
def test_a_backend_that_is_not_here_yet_is_an_error(name: str) -> None:
    with raises(f"backend is {name!r}, which this version of statedual does not contain yet; use 'torch' or 'auto'"):
        choose_backend(name)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_backend_is_an_error(name: str) -> None:
    with raises(f"backend is {name!r}, expected one of 'auto', 'torch', 'cpu', 'triton'"):
        choose_backend(name)


@pytest.mark.parametrize("name", ABSENT + UNKNOWN)
def test_operations_ask_the_same_question(name: str) -> None:
    """Every form of both, with the same words, before anything is computed."""
    case = example(4)
    with pytest.raises(ValueError, match="backend is") as asked:
        choose_backend(name)
    for form in FORMS:
        with raises(str(asked.value)):
            ssd(case.x, case.log_a, case.b, case.c, form=form, backend=name)
    for form in ("recurrent", "chunked"):
        with raises(str(asked.value)):
            diagonal_ssm(
                case.x, case.log_a.unsqueeze(-1).expand(-1, -1, -1, 3), case.b, case.c, form=form, backend=name
            )


@pytest.mark.parametrize("form", FORMS)
def test_auto_runs_what_it_names(form: str) -> None:
    case = example(40, groups=(6, 2, 3))
    auto, named = (
        ssd(case.x, case.log_a, case.b, case.c, initial_state=case.initial_state, form=form, backend=backend)
        for backend in ("auto", choose_backend("auto", case.x.device).name)
    )
    assert torch.equal(auto.y, named.y)
    assert torch.equal(auto.final_state, named.final_state)
