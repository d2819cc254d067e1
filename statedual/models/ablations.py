"""The rows of the paper's tables of sec. 9.4 and of tab:ssd_attn as configurations, beside what the paper prints.

Models of 125M (d_model 768) and 360M (d_model 1024) parameters, N = 64 and P = 64 if a row does not say otherwise, with
GPT-2's vocabulary. They are trained on 2.5B and 7B tokens of the Pile, the hybrids of tab:ssd_attn on 7B.

What the paper leaves open, and is ours:

* The extra norm and the bias of the convolution. In all tables of sec. 9.4 the perplexity of the common model is that
  of the block without extra norm (11.66), and without either the number of parameters is the printed one to its last
  digit. So they are off here, except the norm in the rows of ``block_design`` that have it.
* ``head_structure``: at 360M two labels are interchanged in print. The row called multi-head has 1, 1, 1 heads of B, C,
  X and 70 layers, which is multi-state, and the row called multi-state has 32, 32, 32 and 29, which is multi-head;
  their numbers of parameters agree with that. Here a pattern has the name of what it is.
* ``kernels``: x keeps its Swish in all rows, and the other maps take the place of that of B and C. Both kinds of random
  features are as many as N. cosFormer makes 2 N features of N channels, hence a state twice as large, for positions up
  to 2048.
* ``expanded_kernels``: layer norms have a weight and a bias. The (Re)Based rows have fewer parameters a layer, and as
  many layers as come nearest to the size of the Swish row.
* ``attention_ratio``: Mamba-2 as released. Attention as in mamba2attn-2.7b, with 12 heads of 128, which are
  6 d_model^2 parameters as in a Mamba-2 block, at indices spaced evenly, none at an end (so that of 24 two are next to
  each other).
"""

from dataclasses import dataclass, replace

from statedual.layers import HEAD_PATTERNS, AttentionConfig, Mamba2Config
from statedual.models.config import BlockConfig, ModelConfig
from statedual.models.sizes import gpt2, named, with_attention

PLAIN = Mamba2Config(d_state=64, norm="none", conv_bias=False)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: a model, and what the paper prints of it: perplexity, in some tables parameters in millions."""

    label: str
    config: ModelConfig
    perplexity: float
    millions: float | None = None


def block_design() -> tuple[Row, ...]:
    """tab:ablations-architecture: how B, C, dt and x are made, and the extra norm. The first row is Mamba-1's block."""
    # As in Mamba-1, B and C come out of x_proj as they are.
    sequential = replace(PLAIN, projections="sequential", feature_map=())
    return (
        _row("sequential", sequential, 11.76, 129.3),
        _row("sequential, norm", replace(sequential, norm="rms"), 11.54, 129.3),
        _row("parallel", PLAIN, 11.66, 126.5),
        _row("parallel, norm", replace(PLAIN, norm="rms"), 11.49, 126.5),
    )


def head_structure() -> tuple[Row, ...]:
    """tab:ablations-heads: how many heads B, C and x have, at the same size of the state and number of parameters."""
    small = (
        ("MIS", 24, 126.5, 11.66),
        ("MCS", 24, 126.5, 12.62),
        ("MES", 24, 126.5, 12.59),
        ("MHS", 15, 127.6, 12.06),
        ("MSS", 36, 129.6, 12.00),
    )
    large = (
        ("MIS", 48, 361.8, 8.73),
        ("MCS", 48, 361.8, 9.33),
        ("MES", 48, 361.8, 9.36),
        ("MSS", 70, 361.3, 9.01),
        ("MHS", 29, 357.3, 9.04),
    )
    return tuple(
        Row(
            label=f"{size} {pattern}",
            config=gpt2(d_model, (_with_heads(pattern),) * layers),
            perplexity=perplexity,
            millions=millions,
        )
        for size, d_model, rows in (("125M", 768, small), ("360M", 1024, large))
        for pattern, layers, millions, perplexity in rows
    )


def _with_heads(pattern: str) -> Mamba2Config:
    heads = HEAD_PATTERNS[pattern]
    return replace(PLAIN, heads_x=heads["heads_x"], heads_b=heads["heads_b"], heads_c=heads["heads_c"])


def kernels() -> tuple[Row, ...]:
    """tab:ablations-kernel: the map on B and C, at 125M."""
    return (
        _row("none", replace(PLAIN, feature_map=()), 11.58),
        _row("Swish", PLAIN, 11.66),
        _row("exp", replace(PLAIN, feature_map=("exp",)), 11.62),
        _row("ReLU", replace(PLAIN, feature_map=("relu",)), 11.73),
        _row("ReLU, normalised", replace(PLAIN, feature_map=("relu",), normaliser=True), 11.64),
        _row("cosFormer", replace(PLAIN, feature_map=("cosformer",)), 11.97),
        _row("random features", replace(PLAIN, feature_map=("random_features",)), 11.57),
        _row("positive random features", replace(PLAIN, feature_map=("positive_random_features",)), 12.21),
    )


def expanded_kernels() -> tuple[Row, ...]:
    """tab:ablations-kernel-based: maps to more features, of B and C projected to 8 (130M) and 16 (380M) channels."""
    rows = []
    for size, d_model, n, projected, layers, expanded_layers, perplexities in (
        ("130M", 768, 64, 8, 24, 25, (11.67, 12.19, 11.50, 11.84)),
        ("380M", 1024, 256, 16, 48, 52, (8.58, 8.71, 8.61, 8.63)),
    ):
        for (label, feature_map, expands), perplexity in zip(
            (
                ("Swish", ("swish",), False),
                ("Swish, Taylor (Based)", ("swish", "taylor"), True),
                ("layer norm", ("layer_norm",), False),
                ("layer norm, square (ReBased)", ("squared_layer_norm",), True),
            ),
            perplexities,
            strict=True,
        ):
            block = replace(PLAIN, d_state=projected if expands else n, feature_map=feature_map)
            config = gpt2(d_model, (block,) * (expanded_layers if expands else layers))
            rows.append(Row(label=f"{size} {label}", config=config, perplexity=perplexity))
    return tuple(rows)


def attention_ratio() -> tuple[Row, ...]:
    """tab:ssd_attn: attention in the place of some of 48 blocks of Mamba-2 at 350M; the last row is Transformer++."""
    mamba2 = named("scaling-mamba2-350m")
    attention = AttentionConfig(heads=12, head_dim=128, rotary_dim=64, conv_width=4)
    counts = (0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 15, 24)
    perplexities = (8.60, 8.38, 8.32, 8.29, 8.29, 8.28, 8.26, 8.27, 8.28, 8.30, 8.34, 8.50)
    hybrids = (
        Row(
            label=f"{count} of 48",
            config=gpt2(mamba2.d_model, with_attention(mamba2.blocks, attention, spaced(count, 48))),
            perplexity=perplexity,
        )
        for count, perplexity in zip(counts, perplexities, strict=True)
    )
    return (*hybrids, Row(label="Transformer++", config=named("scaling-transformer++-350m"), perplexity=8.68))


def spaced(count: int, blocks: int) -> tuple[int, ...]:
    """``count`` indices out of ``blocks`` at equal distances from one another and from the ends."""
    return tuple((index + 1) * blocks // (count + 1) for index in range(count))


def _row(label: str, block: BlockConfig, perplexity: float, millions: float | None = None) -> Row:
    """125M: 24 blocks of d_model 768."""
    return Row(label=label, config=gpt2(768, (block,) * 24), perplexity=perplexity, millions=millions)
