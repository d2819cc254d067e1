"""Text from a model: ``generate`` when it is whole, ``stream`` as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from statedual.generation.blocks import Progress
from statedual.generation.decode import decode
from statedual.generation.ending import Reason, Stop
from statedual.generation.prompts import Prompts
from statedual.generation.request import Request, Token, read_request
from statedual.generation.speculative import speculate
from statedual.generation.text import Tokenizer
from statedual.models import LanguageModel


class Generation(NamedTuple):
    """The new tokens of one row.

    logprobs: log softmax of the model's own logits over its vocabulary, before penalty, temperature and filters.
    reason: "eos", "stop" or "length".
    """

    tokens: list[int]
    logprobs: list[float]
    reason: Reason


def generate(
    model: LanguageModel,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Stop = (),
    eos: int | Iterable[int] | None = None,
    seed: int | Sequence[int] | None = None,
    mask: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
    draft: LanguageModel | None = None,
    draft_tokens: int = 4,
    block: int = 2048,
    progress: Progress | None = None,
) -> list[Generation]:
    """Continue every prompt.

    Rows do not see one another, however long or short they are: a row of a batch gets the text that it gets alone. (To
    rounding: a matrix product may round differently in a larger batch, and decide between two equally likely tokens.)

    Args:
        model: the language model, as it is.
        prompts: a ragged list of lists (or of 1-d integer tensors) of token ids, or a (batch, time) integer tensor.
        max_new_tokens: of every row, at most.
        temperature: 0 takes the likeliest token; otherwise one is drawn from softmax(logits / temperature).
        top_k: only from the k likeliest tokens.
        top_p: only from the smallest set of likeliest tokens that has this probability.
        min_p: only from tokens at least min_p times as probable as the likeliest.
        repetition_penalty: logits of tokens of the prompt and the text are divided by it, multiplied if negative.
        stop: strings, which need ``tokenizer``, or lists of token ids, that end a row when its new text has one of
            them; the tokens up to its end are kept. One string alone is fine. (Tokens that a tokenizer leaves out of
            its text, such as <|endoftext|>, are for ``eos``.)
        eos: the token, or several, that end a row; it is kept.
        seed: row i draws from its own stream, of seed + i or, given a list, of seed[i]. None: seeds that PyTorch draws.
        mask: (batch, time), 1 at tokens and 0 at padding to the left or right, where ``prompts`` is a tensor.
        tokenizer: has ``decode(ids) -> str``.
        draft: a smaller model with the same vocabulary that writes ahead. The distribution of the text is the same, and
            greedy text is (again to rounding); text that is drawn with a seed is another, each time the same.
        draft_tokens: how many tokens the draft writes ahead.
        block: prompts are read in blocks of so many tokens; memory does not grow with their length.
        progress: called with (tokens read, tokens of all prompts) after every block.

    Returns:
        Tokens, their logprobs, and why it ended, for every row.

    """
    request = read_request(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=stop,
        eos=eos,
        seed=seed,
        mask=mask,
        tokenizer=tokenizer,
        draft=draft,
        draft_tokens=draft_tokens,
        block=block,
        progress=progress,
    )
    rows: list[list[Token]] = [[] for _ in request.prompts]
    for token in _tokens(model, draft, request):
        rows[token.row].append(token)
    return [
        Generation([new.token for new in row], [new.logprob for new in row], (row and row[-1].reason) or "length")
        for row in rows
    ]


def stream(
    model: LanguageModel,
    prompts: Prompts,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Stop = (),
    eos: int | Iterable[int] | None = None,
    seed: int | Sequence[int] | None = None,
    mask: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
    draft: LanguageModel | None = None,
    draft_tokens: int = 4,
    block: int = 2048,
    progress: Progress | None = None,
) -> Iterator[tuple[int, int]]:
    """As ``generate``, with the same arguments: (row, token) as they come. Arguments are checked at once."""
    request = read_request(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=stop,
        eos=eos,
        seed=seed,
        mask=mask,
        tokenizer=tokenizer,
        draft=draft,
        draft_tokens=draft_tokens,
        block=block,
        progress=progress,
    )
    return ((token.row, token.token) for token in _tokens(model, draft, request))


def _tokens(model: LanguageModel, draft: LanguageModel | None, request: Request) -> Iterator[Token]:
    if request.ending.max_new_tokens == 0:
        return
    tokens = decode(model, request) if draft is None else speculate(model, draft, request)
    while True:
        with torch.inference_mode():  # not around the yield: what the caller does in between is not our business
            token = next(tokens, None)
        if token is None:
            return
        yield token
