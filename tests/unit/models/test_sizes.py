"""Named sizes: those of the released checkpoints, of tab:gpt3 and of the hybrids of sec. 9.2.3."""

from collections import Counter

import pytest

from statedual.models import named
from statedual.models.config import ModelConfig
from statedual.models.cost import parameters
from statedual.models.sizes import NAMES


def kinds(config: ModelConfig) -> dict[str, int]:
    return Counter(block.kind for block in config.blocks)


@pytest.mark.parametrize(
    ("name", "d_model", "blocks", "size"),
    [
        ("mamba2-130m", 768, 24, 128_989_632),
        ("mamba2-370m", 1024, 48, 368_346_624),
        ("mamba2-780m", 1536, 48, 780_161_280),
        ("mamba2-1.3b", 2048, 48, 1_343_757_312),
        ("mamba2-2.7b", 2560, 64, 2_702_599_680),
    ],
)
def test_released_mamba2(name: str, d_model: int, blocks: int, size: int) -> None:
    config = named(name)
    assert (config.d_model, kinds(config)) == (d_model, {"mamba2": blocks})
    assert (config.vocab_size, config.padded_vocab_size, config.tie_embeddings) == (50277, 50288, True)
    assert parameters(config) == size
    # By hand, from the shapes of the checkpoint: in_proj, conv1d, A_log with D and dt_bias, norm, out_proj, norm.
    inner, heads = 2 * d_model, 2 * d_model // 64
    block = d_model * (2 * inner + 256 + heads) + 5 * (inner + 256) + 3 * heads + inner + inner * d_model + d_model
    assert size == blocks * block + 50288 * d_model + d_model


@pytest.mark.parametrize(
    ("name", "d_model", "blocks", "size"),
    [
        ("mamba-130m", 768, 24, 129_135_360),
        ("mamba-370m", 1024, 48, 371_516_416),
        ("mamba-790m", 1536, 48, 793_204_224),
        ("mamba-1.4b", 2048, 48, 1_372_178_432),
        ("mamba-2.8b", 2560, 64, 2_768_345_600),
    ],
)
def test_released_mamba1(name: str, d_model: int, blocks: int, size: int) -> None:
    config = named(name)
    assert (config.d_model, kinds(config)) == (d_model, {"mamba1": blocks})
    assert (config.vocab_size, config.padded_vocab_size, config.tie_embeddings) == (50277, 50280, True)
    assert parameters(config) == size
    inner, rank = 2 * d_model, d_model // 16
    block = 2 * d_model * inner + 5 * inner + inner * (rank + 32) + (rank + 1) * inner + 17 * inner + inner * d_model
    assert size == blocks * (block + d_model) + 50280 * d_model + d_model


@pytest.mark.parametrize(
    ("size", "layers", "d_model", "heads", "head_dim", "near"),
    [
        ("125m", 12, 768, 12, 64, 125e6),
        ("350m", 24, 1024, 16, 64, 350e6),
        ("760m", 24, 1536, 16, 96, 760e6),
        ("1.3b", 24, 2048, 32, 64, 1.3e9),
    ],
)
def test_scaling_law_sizes(size: str, layers: int, d_model: int, heads: int, head_dim: int, near: float) -> None:
    transformer = named(f"scaling-transformer++-{size}")
    assert kinds(transformer) == {"attention": layers, "mlp": layers}
    assert [block.kind for block in transformer.blocks[:3]] == ["attention", "mlp", "attention"]
    attention = transformer.blocks[0].build(d_model)
    assert (attention.heads, attention.head_dim, attention.rotary_dim) == (heads, head_dim, head_dim)
    assert all(parameter.ndim > 1 for parameter in attention.parameters())  # nothing has a bias
    assert kinds(named(f"scaling-mamba2-{size}")) == {"mamba2": 2 * layers}
    assert kinds(named(f"scaling-mamba1-{size}")) == {"mamba1": 2 * layers}
    for family in ("transformer++", "mamba1", "mamba2"):
        config = named(f"scaling-{family}-{size}")
        assert (config.d_model, config.vocab_size, config.padded_vocab_size) == (d_model, 50257, 50264)
        assert parameters(config) == pytest.approx(near, rel=0.07)


def test_the_hybrids_have_the_same_number_of_parameters() -> None:
    size = parameters(named("mamba2-2.7b"))
    for name in ("mamba2-mlp-2.7b", "mamba2-attention-2.7b", "mamba2-mlp-attention-2.7b"):
        assert parameters(named(name)) == pytest.approx(size, rel=0.002)
    assert parameters(named("transformer++-2.7b")) == pytest.approx(size, rel=0.014)


def test_where_the_blocks_of_the_hybrids_stand() -> None:
    def places(name: str, kind: str) -> list[int]:
        return [index for index, block in enumerate(named(name).blocks) if block.kind == kind]

    odd = list(range(1, 64, 2))
    assert places("transformer++-2.7b", "mlp") == odd
    assert places("transformer++-2.7b", "attention") == list(range(0, 64, 2))
    assert places("mamba2-mlp-2.7b", "mlp") == odd
    assert places("mamba2-mlp-2.7b", "mamba2") == list(range(0, 64, 2))
    assert places("mamba2-attention-2.7b", "attention") == [9, 18, 27, 36, 45, 56]
    assert len(places("mamba2-attention-2.7b", "mamba2")) == 58
    assert places("mamba2-mlp-attention-2.7b", "mlp") == odd
    assert places("mamba2-mlp-attention-2.7b", "attention") == [10, 24, 38, 52]
    assert len(places("mamba2-mlp-attention-2.7b", "mamba2")) == 28


def test_the_released_hybrid_has_its_attention() -> None:
    config = named("mamba2-attention-2.7b")
    attention = config.blocks[9].build(config.d_model)
    assert attention.in_proj.weight.shape == (3 * 30 * 128, 2560)
    assert attention.conv1d.weight is not None
    assert attention.conv1d.weight.shape == (3 * 30 * 128, 1, 4)
    assert (attention.rotary_dim, attention.in_proj.bias, attention.out_proj.bias) == (64, None, None)


def test_every_name_has_a_configuration_that_goes_to_json_and_back() -> None:
    assert len(set(NAMES)) == len(NAMES) == 26
    for name in NAMES:
        assert ModelConfig.from_dict(named(name).to_dict()) == named(name)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mamba2-130M", "'mamba2-130M', which is no model's; did you mean 'mamba2-130m'"),
        ("transformer-2.7b", "did you mean 'transformer\\+\\+-2.7b'"),
        ("scaling-mamba2-125", "did you mean 'scaling-mamba2-125m'"),
        ("", "expected one of mamba2-130m, mamba2-370m, "),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        named(name)
