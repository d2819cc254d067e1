"""Rows of the paper's tables as configurations: sizes as printed, and every row differs where the table says."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from statedual.models import LanguageModel
from statedual.models.ablations import (
    Row,
    attention_ratio,
    block_design,
    expanded_kernels,
    head_structure,
    kernels,
    spaced,
)
from statedual.models.cost import parameters

TABLES = (block_design, head_structure, kernels, expanded_kernels, attention_ratio)


def table(rows: Callable[[], tuple[Row, ...]]) -> dict[str, Row]:
    return {row.label: row for row in rows()}


def first(row: Row) -> nn.Module:
    """Its first mixer, without memory."""
    with torch.device("meta"):
        return row.config.blocks[0].build(row.config.d_model)


def heads(row: Row) -> tuple[int, int, int]:
    """Of B, C and X."""
    mixer = first(row)
    return mixer.heads_b, mixer.heads_c, mixer.heads_x


@pytest.mark.parametrize("row", [*block_design(), *head_structure()], ids=lambda row: row.label)
def test_the_number_of_parameters_is_the_printed_one(row: Row) -> None:
    assert row.millions is not None
    millions = parameters(row.config) / 1e6
    assert millions == pytest.approx(row.millions, rel=0.002)
    if row.label != "parallel, norm":  # 126.557, and the paper prints what it prints without the norm
        assert round(millions, 1) == row.millions


@pytest.mark.parametrize(("rows", "count"), [*zip(TABLES, (4, 10, 8, 8, 13), strict=True)])
def test_the_tables_have_all_rows_and_each_is_another_model(rows: Callable[[], tuple[Row, ...]], count: int) -> None:
    assert len({row.label for row in rows()}) == len({row.config for row in rows()}) == len(rows()) == count
    assert all(8 < row.perplexity < 13 for row in rows())


def test_block_design() -> None:
    rows = table(block_design)
    for label, row in rows.items():
        mixer = first(row)
        assert (mixer.norm is not None) == label.endswith("norm")
        assert (mixer.x_proj is not None) == label.startswith("sequential")
        assert (mixer.map_bc.names == ()) == label.startswith("sequential")
    # x alone is convolved there; B, C and dt are made of it.
    sequential = first(rows["sequential"])
    assert sequential.conv1d.channels == 1536
    assert sequential.x_proj.weight.shape == (64 + 64 + 24, 1536)


@pytest.mark.parametrize(("size", "all_heads", "d_model"), [("125M", 24, 768), ("360M", 32, 1024)])
def test_head_structure(size: str, all_heads: int, d_model: int) -> None:
    rows = table(head_structure)
    assert heads(rows[f"{size} MIS"]) == (1, 1, all_heads)
    assert heads(rows[f"{size} MCS"]) == (1, all_heads, 1)
    assert heads(rows[f"{size} MES"]) == (all_heads, 1, 1)
    assert heads(rows[f"{size} MHS"]) == (all_heads, all_heads, all_heads)
    assert heads(rows[f"{size} MSS"]) == (1, 1, 1)
    for label, row in rows.items():
        if label.startswith(size):
            assert row.config.d_model == d_model
            mixer = first(row)
            assert mixer.state_shape == (all_heads, 64, 64)
            assert mixer.A_log.shape == (all_heads,)  # each head has its own decay, whatever it shares


def test_the_labels_that_are_interchanged_in_print_fit_their_sizes_only_so() -> None:
    """With 29 layers the pattern 1, 1, 1 would be far from 357.3M, and with 70 the pattern 32, 32, 32 from 361.3M."""
    rows = table(head_structure)
    for pattern, layers, printed in (("MSS", 29, 357.3), ("MHS", 70, 361.3)):
        config = rows[f"360M {pattern}"].config
        other = replace(config, blocks=config.blocks[:1] * layers)
        assert abs(parameters(other) / 1e6 - printed) > 100


def test_kernels_differ_in_the_map_on_b_and_c_only() -> None:
    rows = table(kernels)
    assert len({parameters(row.config) for row in rows.values()}) == 1
    plain = rows["none"].config.blocks[0]
    for label, row in rows.items():
        block = row.config.blocks[0]
        assert replace(block, feature_map=(), normaliser=False) == plain
        assert block.normaliser == (label == "ReLU, normalised")
        assert block.feature_map_x == ("swish",)
    features = {label: first(row).map_bc.features for label, row in rows.items()}
    assert features == dict.fromkeys(rows, 64) | {"cosFormer": 128}


def test_expanded_kernels_have_the_state_sizes_of_the_appendix() -> None:
    rows = table(expanded_kernels)
    features = {label: first(row).map_bc.features for label, row in rows.items()}
    assert features == {
        "130M Swish": 64,
        "130M Swish, Taylor (Based)": 1 + 8 + 8**2,
        "130M layer norm": 64,
        "130M layer norm, square (ReBased)": 8**2,
        "380M Swish": 256,
        "380M Swish, Taylor (Based)": 1 + 16 + 16**2,
        "380M layer norm": 256,
        "380M layer norm, square (ReBased)": 16**2,
    }


@pytest.mark.parametrize(("size", "millions"), [("130M", 130), ("380M", 380)])
@pytest.mark.parametrize("label", ["Swish, Taylor (Based)", "layer norm, square (ReBased)"])
def test_no_other_depth_of_the_expanded_kernels_is_nearer_in_size(size: str, millions: int, label: str) -> None:
    rows = table(expanded_kernels)
    wanted, config = parameters(rows[f"{size} Swish"].config), rows[f"{size} {label}"].config
    assert wanted / 1e6 == pytest.approx(millions, rel=0.03)
    depth, apart = len(config.blocks), {}
    for layers in (depth - 1, depth, depth + 1):
        apart[layers] = abs(parameters(replace(config, blocks=config.blocks[:1] * layers)) - wanted)
    assert min(apart, key=lambda layers: apart[layers]) == depth


def test_attention_ratio() -> None:
    *hybrids, transformer = attention_ratio()
    counts = [sum(block.kind == "attention" for block in row.config.blocks) for row in hybrids]
    assert counts == [0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 15, 24]
    assert [row.label for row in hybrids] == [f"{count} of 48" for count in counts]
    for row in hybrids:
        assert len(row.config.blocks) == 48
        assert row.config.blocks[0].kind == row.config.blocks[-1].kind == "mamba2"
        assert parameters(row.config) == pytest.approx(parameters(hybrids[0].config), rel=0.02)
    assert min(hybrids, key=lambda row: row.perplexity).label == "6 of 48"
    assert [block.kind for block in transformer.config.blocks] == ["attention", "mlp"] * 24
    assert parameters(transformer.config) == pytest.approx(parameters(hybrids[0].config), rel=0.03)


def test_spaced() -> None:
    assert spaced(0, 48) == ()
    assert spaced(1, 48) == (24,)
    assert spaced(3, 48) == (12, 24, 36)
    assert spaced(6, 64)[:5] == (9, 18, 27, 36, 45)  # as in the released hybrid, whose last one is 56
    for count in range(1, 24):
        where = (-1, *spaced(count, 48), 48)
        gaps = [after - before for before, after in itertools.pairwise(where)]
        assert max(gaps) - min(gaps) <= 1


SMALL = [row for rows in TABLES for row in rows()]


@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.label)
def test_every_row_is_a_model_that_runs(row: Row) -> None:
    """One block of each kind, at a tenth of the width: a pass over a sequence, and its gradient."""
    blocks = tuple({block.kind: block for block in row.config.blocks}.values())
    model = LanguageModel(replace(row.config, d_model=96, vocab_size=11, pad_vocab_size_multiple=1, blocks=blocks))
    logits = model(torch.randint(11, (1, 6))).logits
    assert logits.shape == (1, 6, 11)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
