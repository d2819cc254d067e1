"""Which parameters decay, in models with every kind of block."""

import pytest
import torch
from model_examples import EXAMPLES, model
from torch import Tensor

from statedual.models import LanguageModel, weight_decay_groups

DECAYED = {
    "embedding.weight",
    "head.weight",
    "in_proj.weight",
    "x_proj.weight",
    "dt_proj.weight",
    "decay_proj.weight",
    "out_proj.weight",
    "fc1.weight",
    "fc2.weight",
    "conv1d.weight",
}


def decayed_names(lm: LanguageModel) -> dict[str, bool]:
    """Whether each decays; a parameter in no group or in two is an error."""
    names = {id(parameter): name for name, parameter in lm.named_parameters()}
    groups = weight_decay_groups(lm)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    found = [(names[id(parameter)], group is groups[0]) for group in groups for parameter in group["params"]]
    assert len(found) == len(names) == len(dict(found))
    return dict(found)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", EXAMPLES)
def test_matrices_decay_and_nothing_else(name: str, tied: bool) -> None:
    for parameter, decays in decayed_names(model(name, tied)).items():
        assert decays == (".".join(parameter.split(".")[-2:]) in DECAYED), parameter


@pytest.mark.parametrize(
    "name", ["A_log", "D", "dt_bias", "init_states", "dt_proj.bias", "map_bc.weight0", "norm.weight"]
)
def test_what_must_not_decay_is_there_and_does_not(name: str) -> None:
    """In every shape that it has: A_log of Mamba-1 and init_states have several axes."""
    seen = [
        decays
        for example in EXAMPLES
        for parameter, decays in decayed_names(model(example)).items()
        if parameter.endswith(f".{name}")
    ]
    assert seen
    assert not any(seen)


def test_the_optimiser_takes_them() -> None:
    """One step without gradients of the loss: what decays shrinks by lr * weight_decay, the rest stays."""
    lm = model("hybrid, everything")
    before = {name: parameter.detach().clone() for name, parameter in lm.named_parameters()}
    optimiser = torch.optim.AdamW(weight_decay_groups(lm, 0.5), lr=0.1)
    for parameter in lm.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    decays = decayed_names(lm)
    for name, parameter in lm.named_parameters():
        wanted: Tensor = before[name] * (0.95 if decays[name] else 1.0)
        torch.testing.assert_close(parameter.detach(), wanted)
