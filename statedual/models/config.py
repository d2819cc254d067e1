"""A language model as a value: widths, and the tuple of blocks whose length is its depth."""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from statedual.checks import require_positive
from statedual.layers import (
    AttentionConfig,
    LinearAttentionConfig,
    Mamba1Config,
    Mamba2Config,
    MLPConfig,
    ShortConvConfig,
)
from statedual.layers.norm import require_eps

BlockConfig: TypeAlias = (
    Mamba2Config | Mamba1Config | AttentionConfig | MLPConfig | LinearAttentionConfig | ShortConvConfig
)
BLOCKS: dict[str, type[BlockConfig]] = {
    kind.kind: kind
    for kind in (Mamba2Config, Mamba1Config, AttentionConfig, MLPConfig, LinearAttentionConfig, ShortConvConfig)
}
"""Every kind of block by its name."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A language model: ``blocks=(Mamba2Config(),) * 24``, or any other mixture.

    vocab_size counts the tokens; the embedding has as many rows as pad_vocab_size_multiple makes of it. tie_embeddings:
    the head shares the weight of the embedding. residual_in_fp32: the residual stream is float32 whatever the weights.
    """

    d_model: int
    vocab_size: int
    blocks: tuple[BlockConfig, ...]
    pad_vocab_size_multiple: int = 1
    tie_embeddings: bool = True
    norm_eps: float = 1e-5
    residual_in_fp32: bool = True

    def __post_init__(self) -> None:
        for name in ("d_model", "vocab_size", "pad_vocab_size_multiple"):
            require_positive(name, getattr(self, name))
        for name in ("tie_embeddings", "residual_in_fp32"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected True or False")
        require_eps("norm_eps", self.norm_eps)
        if not isinstance(self.blocks, tuple) or not self.blocks:
            raise ValueError(f"blocks is {self.blocks!r}, expected a tuple such as (Mamba2Config(),) * 24")
        for index, block in enumerate(self.blocks):
            if not isinstance(block, tuple(BLOCKS.values())):
                names = ", ".join(kind.__name__ for kind in BLOCKS.values())
                raise ValueError(f"blocks[{index}] is {block!r}, expected one of {names}")

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: vocab_size up to the next multiple."""
        multiple = self.pad_vocab_size_multiple
        return math.ceil(self.vocab_size / multiple) * multiple

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them (infinities as "inf"); each block with its kind."""
        fields = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        fields["blocks"] = [
            {"kind": block.kind, **{name: _plain(value) for name, value in dataclasses.asdict(block).items()}}
            for block in self.blocks
        ]
        return fields

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> ModelConfig:
        """The inverse of ``to_dict``; unknown names are errors."""
        if not isinstance(given.get("blocks"), list):
            raise ValueError(f"blocks is {given.get('blocks')!r}, expected a list of blocks, each with its kind")
        blocks = tuple(_block(index, block) for index, block in enumerate(given["blocks"]))
        config: ModelConfig = _make(cls, {**given, "blocks": blocks}, "the model configuration")
        return config


def _block(index: int, given: Any) -> BlockConfig:
    where = f"blocks[{index}]"
    if not isinstance(given, dict):
        raise ValueError(f"{where} is {given!r}, expected an object with its kind")
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in BLOCKS:
        raise ValueError(f"kind of {where} is {kind!r}, expected one of {', '.join(map(repr, BLOCKS))}")
    block: BlockConfig = _make(BLOCKS[kind], {name: value for name, value in given.items() if name != "kind"}, where)
    return block


def _make(cls: type[Any], given: dict[str, Any], where: str) -> Any:
    """An instance of the dataclass ``cls``; a name it lacks is an error that offers the nearest one."""
    names = [field.name for field in dataclasses.fields(cls)]
    required = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
            raise ValueError(f"{where} has an unknown key {name!r}; {meant}")
    for field in dataclasses.fields(cls):
        _require_type(f"{field.name} of {where}", field.default, given.get(field.name, field.default))
    if missing := sorted(required - set(given)):
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    return cls(**{name: _rich(value) for name, value in given.items()})


def _require_type(name: str, default: Any, value: Any) -> None:
    """Where the default is a truth value or a number, so is ``value``: "false" would be true."""
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}, expected true or false")
    elif isinstance(default, float) and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name} is {value!r}, expected a number")


def _plain(value: Any) -> Any:
    """JSON has no tuples and no infinities."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _rich(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_rich(item) for item in value)
    return float(value) if value in ("inf", "-inf") else value
