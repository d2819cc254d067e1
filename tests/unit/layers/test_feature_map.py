"""Feature maps by name: those of ``statedual.feature_maps``, one after the other, with what they learn or draw."""

import re
from typing import Any

import pytest
import torch
from layer_examples import difference, disturb
from torch import Tensor

from statedual import feature_maps
from statedual.layers.feature_map import ELEMENTWISE, NAMES, FeatureMap, check_names, width

SIZE, LENGTH = 4, 11
RANDOM = ("random_features", "positive_random_features")
NORMS = ("layer_norm", "squared_layer_norm")
WIDTHS = dict.fromkeys(NAMES, SIZE) | {"cosformer": 8, "taylor": 21, "squared_layer_norm": 16}
COMPOSED = [
    ("swish", "taylor"),
    ("layer_norm", "squared_layer_norm", "relu"),
    ("elu", "cosformer", "positive_random_features"),
    ("cosformer", "cosformer"),
    ("random_features", "layer_norm", "random_features"),
]


def phi(names: tuple[str, ...], size: int = SIZE) -> FeatureMap:
    module = FeatureMap(names, size, LENGTH).double()
    disturb(module)
    return module


def one_position(module: FeatureMap, x: Tensor, t: int) -> Tensor:
    """The maps on a single vector: by the functions, with what the module says it learned or drew."""
    for index, name in enumerate(module.names):
        function: Any = getattr(feature_maps, name)
        if name == "cosformer":
            x = function(x.expand(t + 1, -1), length=LENGTH)[t]  # at its place among t + 1
        elif name in RANDOM:
            x = function(x, module.get_buffer(f"projection{index}"))
        elif name in NORMS:
            x = function(x, module.get_parameter(f"weight{index}"), module.get_parameter(f"bias{index}"))
        else:
            x = function(x)
    return x


@pytest.mark.parametrize("names", [(), *((name,) for name in NAMES), *COMPOSED], ids="-".join)
def test_maps_are_their_functions_forward_and_backward(names: tuple[str, ...]) -> None:
    """One after the other, for every head at the position of its token."""
    module = phi(names)
    x = torch.randn(2, 5, 3, SIZE, dtype=torch.float64, requires_grad=True)
    where = torch.tensor([[0, 1, 2, 3, 4], [10, 0, 7, 7, 2]])
    got = module(x, where)
    wanted = torch.stack(
        [
            torch.stack(
                [torch.stack([one_position(module, x[i, t, h], int(where[i, t])) for h in range(3)]) for t in range(5)]
            )
            for i in range(2)
        ]
    )
    assert got.shape == (2, 5, 3, module.features)
    assert difference(got, wanted) < 1e-12
    weights, leaves = torch.randn_like(got), [x, *module.parameters()]
    gradients = (torch.autograd.grad((result * weights).sum(), leaves) for result in (got, wanted))
    for one, other in zip(*gradients, strict=True):
        assert difference(one, other) < 1e-12


def test_every_map_that_needs_no_more_is_listed() -> None:
    """The identity is (); all others of the package can be asked for, each under its own name."""
    functions = {
        name for name, value in vars(feature_maps).items() if getattr(value, "__module__", "") == feature_maps.__name__
    }
    assert set(NAMES) == {name for name in functions if not name.startswith("_")} - {"identity", "draw_projection"}
    assert len(set(NAMES)) == len(NAMES) == 10
    for name, function in ELEMENTWISE.items():
        assert function is getattr(feature_maps, name)


@pytest.mark.parametrize("name", NAMES)
def test_widths(name: str) -> None:
    assert width(name, SIZE) == FeatureMap((name,), SIZE).features == WIDTHS[name]
    assert FeatureMap(("swish",), 6).features == FeatureMap((), 6).features == 6
    assert FeatureMap(("cosformer", "taylor"), 3).features == 1 + 6 + 36


def test_no_map_is_the_identity_itself() -> None:
    x = torch.randn(2, 3, 1, SIZE)
    assert FeatureMap((), SIZE)(x) is x


def test_only_cosformer_needs_positions() -> None:
    for names in ((), *((name,) for name in NAMES), *COMPOSED):
        assert FeatureMap(names, SIZE).needs_positions == ("cosformer" in names)


def test_one_row_of_positions_serves_all_and_packed_ones_may_start_again() -> None:
    module, x = phi(("cosformer",)), torch.randn(3, 5, 2, SIZE, dtype=torch.float64)
    for where in (torch.arange(5), torch.tensor([3, 4, 0, 0, 1])):
        assert torch.equal(module(x, where[None]), module(x, where.expand(3, -1)))
    together = module(x[:1], torch.tensor([[0, 1, 0, 1, 2]]))
    assert torch.equal(together[:, 2:], module(x[:1, 2:], torch.arange(3)[None]))


