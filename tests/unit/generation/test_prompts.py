"""Prompts in every form become the same ragged list; what is wrong is named with its row."""

import math
import re

import numpy as np
import pytest
import torch

from statedual.generation.prompts import read_prompts

RAGGED = [[1, 2, 3], [4], [5, 6]]
LEFT = torch.tensor([[1, 2, 3], [0, 0, 4], [0, 5, 6]]), torch.tensor([[1, 1, 1], [0, 0, 1], [0, 1, 1]])
RIGHT = torch.tensor([[1, 2, 3], [4, 9, 9], [5, 6, 9]]), torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
MIXED = (
    torch.tensor([[1, 2, 3, 0], [0, 4, 0, 0], [0, 0, 5, 6]]),
    torch.tensor([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1]]),
)


@pytest.mark.parametrize("padded", [LEFT, RIGHT, MIXED], ids=["left", "right", "mixed"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_padding_is_left_out(padded: tuple, dtype: torch.dtype) -> None:
    ids, mask = padded
    assert read_prompts(ids, mask.to(dtype), 10) == RAGGED


def test_padding_may_be_any_id() -> None:
    ids, mask = RIGHT
    assert read_prompts(ids.masked_fill(mask == 0, -100), mask.bool(), 10) == RAGGED


def test_a_tensor_without_a_mask_has_no_padding() -> None:
    assert read_prompts(torch.tensor([[0, 1], [2, 0]], dtype=torch.int32), None, 10) == [[0, 1], [2, 0]]


@pytest.mark.usefixtures("unchecked_shapes")
def test_rows_may_be_lists_tuples_tensors_or_arrays() -> None:
    for row in (
        (1, 2),
        torch.tensor([1, 2]),
        torch.tensor([1, 2], dtype=torch.uint8),
        [np.int64(1), np.int32(2)],
        np.array([1, 2]),
    ):
        found = read_prompts([row, [3]], None, 10)
        assert found == [[1, 2], [3]]
        assert {type(token) for tokens in found for token in tokens} == {int}


def test_the_given_lists_are_copied() -> None:
    given = [[1, 2]]
    read_prompts(given, None, 10)[0].append(3)
    assert given == [[1, 2]]


@pytest.mark.parametrize(
    ("prompts", "mask", "told"),
    [
        ([], None, "prompts is empty, expected at least one row"),
        (torch.zeros(0, 3, dtype=torch.long), None, "prompts is empty"),
        ([[1], []], None, "prompts[1] is empty, expected at least one token"),
        (torch.zeros(2, 0, dtype=torch.long), None, "prompts[0] is empty"),
        ([[1], torch.tensor([], dtype=torch.long)], None, "prompts[1] is empty"),
        ([[1], [2, 10]], None, "prompts[1] has id 10 at position 1, expected 0 <= id < vocab_size = 10"),
        ([[1], [-1, 2]], None, "prompts[1] has id -1 at position 0"),
        (torch.tensor([[1], [12]]), None, "prompts[1] has id 12 at position 0"),
        ([[1], [2, True]], None, "prompts[1] has True at position 1, expected an integer"),
        ([[1], [2.0]], None, "prompts[1] has 2.0 at position 0, expected an integer"),
        ([[1], [math.nan]], None, "prompts[1] has nan at position 0"),
        ([[1], [None]], None, "prompts[1] has None at position 0"),
        ([[1], ["2"]], None, "prompts[1] has '2' at position 0"),
        ([1, 2], None, "prompts[0] is 1, expected a list of token ids, one list for every row"),
        (["text"], None, "prompts[0] is 'text', expected a list of token ids"),
        ("text", None, "prompts is a str, expected a list of lists"),
        (None, None, "prompts is a NoneType, expected a list of lists"),
        ([[1], torch.tensor([1.0])], None, "prompts[1] is a torch.float32 tensor of shape (1,), expected 1-d integer"),
        ([[1], torch.tensor([True])], None, "prompts[1] is a torch.bool tensor"),
        ([torch.tensor([[1]])], None, "prompts[0] is a torch.int64 tensor of shape (1, 1), expected 1-d"),
        (torch.tensor([1, 2]), None, "prompts is a torch.int64 tensor of shape (2,), expected integer (batch, time)"),
        (torch.tensor([[1.0]]), None, "prompts is a torch.float32 tensor"),
        (torch.tensor([[True]]), None, "prompts is a torch.bool tensor"),
        ([[1]], torch.ones(1, 1), "mask was given with a list, expected none"),
        (torch.tensor([[1, 2]]), torch.ones(1, 3), "mask is (1, 3), expected a tensor of shape (1, 2)"),
        (torch.tensor([[1, 2]]), [[1, 1]], "mask is list, expected a tensor of shape (1, 2)"),
        (torch.tensor([[1, 2]]), torch.tensor([[1, 2]]), "mask[0] has values other than 0 and 1"),
        (torch.tensor([[1.0, 2]]).long(), torch.tensor([[1, math.nan]]), "mask[0] has values other than 0 and 1"),
        (torch.tensor([[1], [2]]), torch.tensor([[1], [0]]), "mask[1] is all padding"),
        (torch.tensor([[1, 2, 3]]), torch.tensor([[1, 0, 1]]), "mask[0] has padding between tokens"),
        (torch.tensor([[1, 2, 30]]), torch.tensor([[0, 1, 1]]), "prompts[0] has id 30 at position 1"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_what_is_no_prompt_is_refused(prompts: object, mask: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        read_prompts(prompts, mask, 10)
