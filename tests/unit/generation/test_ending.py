"""Why a row ends, and at which token."""

import re

import numpy
import pytest
import torch
from generation_examples import Letters

from statedual.generation.ending import Watch, read_ending


def ends(tokens: list[int], **arguments: object) -> tuple[int, str | None]:
    """How many tokens are taken, and why it ended."""
    given = {"max_new_tokens": 5, "eos": None, "stop": (), "tokenizer": None, "vocab_size": 26, **arguments}
    watch = Watch(read_ending(**given))
    for count, token in enumerate(tokens, 1):
        reason = watch.push(token)
        if reason is not None:
            return count, reason
    return len(tokens), None


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ({}, (5, "length")),
        ({"max_new_tokens": 1}, (1, "length")),
        ({"eos": 2}, (2, "eos")),
        ({"eos": [9, 2]}, (2, "eos")),
        ({"eos": {3}}, (3, "eos")),
        ({"eos": 25}, (5, "length")),
        ({"stop": [[2, 3]]}, (3, "stop")),
        ({"stop": [(3,), [5, 5]]}, (3, "stop")),
        ({"stop": [[3, 2]]}, (5, "length")),
        ({"stop": [[1, 2, 3, 4]]}, (4, "stop")),
        ({"stop": [[0, 1]]}, (5, "length")),  # 0 was in the prompt, as it were
        ({"stop": "cd", "tokenizer": Letters()}, (3, "stop")),
        ({"stop": ["x", "bcde"], "tokenizer": Letters()}, (4, "stop")),
        ({"stop": ["x", [4]], "tokenizer": Letters()}, (4, "stop")),
        ({"tokenizer": Letters()}, (5, "length")),
        ({"eos": 3, "stop": [[3]]}, (3, "eos")),  # of several reasons the first in this order: eos, stop, length
        ({"max_new_tokens": 3, "stop": [[2, 3]]}, (3, "stop")),
        ({"max_new_tokens": 3, "eos": 3}, (3, "eos")),
    ],
)
def test_a_row_ends_with_the_token_that_completes_an_end(arguments: dict, end: tuple[int, str]) -> None:
    assert ends([1, 2, 3, 4, 5, 6], **arguments) == end


def test_rows_do_not_share_what_they_have_seen() -> None:
    ending = read_ending(9, None, [[1, 2]], None, 26)
    first, second = Watch(ending), Watch(ending)
    assert first.push(1) is None
    assert second.push(2) is None
    assert first.push(2) == "stop"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        *(({"max_new_tokens": value}, f"max_new_tokens is {value!r}, expected") for value in (-1, 1.0, True, None)),
        *(({"eos": value}, f"eos has {value!r}, expected a token id") for value in (-1, 26, True)),
        ({"eos": [1, 2.0]}, "eos has 2.0, expected a token id"),
        ({"eos": 2.0}, "eos is 2.0, expected a token id or a collection"),
        ({"stop": ["a"]}, "stop has the string 'a' without a tokenizer"),
        ({"stop": [[1], []]}, "stop[1] is empty"),
        ({"stop": "", "tokenizer": Letters()}, "stop[0] is empty"),
        ({"stop": [1, 2]}, "stop[0] is 1, expected a string or a list of token ids"),
        ({"stop": [[1], [30]]}, "stop[1] has 30, expected a token id"),
        ({"stop": [[1.0]]}, "stop[0] has 1.0, expected a token id"),
        ({"stop": 3}, "stop is 3, expected"),
        ({"stop": None}, "stop is None, expected"),
        ({"tokenizer": "gpt2"}, "tokenizer is a str, expected an object with decode"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_what_ends_nothing_is_refused(arguments: dict, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        ends([1], **arguments)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("eos", [torch.tensor(3), torch.tensor([5, 3]), numpy.int64(3), {3}])
def test_ends_may_come_from_tensors(eos: object) -> None:
    assert ends([1, 3, 2], eos=eos) == ends([1, 3, 2], eos=[3])
