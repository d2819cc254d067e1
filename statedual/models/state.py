"""The state of a model: what all that was read has left behind, one typed state a block.

Rows are sequences. Nothing here knows what a block keeps: a state is a NamedTuple of tensors whose first
axis is the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import _register_namedtuple

from statedual.files import write_whole
from statedual.layers import (
    AttentionState,
    LinearAttentionState,
    Mamba1State,
    Mamba2State,
    ShortConvState,
    Stateless,
    WindowState,
)

STATES: dict[str, type[Any]] = {
    state.__name__: state
    for state in (
        Mamba2State,
        Mamba1State,
        AttentionState,
        WindowState,
        LinearAttentionState,
        ShortConvState,
        Stateless,
    )
}


@dataclass(frozen=True)
class ModelState:
    """``blocks[i]`` is the state of block i. ``LanguageModel.step`` changes the tensors in place; nothing else does."""

    blocks: tuple[Any, ...]

    @property
    def rows(self) -> int:
        """Sequences in it."""
        return next((tensor.shape[0] for block in self.blocks for tensor in _tensors(block)), 0)

    @property
    def bytes(self) -> int:
        """Memory of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for block in self.blocks for tensor in _tensors(block))

    def clone(self) -> ModelState:
        """A copy that shares no memory."""
        return self._map(Tensor.clone)

    def snapshot(self) -> ModelState:
        """A place to return to, that costs no copy of keys and values: those of later tokens lie behind its length.

        Of a state and its snapshot one may be stepped on at a time, for both write to the same free slots.
        """
        return ModelState(
            tuple(
                block._replace(length=block.length.clone(), conv=block.conv.clone())
                if isinstance(block, AttentionState)
                else _each(block, Tensor.clone)
                for block in self.blocks
            )
        )

    def select(self, rows: slice | Sequence[int] | Tensor) -> ModelState:
        """Some of the rows, in that order, copied."""
        if isinstance(rows, slice):
            return self._map(lambda tensor: tensor[rows].clone())
        index = torch.as_tensor(rows)
        index = index if index.numel() else index.long()  # [] would make a tensor of floats
        if index.ndim != 1 or index.is_floating_point():
            raise ValueError(f"rows is {rows!r}, expected numbers or truth values along one axis; [row] is one row")
        numbers = index.tolist() if self.rows and index.device.type == "cpu" and index.dtype != torch.bool else []
        if not all(-self.rows <= row < self.rows for row in numbers):
            raise ValueError(f"rows is {rows!r}, expected numbers below the {self.rows} rows of the state")
        index = index.to(next((tensor.device for block in self.blocks for tensor in _tensors(block)), None))
        return self._map(lambda tensor: tensor[index])

    def split(self) -> list[ModelState]:
        """Every row by itself."""
        return [self.select(slice(row, row + 1)) for row in range(self.rows)]

    @staticmethod
    def cat(states: Sequence[ModelState]) -> ModelState:
        """The rows of all, one behind the other. Key and value caches of different capacity take the largest."""
        if not states:
            raise ValueError("states is empty, expected at least one ModelState")
        for state in states[1:]:
            kinds = [[type(block) for block in given.blocks] for given in (states[0], state)]
            if kinds[0] != kinds[1]:
                raise ValueError("states are of different models, expected the same blocks in all of them")
        return ModelState(tuple(_cat(blocks) for blocks in zip(*(state.blocks for state in states), strict=True)))

    def with_room(self, tokens: int) -> ModelState:
        """A state whose key and value caches take ``tokens`` more; itself if they do, or if there are none."""
        if not isinstance(tokens, int) or tokens < 0:
            raise ValueError(f"tokens is {tokens!r}, expected an integer of at least 0")
        # One look at the lengths, for it may have to wait for an accelerator: they are the same in all blocks.
        longest = next((block.longest for block in self.blocks if isinstance(block, AttentionState)), 0)
        blocks = tuple(
            block.with_room(tokens, longest) if isinstance(block, AttentionState) else block for block in self.blocks
        )
        return self if all(new is old for new, old in zip(blocks, self.blocks, strict=True)) else ModelState(blocks)

    def save(self, path: str | Path) -> None:
        """One safetensors file; ``path`` appears when it is whole."""
        tensors = {
            f"{index}.{name}": tensor.contiguous()
            for index, block in enumerate(self.blocks)
            for name, tensor in zip(block._fields, block, strict=True)
            if tensor is not None
        }
        kinds = ",".join(type(block).__name__ for block in self.blocks)
        write_whole(Path(path), serialise(tensors, metadata={"statedual_state": kinds}))

    @staticmethod
    def load(path: str | Path, device: torch.device | str = "cpu") -> ModelState:
        """What ``save`` wrote."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} is not a file, expected a state that ModelState.save wrote")
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                kinds = (file.metadata() or {}).get("statedual_state", "").split(",")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except SafetensorError as error:
            raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
        if not set(kinds) <= set(STATES):
            raise ValueError(f"{path} holds no state of a model, expected a file that ModelState.save wrote")
        blocks = []
        for index, kind in enumerate(kinds):
            fields = {name: tensors.pop(f"{index}.{name}", None) for name in STATES[kind]._fields}
            absent = [name for name, tensor in fields.items() if tensor is None and (kind, name) not in OPTIONAL]
            if absent:
                raise ValueError(f"{path} lacks {', '.join(f'{index}.{name}' for name in absent)}")
            blocks.append(STATES[kind](**fields))
        if tensors:
            raise ValueError(f"{path} has unexpected tensors {', '.join(sorted(tensors))}")
        return ModelState(tuple(blocks))

    def _map(self, function: Callable[[Tensor], Tensor]) -> ModelState:
        return ModelState(tuple(_each(block, function) for block in self.blocks))


OPTIONAL = {("Mamba2State", "length")}


def _each(block: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return type(block)(*(None if tensor is None else function(tensor) for tensor in block))


def _tensors(block: Any) -> list[Tensor]:
    return [tensor for tensor in block if tensor is not None]


def _cat(blocks: Sequence[Any]) -> Any:
    """The states of one block, along the rows."""
    kind = type(blocks[0])
    fields: list[Tensor | None] = []
    for name in kind._fields:
        tensors = [getattr(block, name) for block in blocks]
        if tensors[0] is None:
            fields.append(None)
            continue
        if kind is AttentionState and name in ("keys", "values"):
            capacity = max(tensor.shape[1] for tensor in tensors)
            tensors = [functional.pad(tensor, (0, 0, 0, 0, 0, capacity - tensor.shape[1])) for tensor in tensors]
        if len({(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in tensors}) > 1:
            told = " and ".join(
                sorted({f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}" for tensor in tensors})
            )
            raise ValueError(f"{name} of {kind.__name__} is {told}, expected states of one model")
        fields.append(torch.cat(tensors))
    return kind(*fields)


# So that torch.export can store a program that takes or returns one.
for _state in STATES.values():
    _register_namedtuple(_state, serialized_type_name=f"statedual.{_state.__name__}")
torch.export.register_dataclass(ModelState, serialized_type_name="statedual.ModelState")
# And load it: the example inputs of a program that takes one are stored with it.
torch.serialization.add_safe_globals([ModelState, *STATES.values()])
