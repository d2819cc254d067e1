"""Language models by name: the released ones, those of the scaling laws (tab:gpt3) and the hybrids of sec. 9.2.3.

    name                                                 what
    mamba2-130m, -370m, -780m, -1.3b, -2.7b              Mamba-2 as released
    mamba-130m, -370m, -790m, -1.4b, -2.8b               Mamba-1 as released
    scaling-mamba2-125m, -350m, -760m, -1.3b             scaling laws: Mamba-2
    scaling-mamba1-..., scaling-transformer++-...        the same sizes of Mamba-1 and of Transformer++
    transformer++-2.7b                                   hybrids: 32 x (attention, MLP)
    mamba2-mlp-2.7b                                      32 x (Mamba-2, MLP)
    mamba2-attention-2.7b                                58 x Mamba-2 and 6 x attention, as released (mamba2attn-2.7b)
    mamba2-mlp-attention-2.7b                            28 x (Mamba-2, MLP) and 4 x (attention, MLP)

The vocabulary is GPT-NeoX's where models are for evaluation and GPT-2's in the scaling laws, as app. D has it.

What the paper leaves open, and is ours:

* Scaling laws: a pair of attention and MLP is two blocks of Mamba, so Mamba-1 and Mamba-2 have twice the layers of the
  table. d_state is that of the released models, 128 and 16. Embeddings are tied, the vocabulary a multiple of 8.
* Transformer++: rotary positions over the whole head, gated MLPs of 8/3 d_model, nothing has a bias. transformer++-2.7b
  has GPT-3's 32 heads of 80, and so 1.3 % less parameters than mamba2-2.7b; the other hybrids are within 0.2 % of it.
* Hybrids with MLPs: hidden 5248, the multiple of 128 with which an MLP is nearest to a Mamba-2 block ("same number of
  parameters"). Attention is that of mamba2attn-2.7b, whose 30 heads of 128 make it nearly as large, and replaces the
  mixers 5, 12, 19 and 26 of 32: spaced out, not at the beginning or the end, as the paper's footnote asks.
"""

import difflib

from statedual.layers import AttentionConfig, Mamba1Config, Mamba2Config, MLPConfig
from statedual.models.config import BlockConfig, ModelConfig

MAMBA2 = {"130m": (768, 24), "370m": (1024, 48), "780m": (1536, 48), "1.3b": (2048, 48), "2.7b": (2560, 64)}
MAMBA1 = {"130m": (768, 24), "370m": (1024, 48), "790m": (1536, 48), "1.4b": (2048, 48), "2.8b": (2560, 64)}
"""d_model and layers."""

SCALING = {"125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 16), "1.3b": (24, 2048, 32)}
"""tab:gpt3: layers, d_model, heads of attention."""

HYBRID_WIDTH = 2560
HYBRID_MLP = MLPConfig(hidden=5248)
HYBRID_ATTENTION = AttentionConfig(heads=30, head_dim=128, rotary_dim=64, conv_width=4)
ATTENTION_BLOCKS = (9, 18, 27, 36, 45, 56)
ATTENTION_MIXERS = (5, 12, 19, 26)


def neox(d_model: int, blocks: tuple[BlockConfig, ...], multiple: int = 16) -> ModelConfig:
    """With GPT-NeoX's vocabulary."""
    return ModelConfig(d_model=d_model, vocab_size=50277, pad_vocab_size_multiple=multiple, blocks=blocks)


def gpt2(d_model: int, blocks: tuple[BlockConfig, ...]) -> ModelConfig:
    """With GPT-2's vocabulary."""
    return ModelConfig(d_model=d_model, vocab_size=50257, pad_vocab_size_multiple=8, blocks=blocks)


def with_attention(
    mixers: tuple[BlockConfig, ...], attention: AttentionConfig, where: tuple[int, ...]
) -> tuple[BlockConfig, ...]:
    """``mixers`` with attention in the places ``where``."""
    return tuple(attention if index in where else mixer for index, mixer in enumerate(mixers))


def with_mlps(mixers: tuple[BlockConfig, ...], mlp: MLPConfig) -> tuple[BlockConfig, ...]:
    """An MLP behind every mixer."""
    return tuple(block for mixer in mixers for block in (mixer, mlp))


def _released() -> dict[str, ModelConfig]:
    mamba2 = {f"mamba2-{size}": neox(d, (Mamba2Config(),) * layers) for size, (d, layers) in MAMBA2.items()}
    mamba1 = {f"mamba-{size}": neox(d, (Mamba1Config(),) * layers, 8) for size, (d, layers) in MAMBA1.items()}
    return mamba2 | mamba1


def _scaling() -> dict[str, ModelConfig]:
    found = {}
    for size, (layers, d, heads) in SCALING.items():
        found[f"scaling-mamba2-{size}"] = gpt2(d, (Mamba2Config(),) * (2 * layers))
        found[f"scaling-mamba1-{size}"] = gpt2(d, (Mamba1Config(),) * (2 * layers))
        found[f"scaling-transformer++-{size}"] = gpt2(d, (AttentionConfig(heads=heads), MLPConfig()) * layers)
    return found


def _hybrids() -> dict[str, ModelConfig]:
    mamba2: tuple[BlockConfig, ...] = (Mamba2Config(),) * 64
    half = mamba2[:32]
    blocks = {
        "transformer++": (AttentionConfig(heads=32), MLPConfig()) * 32,
        "mamba2-mlp": with_mlps(half, HYBRID_MLP),
        "mamba2-attention": with_attention(mamba2, HYBRID_ATTENTION, ATTENTION_BLOCKS),
        "mamba2-mlp-attention": with_mlps(with_attention(half, HYBRID_ATTENTION, ATTENTION_MIXERS), HYBRID_MLP),
    }
    return {f"{name}-2.7b": neox(HYBRID_WIDTH, mixture) for name, mixture in blocks.items()}


_SIZES = _released() | _scaling() | _hybrids()
NAMES = tuple(_SIZES)


def named(name: str) -> ModelConfig:
    """The configuration called ``name``, one of ``NAMES``."""
    if name not in _SIZES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(NAMES)}"
        raise ValueError(f"name is {name!r}, which is no model's; {meant}")
    return _SIZES[name]
