"""Bad input meets a message with its argument and row, before the model has computed anything."""

import math
import re

import pytest
import torch
from generation_examples import tiny

from statedual.generation import generate, stream

NAN = math.nan


@pytest.mark.parametrize("function", [generate, stream])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"prompts": []}, "prompts is empty"),
        ({"prompts": [[1], []]}, "prompts[1] is empty"),
        ({"prompts": [[1], [11]]}, "prompts[1] has id 11"),
        ({"prompts": [[1], [2.0]]}, "prompts[1] has 2.0"),
        ({"prompts": [[True]]}, "prompts[0] has True"),
        ({"mask": torch.ones(1, 2)}, "mask was given with a list"),
        ({"prompts": torch.tensor([[1, 2]]), "mask": torch.tensor([[0, 0]])}, "mask[0] is all padding"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": NAN}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 2.0}, "top_k is 2.0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": NAN}, "top_p is nan"),
        ({"min_p": -0.5}, "min_p is -0.5"),
        ({"min_p": NAN}, "min_p is nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"repetition_penalty": NAN}, "repetition_penalty is nan"),
        ({"stop": ["a"]}, "stop has the string 'a' without a tokenizer"),
        ({"stop": [[]]}, "stop[0] is empty"),
        ({"eos": 11}, "eos has 11"),
        ({"seed": -1}, "seed of row 0 is -1"),
        ({"seed": [1]}, "seed has 1 integers, expected 2"),
        ({"seed": NAN}, "seed is nan"),
        ({"block": 0}, "block is 0"),
        ({"draft_tokens": 0}, "draft_tokens is 0"),
        ({"draft": tiny(vocab=12)}, "draft has vocab_size 12, expected 11 as model"),
        ({"draft": tiny().to("meta")}, "draft is on meta, expected cpu where model is"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_is_refused_before_anything_is_computed(function, arguments: dict, told: str) -> None:
    model, calls = tiny(), []
    model.embedding.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        function(model, **{"prompts": [[1], [2]], "max_new_tokens": 3, **arguments})
    assert calls == []
