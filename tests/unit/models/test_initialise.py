"""How a model begins: every row of the table of ``initialise``, by its distribution."""

import math
from collections.abc import Callable

import pytest
import torch
from model_examples import EXAMPLES, PADDED, configuration
from torch import Tensor
from torch.nn import functional

from statedual.layers import (
    AttentionConfig,
    LinearAttentionConfig,
    Mamba1Config,
    Mamba2Config,
    MLPConfig,
    ShortConvConfig,
)
from statedual.models import LanguageModel, ModelConfig

D_MODEL, RESETS = 64, 6
BLOCKS = (
    Mamba2Config(d_state=8, head_dim=4, bias=True, learnable_init_states=True, feature_map=("layer_norm",)),
    Mamba2Config(d_state=8, head_dim=4, projections="sequential", heads_b=4, skip="channel", conv_width=3),
    Mamba1Config(d_state=8, bias=True),
    AttentionConfig(heads=4, qkv_bias=True, out_bias=True, conv_width=4),
    MLPConfig(bias=True),
    MLPConfig(hidden=100),
    LinearAttentionConfig(heads=2, decay="input", norm="rms", feature_map=("squared_layer_norm",)),
    ShortConvConfig(width=5),
)
CONFIG = ModelConfig(d_model=D_MODEL, vocab_size=500, blocks=BLOCKS, tie_embeddings=False)

Cdf = Callable[[Tensor], Tensor]


def uniform(low: float, high: float) -> Cdf:
    return lambda x: (x - low) / (high - low)


def symmetric(bound: float) -> Cdf:
    return uniform(-bound, bound)


def distance(samples: Tensor, cdf: Cdf) -> float:
    """Kolmogorov and Smirnov's sqrt(n) sup |F_n - F|: above 2.2 once in 8,000 times if the samples are of F."""
    ordered, n = samples.flatten().double().sort().values, samples.numel()
    truth, steps = cdf(ordered), torch.arange(n + 1, dtype=torch.float64) / n
    return math.sqrt(n) * torch.maximum((steps[1:] - truth).max(), (truth - steps[:-1]).max()).item()


def drawn(config: ModelConfig = CONFIG) -> dict[str, Tensor]:
    """Every parameter by name, as it is after the first of several resets, and each later one: (resets, ...)."""
    lm = LanguageModel(config)
    found: dict[str, list[Tensor]] = {name: [] for name, _ in lm.named_parameters()}
    for _ in range(RESETS):
        for name, parameter in lm.named_parameters():
            found[name].append(parameter.detach().clone())
        lm.reset_parameters()
    return {name: torch.stack(tensors) for name, tensors in found.items()}


@pytest.fixture(scope="module")
def parameters() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return drawn()


def named(parameters: dict[str, Tensor], *endings: str) -> dict[str, Tensor]:
    """Those whose names end so, taken out, so that at last all have been looked at."""
    found = {name: tensor for name, tensor in parameters.items() if name.endswith(endings)}
    assert found
    return found


def assert_drawn_from(samples: Tensor, cdf: Cdf, name: str) -> None:
    assert distance(samples, cdf) < 2.2, name
    assert distance(samples[-1], cdf) < 2.2, f"{name} after {RESETS - 1} resets"
    assert not torch.equal(samples[0], samples[1]), name


CONV = ("conv1d.weight", "conv1d.bias")
LAST = ("out_proj.weight", "fc2.weight")
MATRICES = ("in_proj.weight", "x_proj.weight", "fc1.weight", "decay_proj.weight", "head.weight")
BIASES = ("in_proj.bias", "out_proj.bias", "fc1.bias", "fc2.bias", "decay_proj.bias")
ONES = ("norm.weight", ".D", "weight0")
STEPS = ("dt_bias", "dt_proj.bias")
OTHERS = ("embedding.weight", "A_log", "init_states", "bias0", "dt_proj.weight")


def test_every_parameter_is_in_the_table(parameters: dict[str, Tensor]) -> None:
    left = [name for name in parameters if not name.endswith(CONV + LAST + MATRICES + BIASES + ONES + STEPS + OTHERS)]
    assert not left


