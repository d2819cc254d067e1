"""Tiny language models with every kind of block in every option, and hybrids; ways to read text; how states differ."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from statedual.layers import (
    HEAD_PATTERNS,
    AttentionConfig,
    AttentionState,
    LinearAttentionConfig,
    Mamba1Config,
    Mamba2Config,
    MLPConfig,
    ShortConvConfig,
    WindowState,
)
from statedual.models import LanguageModel, ModelConfig, ModelState

D_MODEL, VOCABULARY, PADDED = 16, 50, 64
STEPS, LIMITS = (0.02, 1.0), (0.1, 0.3)
"""Step sizes so large that states matter to the logits, and bounds that reach many of them."""


def mamba2(**options: Any) -> Mamba2Config:
    return Mamba2Config(**{"d_state": 8, "head_dim": 8, "dt_init": STEPS, **options})


def attention(**options: Any) -> AttentionConfig:
    return AttentionConfig(**{"heads": 4, **options})


MLP = MLPConfig(hidden=24)
MAMBA2 = {
    "released": mamba2(),
    # In one part: a norm over the eight channels of one head magnifies the rounding of those that happen to be small.
    **{name: mamba2(**pattern, norm_groups=1) for name, pattern in HEAD_PATTERNS.items()},
    "groups": mamba2(heads_b=2, heads_c=2),
    "mixed groups": mamba2(heads_x=2, heads_b=1, heads_c=4, norm_groups=2),
    "sequential": mamba2(projections="sequential"),
    "sequential, limited, biased": mamba2(projections="sequential", dt_limit=LIMITS, bias=True, heads_x=2),
    "dt_limit": mamba2(dt_limit=LIMITS),
    "biases": mamba2(bias=True),
    "no conv": mamba2(conv_width=0),
    "conv without bias": mamba2(conv_width=2, conv_bias=False),
    "norm before gate": mamba2(norm_before_gate=True, heads_b=2, heads_c=2),
    "no norm": mamba2(norm="none"),
    "a skip for every channel": mamba2(skip="channel"),
    "MLP inside": mamba2(d_ssm=16),
    "initial states": mamba2(learnable_init_states=True),
    "no maps": mamba2(feature_map=(), feature_map_x=()),
    "normalised": mamba2(feature_map=("elu",), normaliser=True),
    "cosformer": mamba2(feature_map=("cosformer",), cosformer_length=64),
    "cosformer, normalised, initial states": mamba2(
        feature_map=("cosformer",), cosformer_length=64, normaliser=True, learnable_init_states=True
    ),
    # The exponential of a large number magnifies its rounding, so the norm comes first.
    "performer": mamba2(feature_map=("layer_norm", "positive_random_features"), normaliser=True),
    "based": mamba2(feature_map=("swish", "taylor"), d_state=4),
    "rebased": mamba2(feature_map=("squared_layer_norm",), d_state=4),
}
OTHERS = {
    "mamba1": Mamba1Config(d_state=4, dt_init=STEPS),
    "mamba1, biased": Mamba1Config(d_state=4, dt_init=STEPS, bias=True, dt_rank=3, conv_bias=False),
    "mamba1, no conv": Mamba1Config(d_state=4, dt_init=STEPS, conv_width=0),
    "attention": attention(),
    "attention, window": attention(window=3),
    "attention, grouped": attention(kv_heads=2, head_dim=6),
    "attention, convolved, partial rotary": attention(kv_heads=1, conv_width=4, rotary_dim=2, head_dim=6),
    "attention, window, convolved, biased": attention(window=4, conv_width=3, qkv_bias=True, out_bias=True),
    "attention, no rotary": attention(rotary_dim=0, conv_width=2, conv_bias=False, scale=0.3),
    "mlp": MLP,
    "mlp, biased": MLPConfig(hidden=24, bias=True),
    "short convolution": ShortConvConfig(width=3),
    "linear attention": LinearAttentionConfig.linear(4),
    "retention": LinearAttentionConfig.retention(2),
    "gateloop": LinearAttentionConfig.gateloop(2),
    "taylor": LinearAttentionConfig.taylor(2, d_state=4),
    "cosformer attention": LinearAttentionConfig(heads=2, feature_map=("cosformer",), cosformer_length=64),
    "performer attention": LinearAttentionConfig(
        heads=2, feature_map=("layer_norm", "positive_random_features"), decay="input", norm="rms", head_dim=4
    ),
}
HYBRIDS = {
    "hybrid, mamba2 + attention": (mamba2(), attention(kv_heads=2), mamba2()),
    "hybrid, mamba2 + mlp + attention": (mamba2(dt_limit=LIMITS, bias=True), MLP, attention(conv_width=4), MLP),
    "hybrid, mamba1 + attention": (Mamba1Config(d_state=4, dt_init=STEPS), attention(rotary_dim=2)),
    "hybrid, Based": (ShortConvConfig(), attention(window=4), LinearAttentionConfig.taylor(2, d_state=4)),
    "hybrid, everything": (
        ShortConvConfig(),
        Mamba1Config(d_state=4, dt_init=STEPS),
        MLP,
        attention(window=3),
        LinearAttentionConfig.retention(2),
        mamba2(feature_map=("cosformer",), cosformer_length=64, dt_limit=LIMITS),
        attention(kv_heads=2, conv_width=3),
    ),
}
EXAMPLES: dict[str, tuple[Any, ...]] = {
    **{f"mamba2, {name}": (config, config) for name, config in MAMBA2.items()},
    **{name: (config, config) for name, config in OTHERS.items()},
    **HYBRIDS,
}
"""The blocks of every example."""
HAVE_STATE = [name for name in EXAMPLES if not name.startswith("mlp")]
FEW = ("mamba2, released", "mamba2, cosformer, normalised, initial states", "mamba1", "mlp", *HYBRIDS)
"""For what does not depend on the details of a block."""


def configuration(name: str, tied: bool = True, **options: Any) -> ModelConfig:
    """50 tokens, padded to 64."""
    return ModelConfig(
        d_model=D_MODEL,
        vocab_size=VOCABULARY,
        blocks=EXAMPLES[name],
        pad_vocab_size_multiple=16,
        tie_embeddings=tied,
        **options,
    )


def model(name: str, tied: bool = True, dtype: torch.dtype = torch.float32, **options: Any) -> LanguageModel:
    """One in which everything matters: no parameter is zeros or ones, and what enters a mixer is large."""
    made = LanguageModel(configuration(name, tied, **options))
    with torch.no_grad():
        for full_name, parameter in made.named_parameters():
            if (parameter == parameter.flatten()[0]).all():
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "in_proj" in full_name or "conv1d" in full_name:
                parameter.mul_(3)
    return made.to(dtype)


def tokens(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape)


# A way reads one more piece of every row, of any lengths, from where ``state`` stands (None: the beginning), and gives
# the logits of each row, (length, vocabulary), and the state behind.
Pieces = Sequence[Tensor]
Way = Callable[[LanguageModel, Pieces, ModelState | None], tuple[list[Tensor], ModelState]]


def alone(lm: LanguageModel, pieces: Pieces, state: ModelState | None) -> tuple[list[Tensor], ModelState]:
    """Every row by itself, in one pass."""
    before = [None] * len(pieces) if state is None else state.split() or [state] * len(pieces)
    outputs = [lm(piece[None], one) for piece, one in zip(pieces, before, strict=True)]
    return [output.logits[0] for output in outputs], ModelState.cat([output.state for output in outputs])


def packed(lm: LanguageModel, pieces: Pieces, state: ModelState | None) -> tuple[list[Tensor], ModelState]:
    """Behind one another."""
    lengths = [len(piece) for piece in pieces]
    output = lm(torch.cat(list(pieces))[None], state, cu_seqlens=torch.tensor([0, *itertools.accumulate(lengths)]))
    return list(output.logits[0].split(lengths)), output.state


def padded(side: str) -> Way:
    """Side by side, with padding to the left, to the right, or anywhere."""

    def read(lm: LanguageModel, pieces: Pieces, state: ModelState | None) -> tuple[list[Tensor], ModelState]:
        width = max(len(piece) for piece in pieces) + 2
        mask = torch.zeros(len(pieces), width, dtype=torch.bool)
        for row, piece in zip(mask, pieces, strict=True):
            where = torch.randperm(width)[: len(piece)] if side == "anywhere" else torch.arange(len(piece))
            row[where + (width - len(piece) if side == "left" else 0)] = True
        # A padding token is none of the vocabulary: nothing may look at it.
        ids = torch.full(mask.shape, -100)
        ids[mask] = torch.cat(list(pieces))
        output = lm(ids, state, mask=mask)
        assert not output.logits[~mask].any()
        return [logits[seen] for logits, seen in zip(output.logits, mask, strict=True)], output.state

    return read


def token_by_token(lm: LanguageModel, pieces: Pieces, state: ModelState | None) -> tuple[list[Tensor], ModelState]:
    """The rows that have a token left take a step together, wherever each of them stands."""
    state = lm.init_state(len(pieces)) if state is None else state
    rows = state.split() or [state] * len(pieces)
    logits: list[list[Tensor]] = [[] for _ in pieces]
    for t in range(max(len(piece) for piece in pieces)):
        active = [row for row, piece in enumerate(pieces) if t < len(piece)]
        output = lm.step(torch.stack([pieces[row][t] for row in active]), ModelState.cat([rows[row] for row in active]))
        after = output.state.split() or [state] * len(active)
        for row, one, line in zip(active, after, output.logits, strict=True):
            rows[row] = one
            logits[row].append(line)
    empty = lm.embedding.weight.new_empty(0, PADDED)
    return [torch.stack(row) if row else empty for row in logits], ModelState.cat(rows)


WAYS: dict[str, Way] = {
    "alone": alone,
    "packed": packed,
    "left-padded": padded("left"),
    "right-padded": padded("right"),
    "padded anywhere": padded("anywhere"),
    "token by token": token_by_token,
}


def difference(got: Tensor, truth: Tensor) -> float:
    """||got - truth|| / ||truth||, or ||got|| where the truth is zero."""
    assert got.shape == truth.shape
    size = truth.double().norm().item()
    return (got.double() - truth.double()).norm().item() / (size or 1.0)


def state_difference(got: ModelState, truth: ModelState) -> float:
    """The largest over all tensors of all rows; of key and value caches only the slots that are taken count."""
    assert [type(block) for block in got.blocks] == [type(block) for block in truth.blocks]
    assert got.rows == truth.rows
    worst = 0.0
    for mine, true in zip(got.blocks, truth.blocks, strict=True):
        for name in mine._fields:
            one, other = getattr(mine, name), getattr(true, name)
            if other is None:
                assert one is None
                continue
            if name == "length":
                assert one.tolist() == other.tolist()
            for row in range(got.rows):
                pair = (tensor[row][taken(block, row, name)] for block, tensor in ((mine, one), (true, other)))
                worst = max(worst, difference(*pair))
    return worst


def taken(block: Any, row: int, name: str) -> Any:
    """Which slots of a row hold something."""
    if name not in ("keys", "values"):
        return ...
    length, slots = int(block.length[row]), block.keys.shape[1]
    if isinstance(block, WindowState):
        return slice(slots - min(length, slots), None)
    assert isinstance(block, AttentionState)
    return slice(length)


def same(got: ModelState, truth: ModelState) -> bool:
    """Bit by bit, capacities too."""
    return [type(block) for block in got.blocks] == [type(block) for block in truth.blocks] and all(
        (one is None and other is None) or (one is not None and one.dtype == other.dtype and torch.equal(one, other))
        for mine, true in zip(got.blocks, truth.blocks, strict=True)
        for one, other in zip(mine, true, strict=True)
    )


def tensors_of(state: ModelState) -> list[Tensor]:
    return [tensor for block in state.blocks for tensor in block if tensor is not None]


def memory(*tensors: Tensor) -> set[int]:
    """Where their bytes lie."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