def test_the_cosformer_length_is_the_layer_s_and_not_the_input_s() -> None:
    """So that a token has the same features in prefill and in a step."""
    module, x = phi(("cosformer",)), torch.randn(1, 5, 2, SIZE, dtype=torch.float64)
    whole = module(x, torch.arange(5)[None])
    steps = [module(x[:, t : t + 1], torch.tensor([[t]])) for t in range(5)]
    assert torch.equal(torch.cat(steps, 1), whole)


def test_what_is_learned_and_what_is_drawn() -> None:
    module = FeatureMap(("layer_norm", "taylor", "squared_layer_norm", "cosformer", "random_features"), 2)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "weight0": (2,),
        "bias0": (2,),
        "weight2": (7,),
        "bias2": (7,),
    }
    assert {name: tuple(b.shape) for name, b in module.named_buffers()} == {"projection4": (49, 98)}
    assert set(module.state_dict()) == {"weight0", "bias0", "weight2", "bias2", "projection4"}
    assert [*FeatureMap(("swish", "taylor", "cosformer"), 2).state_dict()] == []


def test_a_reset_gives_ones_and_zeros_and_draws_again() -> None:
    module = FeatureMap(("layer_norm", "random_features"), 32)
    before = module.projection1.clone()
    disturb(module)
    assert not torch.equal(module.weight0, torch.ones(32))
    module.reset_parameters()
    assert torch.equal(module.weight0, torch.ones(32))
    assert torch.equal(module.bias0, torch.zeros(32))
    assert module.weight0.requires_grad
    assert not torch.equal(module.projection1, before)
    for drawn in (before, module.projection1):
        gram = drawn @ drawn.mT  # rows at right angles, each as long as a vector of N(0, I)
        torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-4, rtol=0)
        assert 20 < gram.diagonal().mean() < 45
        assert gram.diagonal().std() > 2


@pytest.mark.parametrize("name", RANDOM)
def test_one_map_for_both_sides_estimates_its_kernel(name: str) -> None:
    """Both sides of phi(q) . phi(k) are of one draw."""
    size = 2048  # features; the first 3 components of q and k are not zero
    q, k = torch.zeros(2, 1, 1, 1, size, dtype=torch.float64)
    q[..., :3], k[..., :3] = torch.tensor([0.6, -0.3, 0.2]), torch.tensor([0.5, 0.4, -0.2])
    module = phi((name,), size)
    got = (module(q) * module(k)).sum().item()
    kernel = torch.exp((q * k).sum()) if name == RANDOM[1] else torch.exp(-(q - k).square().sum() / 2)
    assert got == pytest.approx(kernel.item(), rel=0.1)
    other = phi((name,), size)
    apart = (module(q) * other(k)).sum().item()
    product_of_means = torch.exp(-(q.square().sum() + k.square().sum()) / 2).item() if name == RANDOM[0] else 1.0
    assert apart == pytest.approx(product_of_means, rel=0.1)


@pytest.mark.parametrize("names", [("swish",), ("cosformer",), ("layer_norm",), RANDOM[1:], ("swish", "taylor")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, names: tuple[str, ...]) -> None:
    module = phi(names).to(dtype)
    x, where = torch.randn(2, 9, 3, SIZE).to(dtype), torch.arange(9)[None]
    got = module(x, where)
    assert got.dtype == dtype
    assert difference(got, module.double()(x.double(), where)) < 1e-2


def test_it_can_be_made_on_meta() -> None:
    with torch.device("meta"):
        module = FeatureMap(("layer_norm", "random_features"), SIZE)
    module.to_empty(device="cpu").reset_parameters()
    assert torch.equal(module.weight0, torch.ones(SIZE))
    assert 0 < module.projection1.square().sum() < 100


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("names", "size", "message"),
    [
        ("swish", 4, "feature_map is 'swish', expected a tuple of names such as ('swish',); () is the identity"),
        (["swish"], 4, "feature_map is ['swish'], expected a tuple"),
        (None, 4, "feature_map is None, expected a tuple"),
        (("swish", "silu"), 4, "feature_map is 'silu', expected one of 'swish', 'exp', 'relu', 'elu', 'cosformer'"),
        (("identity",), 4, "feature_map is 'identity', expected one of"),
        (("random_features",), 5, "random_features gives pairs of features, expected an even size, got 5"),
        (("taylor", "positive_random_features"), 4, "expected an even size, got 21"),
    ],
)
def test_maps_that_cannot_be(names: Any, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        FeatureMap(names, size)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_choice_of_fewer_names() -> None:
    check_names("feature_map_x", ("swish", "elu"), tuple(ELEMENTWISE))
    with pytest.raises(ValueError, match=r"feature_map_x is 'taylor', expected one of 'swish', 'exp', 'relu', 'elu'$"):
        check_names("feature_map_x", ("swish", "taylor"), tuple(ELEMENTWISE))