def test_embedding(parameters: dict[str, Tensor]) -> None:
    normal = torch.distributions.Normal(0.0, 0.02)
    assert_drawn_from(parameters["embedding.weight"], normal.cdf, "embedding.weight")


def test_matrices(parameters: dict[str, Tensor]) -> None:
    for name, samples in named(parameters, *MATRICES).items():
        assert_drawn_from(samples, symmetric(samples.shape[-1] ** -0.5), name)


def test_what_is_added_to_the_residual(parameters: dict[str, Tensor]) -> None:
    """1 / sqrt(8) in a model of eight blocks, whatever they are: each adds once. MLPs are blocks too."""
    found = named(parameters, *LAST)
    assert len(found) == 7
    for name, samples in found.items():
        assert_drawn_from(samples, symmetric(samples.shape[-1] ** -0.5 / math.sqrt(8)), name)


def test_two_residuals_a_layer() -> None:
    """A mixer and its MLP are two additions: 1 / sqrt(8) in four such layers, where the released code has 1 / 2."""
    config = ModelConfig(d_model=D_MODEL, vocab_size=50, blocks=(AttentionConfig(heads=4), MLPConfig()) * 4)
    for name, samples in named(drawn(config), *LAST).items():
        ratio = samples.double().std().item() * math.sqrt(3 * samples.shape[-1])
        assert abs(ratio * math.sqrt(8) - 1) < 0.02, name


def test_biases_are_zero(parameters: dict[str, Tensor]) -> None:
    found = named(parameters, *BIASES, "bias0")
    assert len(found) == 10 + 2
    for name, samples in found.items():
        assert not samples.any(), name


def test_convolutions(parameters: dict[str, Tensor]) -> None:
    widths = {"0": 4, "1": 3, "2": 4, "3": 4, "7": 5}
    found = named(parameters, *CONV)
    assert len(found) == 10
    for name, samples in found.items():
        assert_drawn_from(samples, symmetric(widths[name.split(".")[1]] ** -0.5), name)


def test_ones(parameters: dict[str, Tensor]) -> None:
    found = named(parameters, *ONES)
    assert len(found) == 8 + 1 + 2 + 1 + 3 + 2
    for name, samples in found.items():
        assert (samples == 1).all(), name


def test_decays(parameters: dict[str, Tensor]) -> None:
    """-A: U(1, 16), one a head, of Mamba-2; 1, 2, ... in every channel of Mamba-1."""
    for name in ("blocks.0.mixer.A_log", "blocks.1.mixer.A_log"):
        assert parameters[name].shape == (RESETS, 32)
        assert_drawn_from(parameters[name].exp(), uniform(1, 16), name)
    of_mamba1 = parameters["blocks.2.mixer.A_log"]
    assert of_mamba1.shape == (RESETS, 128, 8)
    assert torch.allclose(of_mamba1.exp(), torch.arange(1, 9).float(), rtol=1e-6)


def test_step_sizes(parameters: dict[str, Tensor]) -> None:
    found = named(parameters, *STEPS)
    assert len(found) == 3
    for name, samples in found.items():
        dt = functional.softplus(samples.double())
        assert_drawn_from(dt.log(), uniform(math.log(1e-3), math.log(1e-1)), name)
    weight = parameters["blocks.2.mixer.dt_proj.weight"]
    assert weight.shape == (RESETS, 128, 4)
    assert_drawn_from(weight, symmetric(4**-0.5), "dt_proj.weight")


def test_initial_states(parameters: dict[str, Tensor]) -> None:
    assert not parameters["blocks.0.mixer.init_states"].any()


