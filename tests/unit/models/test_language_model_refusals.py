"""What the language model refuses, in the words that users meet."""

from typing import Any

import pytest
import torch
from model_examples import PADDED, VOCABULARY, model, tokens

from statedual.layers import AttentionConfig
from statedual.models import LanguageModel, ModelConfig

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
HYBRID = "hybrid, everything"
MASK = torch.tensor([[True, True, True, False, False], [False, True, False, True, True]])
OFFSETS = torch.tensor([0, 3, 5])


@pytest.mark.parametrize("wrong", [-1, VOCABULARY, PADDED])
def test_ids_out_of_range(wrong: int) -> None:
    """Padding rows of the embedding are no tokens."""
    lm, ids = model("mamba1"), tokens(2, 5)
    ids[1, 2] = wrong
    message = rf"ids contain {wrong}, expected 0 <= id < vocab_size = 50"
    with pytest.raises(ValueError, match=message):
        lm(ids)
    with pytest.raises(ValueError, match=message):
        lm(ids[1:], cu_seqlens=OFFSETS)
    with pytest.raises(ValueError, match=message):
        lm.step(ids[:, 2], lm.init_state(2))
    seen = torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match=message):
        lm(ids, mask=seen)
    seen[1, 2] = False
    assert lm(ids, mask=seen).logits.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int8])
def test_ids_of_a_wrong_type(dtype: torch.dtype) -> None:
    lm = model("mamba1")
    with pytest.raises(ValueError, match=f"ids has dtype {dtype}, expected int32 or int64 token ids"):
        lm(torch.ones(2, 5, dtype=dtype))
    with pytest.raises(ValueError, match=f"ids has dtype {dtype}, expected int32 or int64 token ids"):
        lm.step(torch.ones(2, dtype=dtype), lm.init_state(2))


@pytest.mark.parametrize("shape", [(), (5,), (2, 5, 1)])
def test_ids_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"ids has shape .*, expected 2 axes \(batch, time\)"):
        model("mamba1")(tokens(*shape))


@pytest.mark.parametrize("shape", [(), (2, 1)])
def test_a_step_takes_one_token_a_row(shape: tuple[int, ...]) -> None:
    lm = model("mamba1")
    with pytest.raises(ValueError, match=r"ids has shape .*, expected 1 axes \(batch\)"):
        lm.step(tokens(*shape), lm.init_state(2))


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("name", ["mamba1", "hybrid, mamba2 + mlp + attention"])
def test_a_state_of_other_rows(name: str, rows: int) -> None:
    lm = model(name)
    state = lm.init_state(rows)
    calls = [
        lambda: lm(tokens(2, 3), state),
        lambda: lm(tokens(1, 5), state, cu_seqlens=OFFSETS),
        lambda: lm(tokens(2, 5), state, mask=MASK),
        lambda: lm.step(tokens(2), state),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"state has {rows} rows, expected 2, one for every sequence of ids"):
            call()


@pytest.mark.parametrize("other", ["hybrid, Based", "mamba2, released", "attention, window"])
def test_a_state_of_another_model(other: str) -> None:
    lm = model("attention")
    state = model(other).init_state(2)
    for call in (lambda: lm(tokens(2, 3), state), lambda: lm.step(tokens(2), state)):
        with pytest.raises(ValueError, match=r"state is of a model with .*, expected one of this model with"):
            call()


def test_offsets_and_a_mask_and_a_batch() -> None:
    lm = model("mamba1")
    with pytest.raises(ValueError, match="mask and cu_seqlens were both given, expected one"):
        lm(tokens(1, 5), cu_seqlens=OFFSETS, mask=MASK[:1])
    with pytest.raises(ValueError, match="ids has batch 2 with cu_seqlens, expected 1"):
        lm(tokens(2, 5), cu_seqlens=OFFSETS)


@pytest.mark.parametrize("name", ["mamba1", "attention", "attention, window", "short convolution", "mlp", HYBRID])
@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([1, 3, 5], "cu_seqlens starts at 1, expected 0"),
        ([0, 3, 4], "cu_seqlens ends at 4, expected 5"),
        ([0, 3, 6], "cu_seqlens ends at 6, expected 5"),
        ([0, 4, 3, 5], "cu_seqlens decreases from 4 to 3"),
        ([[0, 5]], "cu_seqlens has shape"),
        ([0.0, 5.0], "cu_seqlens has dtype torch.float32, expected int32 or int64"),
        ([], "cu_seqlens has shape|cu_seqlens has dtype"),
    ],
)
def test_offsets_that_are_none(name: str, offsets: list[Any], message: str) -> None:
    for last_only in (False, True):
        with pytest.raises(ValueError, match=message):
            model(name)(tokens(1, 5), cu_seqlens=torch.tensor(offsets), last_only=last_only)


def test_a_mask_that_is_none() -> None:
    lm = model("mamba1")
    with pytest.raises(ValueError, match=r"mask has dtype torch.int64, expected torch.bool; mask\.bool\(\) makes"):
        lm(tokens(2, 5), mask=MASK.long())
    for mask in (MASK[:, :4], MASK[:1], MASK[0], MASK[None]):
        with pytest.raises(ValueError, match="mask has"):
            lm(tokens(2, 5), mask=mask)


def test_there_is_no_last_token_of_nothing() -> None:
    lm = model("mamba1")
    with pytest.raises(ValueError, match="ids has time 0, expected at least one token"):
        lm(tokens(2, 0), last_only=True)
    message = "sequence 1 is empty, expected a token in each where last_only asks for logits"
    with pytest.raises(ValueError, match=message):
        lm(tokens(1, 5), cu_seqlens=torch.tensor([0, 3, 3, 5]), last_only=True)
    with pytest.raises(ValueError, match=message):
        lm(tokens(2, 5), mask=MASK & torch.tensor([[True], [False]]), last_only=True)
    assert lm(tokens(1, 0), cu_seqlens=torch.tensor([0]), last_only=True).logits.shape == (0, PADDED)


def test_a_block_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="d_model is 16, expected a multiple of the 3 heads"):
        LanguageModel(ModelConfig(d_model=16, vocab_size=50, blocks=(AttentionConfig(heads=3),)))
