"""The language model: embedding, blocks behind norms on a residual stream, final norm, head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import _register_namedtuple

from statedual.checks import require_ndim, require_sizes, require_tensors
from statedual.layers.norm import RMSNorm
from statedual.models.config import BlockConfig, ModelConfig
from statedual.models.initialise import initialise
from statedual.models.padding import pack, unpack
from statedual.models.state import ModelState
from statedual.shapes import Offsets
from statedual.ssd.inputs import check_offsets_shape, read_offsets


class LMOutput(NamedTuple):
    """Logits over the padded vocabulary, and the state behind the last token of every sequence."""

    logits: Float[Tensor, "*tokens vocabulary"]
    state: ModelState


_register_namedtuple(LMOutput, serialized_type_name="statedual.LMOutput")


class Block(nn.Module):
    """residual + mixer(rms_norm(residual)): pre-norm, with a mixer of any kind."""

    def __init__(self, model: ModelConfig, config: BlockConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(model.d_model, model.norm_eps)
        self.mixer = config.build(model.d_model)

    def forward(
        self, residual: Float[Tensor, "batch time model"], state: Any, cu_seqlens: Offsets | None
    ) -> tuple[Float[Tensor, "batch time model"], Any]:
        """Sequences."""
        y, state = self.mixer(self.norm(residual), state, cu_seqlens)
        return residual + y, state

    def init_state(self, rows: int) -> Any:
        """That of the mixer, before the first token."""
        return self.mixer.init_state(rows)

    def step(self, residual: Float[Tensor, "batch model"], state: Any) -> Float[Tensor, "batch model"]:
        """One token; ``state`` is updated in place."""
        y: Tensor = self.mixer.step(self.norm(residual), state)
        return residual + y


class LanguageModel(nn.Module):
    """ids -> logits. A model is single-device code; parallelism is applied to it from outside."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.padded_vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config, block) for block in config.blocks)
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        # A tied head has no parameter of its own: one name for one tensor.
        self.head = None if config.tie_embeddings else nn.Linear(config.d_model, config.padded_vocab_size, bias=False)
        self._state_kinds = [type(block.init_state(0)) for block in self._blocks()]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As released; ``initialise`` has the table."""
        initialise(self)

    def init_state(self, rows: int) -> ModelState:
        """Before the first token."""
        return ModelState(tuple(block.init_state(rows) for block in self._blocks()))

    def forward(
        self,
        ids: Int[Tensor, "batch time"],
        state: ModelState | None = None,
        cu_seqlens: Offsets | None = None,
        last_only: bool = False,
        mask: Bool[Tensor, "batch time"] | None = None,
    ) -> LMOutput:
        """Logits of the next token after every token, and the states behind.

        Args:
            ids: (batch, time), at least 0 and below ``vocab_size``.
            state: where the sequences stand, one row each; None is the beginning. It is not changed.
            cu_seqlens: (num_seqs + 1,) offsets of sequences packed behind one another in a single row (batch 1). They
                do not see one another; the state has one row for each.
            last_only: the logits of the last token of every sequence only, (sequences, vocabulary).
            mask: (batch, time), False at padding, which may stand anywhere and is not seen: its logits are 0 and the
                states are those of the tokens alone.

        """
        self._check(ids, state, cu_seqlens, last_only, mask)
        if mask is not None:
            packed, offsets, where = pack(ids, mask)
            logits, state = self(packed, state, offsets, last_only)
            return LMOutput(logits if last_only else unpack(logits, where, ids.shape), state)
        residual = self._embed(ids)
        states = []
        for index, block in enumerate(self._blocks()):
            residual, after = block(residual, None if state is None else state.blocks[index], cu_seqlens)
            states.append(after)
        if last_only:
            residual = residual[:, -1] if cu_seqlens is None else residual[0, cu_seqlens[1:].long() - 1]
        return LMOutput(self._head(residual), ModelState(tuple(states)))

    def step(self, ids: Int[Tensor, " batch"], state: ModelState) -> LMOutput:
        """One token a row: logits (batch, vocabulary) of the next one.

        ``state`` is updated in place; go on with the state that is returned, which has larger key and value caches
        where those of ``state`` were full. (Compiled code cannot grow them: ``state.with_room(tokens)`` beforehand.)
        """
        require_ndim("ids", ids, "batch")
        self._check(ids[:, None], state, None, True, None)
        if not torch.compiler.is_compiling():
            state = state.with_room(1)
        residual = self._embed(ids)
        for block, before in zip(self._blocks(), state.blocks, strict=True):
            residual = block.step(residual, before)
        return LMOutput(self._head(residual), state)

    def _blocks(self) -> Iterator[Block]:
        return (cast(Block, block) for block in self.blocks)

    def _embed(self, ids: Int[Tensor, "*tokens"]) -> Float[Tensor, "*tokens model"]:
        embedded: Tensor = self.embedding(ids)
        wide = self.config.residual_in_fp32 and embedded.dtype in (torch.bfloat16, torch.float16)
        return embedded.float() if wide else embedded

    def _head(self, residual: Float[Tensor, "*tokens model"]) -> Float[Tensor, "*tokens vocabulary"]:
        weight = self.embedding.weight if self.head is None else self.head.weight
        return functional.linear(self.norm(residual), weight)

    def _check(
        self,
        ids: Tensor,
        state: ModelState | None,
        cu_seqlens: Tensor | None,
        last_only: bool,
        mask: Tensor | None,
    ) -> None:
        require_tensors(ids=ids, cu_seqlens=cu_seqlens, mask=mask)
        if ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"ids has dtype {ids.dtype}, expected int32 or int64 token ids")
        require_ndim("ids", ids, "batch time")
        if cu_seqlens is not None:
            if ids.shape[0] != 1:
                raise ValueError(
                    f"ids has batch {ids.shape[0]} with cu_seqlens, expected 1: packed sequences share a row"
                )
            check_offsets_shape(cu_seqlens, 1)
        rows = ids.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if state is not None:
            self._check_state(state, rows)
        if last_only and cu_seqlens is None and ids.shape[1] == 0:
            raise ValueError("ids has time 0, expected at least one token where last_only asks for logits")
        if mask is not None:
            if cu_seqlens is not None:
                raise ValueError("mask and cu_seqlens were both given, expected one: packed rows have no padding")
            if mask.dtype != torch.bool:
                raise ValueError(f"mask has dtype {mask.dtype}, expected torch.bool; mask.bool() makes one")
            require_sizes("mask", mask, {"batch": ids.shape[0], "time": ids.shape[1]}, "ids")
        # The values would have to be fetched from an accelerator, and cannot be known by a compiler.
        if ids.device.type == "cpu" and not torch.compiler.is_compiling():
            self._check_values(ids, cu_seqlens, last_only, mask)

    def _check_state(self, state: ModelState, rows: int) -> None:
        if not isinstance(state, ModelState):
            raise ValueError(
                f"state is a {type(state).__name__}, expected a ModelState, as init_state and forward give"
            )
        if len(state.blocks) != len(self.blocks):
            raise ValueError(
                f"state is of a model with {len(state.blocks)} blocks, expected one of this model with "
                f"{len(self.blocks)}; model.init_state({rows}) makes one"
            )
        for index, (block, kind) in enumerate(zip(state.blocks, self._state_kinds, strict=True)):
            if type(block) is not kind:
                raise ValueError(
                    f"state is of a model with a {type(block).__name__} for block {index}, expected one of this model "
                    f"with a {kind.__name__}; model.init_state({rows}) makes one"
                )
        if any(len(block) for block in state.blocks) and state.rows != rows:
            raise ValueError(f"state has {state.rows} rows, expected {rows}, one for every sequence of ids")

    def _check_values(self, ids: Tensor, cu_seqlens: Tensor | None, last_only: bool, mask: Tensor | None) -> None:
        read_offsets(cu_seqlens, ids.shape[1])
        seen = ids if mask is None else ids[mask]
        if seen.numel() and (seen.min() < 0 or seen.max() >= self.config.vocab_size):
            wrong = seen[(seen < 0) | (seen >= self.config.vocab_size)][0].item()
            raise ValueError(f"ids contain {wrong}, expected 0 <= id < vocab_size = {self.config.vocab_size}")
        if last_only:
            sizes = mask.sum(1) if mask is not None else None if cu_seqlens is None else cu_seqlens.diff()
            if sizes is not None and (sizes < 1).any():
                row = int((sizes < 1).nonzero()[0])
                raise ValueError(f"sequence {row} is empty, expected a token in each where last_only asks for logits")