def test_ranges_of_the_configuration() -> None:
    blocks = (
        Mamba2Config(d_state=4, head_dim=2, A_init=(2.0, 3.0), dt_init=(0.2, 0.4), dt_floor=0.3),
        Mamba1Config(d_state=4, dt_init=(0.2, 0.4), dt_floor=0.3),
    )
    found = drawn(ModelConfig(d_model=D_MODEL, vocab_size=50, blocks=blocks))
    assert_drawn_from(found["blocks.0.mixer.A_log"].exp(), uniform(2, 3), "A_log")
    for name, samples in named(found, *STEPS).items():
        dt = functional.softplus(samples.double())
        at_floor = (dt - 0.3).abs() < 1e-6
        above = dt[~at_floor]
        assert above.min() > 0.3, name
        assert distance(above.log(), uniform(math.log(0.3), math.log(0.4))) < 2.2, name
        share = math.log(1.5) / math.log(2)
        assert abs(at_floor.double().mean().item() - share) < 4 * math.sqrt(share / at_floor.numel()), name


@pytest.mark.parametrize("kind", ["positive_random_features", "random_features"])
def test_random_projections(kind: str) -> None:
    """Rows as long as those of N(0, I), at right angles; each block and each reset draws its own."""
    normaliser = kind == "positive_random_features"
    block = LinearAttentionConfig(heads=1, d_state=16, feature_map=(kind,), normaliser=normaliser)
    lm = LanguageModel(ModelConfig(d_model=32, vocab_size=50, blocks=(block,) * 100))
    projections = torch.stack([buffer.clone() for buffer in lm.buffers()])
    assert projections.shape == (100, 8, 16)
    products = projections @ projections.mT
    assert (products - torch.diag_embed(products.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4
    lengths = torch.distributions.Chi2(16.0)
    assert (
        distance(products.diagonal(dim1=1, dim2=2), lambda x: torch.special.gammainc(lengths.df.double() / 2, x / 2))
        < 2.2
    )
    normal = torch.distributions.Normal(0.0, 1.0)
    assert distance(projections[:, 0, :4], normal.cdf) < 2.2
    lm.reset_parameters()
    assert not any(torch.equal(old, new) for old, new in zip(projections, lm.buffers(), strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_reset_forgets_everything(name: str) -> None:
    """What was there before has no influence: not even NaN, as uninitialised memory may have it."""
    lm = LanguageModel(configuration(name, tied=False))
    torch.manual_seed(1)
    lm.reset_parameters()
    before = {key: tensor.clone() for key, tensor in lm.state_dict().items()}
    with torch.no_grad():
        for tensor in lm.state_dict().values():
            tensor.fill_(math.nan)
    torch.manual_seed(1)
    lm.reset_parameters()
    assert all(torch.equal(tensor, before[key]) for key, tensor in lm.state_dict().items())


@pytest.mark.parametrize("name", EXAMPLES)
def test_from_the_meta_device(name: str) -> None:
    """A model without memory, given some, and drawn there."""
    config = configuration(name)
    real = LanguageModel(config)
    with torch.device("meta"):
        lm = LanguageModel(config)
    assert all(tensor.is_meta for tensor in lm.state_dict().values())
    lm.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in lm.state_dict().values():
            tensor.fill_(math.nan)
    for made in (real, lm):
        torch.manual_seed(1)
        made.reset_parameters()
    assert lm.state_dict().keys() == real.state_dict().keys()
    assert all(torch.equal(tensor, real.state_dict()[key]) for key, tensor in lm.state_dict().items())
    assert lm(torch.tensor([[1, 2]])).logits.shape == (1, 2, PADDED)


def test_from_the_meta_device_in_half_precision() -> None:
    """Decays stay float32 on the way."""
    with torch.device("meta"):
        lm = LanguageModel(CONFIG).bfloat16()
    lm.to_empty(device="cpu").reset_parameters()
    assert lm.blocks[0].mixer.A_log.dtype == torch.float32
    assert lm.blocks[0].mixer.in_proj.weight.dtype == torch.bfloat16
    assert distance(lm.blocks[0].mixer.A_log.detach().exp(), uniform(1, 16)) < 2.2


def test_the_same_seed_the_same_model() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(LanguageModel(CONFIG).state_dict())
    assert all(torch.equal(tensor, models[1][key]) for key, tensor in models[0].items())
