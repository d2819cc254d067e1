"""Configurations as values: there and back through JSON, and what is refused."""

import json
import math
from typing import Any

import pytest
from model_examples import EXAMPLES, HAVE_STATE, attention, configuration, mamba2

from statedual.layers import AttentionConfig, LinearAttentionConfig, Mamba1Config, Mamba2Config, MLPConfig
from statedual.models import LanguageModel, ModelConfig
from statedual.models.config import BLOCKS

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
every_example = pytest.mark.parametrize("name", EXAMPLES)
SMALL = {"d_model": 16, "vocab_size": 50}


def strict_json(value: Any) -> Any:
    """As other languages read it: without Python's own Infinity and NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(json.dumps(value, allow_nan=False), parse_constant=refuse)


@every_example
@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back(name: str, tied: bool) -> None:
    config = configuration(name, tied, norm_eps=1e-6, residual_in_fp32=not tied)
    again = ModelConfig.from_dict(strict_json(config.to_dict()))
    assert again == config
    assert hash(again) == hash(config)
    assert [type(block) for block in again.blocks] == [type(block) for block in config.blocks]
    assert again.to_dict() == config.to_dict()


def test_the_examples_have_every_kind() -> None:
    assert {block.kind for name in EXAMPLES for block in EXAMPLES[name]} == set(BLOCKS)
    assert {block.kind for name in HAVE_STATE for block in EXAMPLES[name]} == set(BLOCKS)


def test_values_that_json_does_not_have() -> None:
    """Infinities, tuples, None."""
    config = ModelConfig(**SMALL, blocks=(mamba2(dt_limit=(0.0, math.inf), heads_x=None), attention(window=None)))
    plain = strict_json(config.to_dict())
    assert plain["blocks"][0]["dt_limit"] == [0.0, "inf"]
    assert plain["blocks"][0]["feature_map"] == ["swish"]
    assert plain["blocks"][0]["heads_x"] is None
    assert plain["blocks"][1]["kind"] == "attention"
    block = ModelConfig.from_dict(plain).blocks[0]
    assert isinstance(block, Mamba2Config)
    assert block.dt_limit == (0.0, math.inf)
    assert isinstance(block.dt_limit, tuple)
    assert isinstance(block.feature_map, tuple)


def test_from_dict_leaves_what_it_is_given() -> None:
    plain = configuration("hybrid, everything").to_dict()
    before = json.dumps(plain)
    ModelConfig.from_dict(plain)
    assert json.dumps(plain) == before


def test_defaults_need_not_be_said() -> None:
    """A file names what it changes."""
    short = {**SMALL, "blocks": [{"kind": "mamba2"}, {"kind": "attention", "heads": 4}]}
    assert ModelConfig.from_dict(short) == ModelConfig(**SMALL, blocks=(Mamba2Config(), AttentionConfig(heads=4)))


@pytest.mark.parametrize(("multiple", "wanted"), [(1, 50), (16, 64), (50, 50), (7, 56), (128, 128)])
def test_padded_vocabulary(multiple: int, wanted: int) -> None:
    config = ModelConfig(**SMALL, blocks=(MLPConfig(hidden=4),), pad_vocab_size_multiple=multiple)
    assert config.padded_vocab_size == wanted
    assert LanguageModel(config).embedding.weight.shape == (wanted, 16)


def plain(**changed: Any) -> dict[str, Any]:
    config = ModelConfig(**SMALL, blocks=(MLPConfig(), mamba2(), attention())).to_dict()
    return {**config, **changed}


def blocks(index: int, **changed: Any) -> dict[str, Any]:
    config = plain()
    config["blocks"][index].update(changed)
    return config


WRONG = {
    "unknown key": (plain(d_modell=3), "the model configuration has an unknown key 'd_modell'; did you mean d_model?"),
    "key like none": (plain(zzz=3), "the model configuration has an unknown key 'zzz'; known are d_model, vocab_size"),
    "unknown key of a block": (blocks(1, headdim=3), "blocks[1] has an unknown key 'headdim'; did you mean head_dim?"),
    "key of another kind": (blocks(0, window=3), "blocks[0] has an unknown key 'window'; known are hidden, bias"),
    "bad kind": (
        blocks(1, kind="mamba3"),
        "kind of blocks[1] is 'mamba3', expected one of 'mamba2', 'mamba1', 'attention', 'mlp', 'linear_attention', "
        "'short_conv'",
    ),
    "kind that no dictionary can look up": (
        blocks(1, kind=["mamba2"]),
        "kind of blocks[1] is ['mamba2'], expected one",
    ),
    "no object": (plain(blocks=["mamba2"]), "blocks[0] is 'mamba2', expected an object with its kind"),
    "no list": (plain(blocks={"kind": "mamba2"}), "expected a list of blocks, each with its kind"),
    "no blocks": (plain(blocks=[]), "blocks is (), expected a tuple such as (Mamba2Config(),) * 24"),
    "bad value": (plain(d_model=0), "d_model is 0, expected a positive integer"),
    "text": (plain(vocab_size="50"), "vocab_size is '50', expected a positive integer"),
    "truth": (plain(pad_vocab_size_multiple=True), "pad_vocab_size_multiple is True, expected a positive integer"),
    "bad choice": (blocks(1, norm="layer"), "norm is 'layer', expected one of 'rms', 'none'"),
    "bad range": (blocks(1, dt_limit=[0.5, 0.1]), "dt_limit is (0.5, 0.1), expected (low, high) with 0 <= low <= high"),
    "half a range": (blocks(1, dt_limit=["inf"]), "dt_limit is (inf,), expected (low, high)"),
    "bad map": (blocks(1, feature_map=["swoosh"]), "feature_map is 'swoosh', expected one of"),
    "map that is a word": (blocks(1, feature_map="swish"), "feature_map is 'swish', expected a tuple of names"),
    "bad heads": (blocks(2, kv_heads=3), "kv_heads is 3, expected a divisor of the 4 heads"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name: str) -> None:
    """In the words of the file, with its place, and nothing but a ValueError."""
    given, message = WRONG[name]
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - compared below, as text
        ModelConfig.from_dict(given)
    assert message in str(raised.value)


def test_missing_keys() -> None:
    config = plain()
    del config["vocab_size"], config["d_model"]
    with pytest.raises(ValueError, match="the model configuration lacks d_model, vocab_size"):
        ModelConfig.from_dict(config)
    config = plain()
    del config["blocks"][2]["heads"]
    with pytest.raises(ValueError, match=r"blocks\[2\] lacks heads"):
        ModelConfig.from_dict(config)
    config = plain()
    del config["blocks"][2]["kind"]
    with pytest.raises(ValueError, match=r"kind of blocks\[2\] is None, expected one of 'mamba2'"):
        ModelConfig.from_dict(config)
    with pytest.raises(ValueError, match="blocks is None, expected a list of blocks"):
        ModelConfig.from_dict({})


@pytest.mark.parametrize("given", [[], (), [Mamba2Config()], Mamba2Config(), None, "mamba2"])
def test_blocks_that_are_no_tuple(given: Any) -> None:
    with pytest.raises(ValueError, match=r"blocks is .*, expected a tuple such as \(Mamba2Config\(\),\) \* 24"):
        ModelConfig(**SMALL, blocks=given)


@pytest.mark.parametrize("given", [None, "mamba2", Mamba2Config, {"kind": "mamba2"}])
def test_blocks_that_are_none(given: Any) -> None:
    with pytest.raises(ValueError, match=r"blocks\[1\] is .*, expected one of Mamba2Config, Mamba1Config,"):
        ModelConfig(**SMALL, blocks=(Mamba1Config(), given))


@pytest.mark.parametrize("value", [0.0, -1e-5, "1e-5", None])
def test_an_epsilon_is_positive(value: Any) -> None:
    with pytest.raises(ValueError, match=r"norm_eps is .*, expected a small positive number"):
        ModelConfig(**SMALL, blocks=(MLPConfig(),), norm_eps=value)


def test_values_of_a_configuration_stay() -> None:
    for config in (configuration("mamba1"), mamba2(), LinearAttentionConfig(heads=2)):
        with pytest.raises(AttributeError):
            config.d_model = 3


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"residual_in_fp32": "false"},
            "residual_in_fp32 of the model configuration is 'false', expected true or false",
        ),
        ({"norm_eps": "x"}, "norm_eps of the model configuration is 'x', expected a number"),
        ({"norm_eps": -1.0}, "norm_eps is -1.0, expected a small positive number"),
        ({"blocks": [{"kind": "mamba2", "bias": 1}]}, r"bias of blocks\[0\] is 1, expected true or false"),
        ({"blocks": [{"kind": "mamba2", "norm_eps": True}]}, r"norm_eps of blocks\[0\] is True, expected a number"),
    ],
)
def test_values_of_another_type_are_not_taken_for_true(change: dict[str, Any], message: str) -> None:
    given = {"d_model": 64, "vocab_size": 9, "blocks": [{"kind": "mamba2"}], **change}
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(given)
