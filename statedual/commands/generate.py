"""``statedual generate``: text from a checkpoint, in the terminal."""

import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Annotated, Literal

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from tyro.conf import UseAppendAction

from statedual.generation import StoppingText, stream
from statedual.models import load
from statedual.models.checkpoints.hub import locate
from statedual.models.checkpoints.token_ids import token_ids

BLOCK = 2048
"""Tokens of the prompts that are read at once; a bar shows how far longer ones are."""

Repeated = Annotated[tuple[str, ...], UseAppendAction]


class Ids:
    """Stands in for a tokenizer where there is none: its text is the ids themselves."""

    def decode(self, ids: list[int]) -> str:
        """Each with a space behind."""
        return "".join(f"{token} " for token in ids)


def generate(
    *,
    model: str,
    prompt: Repeated = (),
    prompt_ids: Repeated = (),
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Repeated = (),
    seed: int | None = None,
    dtype: Literal["float64", "float32", "bfloat16", "float16"] | None = None,
    draft: str | None = None,
) -> int:
    """Continue prompts with a checkpoint. The text of a single prompt is shown as it comes.

    Args:
        model: the folder of a checkpoint and its tokenizer.json, or owner/name on the Hugging Face hub.
        prompt: text to continue, - for standard input; give it again for several.
        prompt_ids: token ids such as "1 2 3" in place of text, which need no tokenizer; give it again for several.
        max_new_tokens: of every prompt, at most.
        temperature: 0 takes the likeliest token, 1 draws from the model's own distribution.
        top_k: only from the k likeliest tokens.
        top_p: only from the smallest set of likeliest tokens that has this probability.
        min_p: only from tokens at least min_p times as probable as the likeliest.
        repetition_penalty: above 1, tokens that have occurred become less likely.
        stop: text before which to end; give it again for several.
        seed: draws the same text each time; prompt i has seed + i.
        dtype: of the weights; that of the checkpoint if not given.
        draft: a smaller checkpoint with the same vocabulary, which writes ahead to save time.

    Returns:
        0.

    """
    folder = locate(model)
    tokenizer = _tokenizer(folder, needed=bool(prompt or stop))
    prompts = _read_prompts(prompt, prompt_ids, tokenizer)
    length = sum(len(ids) for ids in prompts)
    weights = None if dtype is None else getattr(torch, dtype)
    console = Console(stderr=True, highlight=False)
    columns = TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"), TimeRemainingColumn()
    shown = console.is_terminal and length > BLOCK
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("reading", total=length)
        tokens = stream(
            load(folder, dtype=weights),
            prompts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            stop=stop,
            eos=token_ids(folder)["eos_token_id"],
            seed=seed,
            tokenizer=tokenizer,
            draft=None if draft is None else load(draft, dtype=weights),
            block=BLOCK,
            progress=lambda done, _: bar.update(task, completed=done),
        )
        begun = perf_counter()
        first = next(tokens, None)
    read = perf_counter()
    texts = [StoppingText(Ids() if tokenizer is None else tokenizer, stop) for _ in prompts]
    count = _show(chain([] if first is None else [first], tokens), texts, prompt or prompt_ids)
    decoded = count - len(prompts)  # the first ones came out of reading
    rate = f", {decoded / (perf_counter() - read):.1f} tokens/s" if decoded > 0 else ""
    console.print(f"{count} tokens{rate}, after {length} tokens read in {read - begun:.1f} s")
    return 0


def _show(tokens: Iterable[tuple[int, int]], texts: Sequence[StoppingText], heads: Sequence[str]) -> int:
    """Write one text as it comes, several behind one another with their prompts as heads. Returns how many tokens."""
    count = 0
    parts: list[list[str]] = [[] for _ in texts]
    for row, token in tokens:
        count += 1
        piece = texts[row].push(token)
        if len(texts) == 1:
            print(piece, end="", flush=True)
        else:
            parts[row].append(piece)
    for head, text, pieces in zip(heads, texts, parts, strict=True):
        if len(texts) > 1:
            print(f"=== {head}", "".join(pieces), sep="\n", end="")
        print("" if text.stopped else text.flush())
    return count


def _tokenizer(folder: Path, needed: bool) -> Tokenizer | None:
    path = folder / "tokenizer.json"
    if not path.is_file():
        if needed:
            raise FileNotFoundError(
                f'{path} does not exist, expected it for text; --prompt-ids "1 2 3" without --stop needs no tokenizer'
            )
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # it raises nothing more precise
        raise ValueError(f"{path} is no tokenizer that the package tokenizers can read: {error}") from error


def _read_prompts(prompt: Sequence[str], prompt_ids: Sequence[str], tokenizer: Tokenizer | None) -> list[list[int]]:
    if bool(prompt) == bool(prompt_ids):
        raise ValueError("expected either --prompt or --prompt-ids, at least once")
    if tokenizer is not None and prompt:
        if prompt.count("-") > 1:
            raise ValueError("--prompt - was given twice, expected once: there is one standard input")
        texts = [_standard_input() if text == "-" else text for text in prompt]
        for index, text in enumerate(texts):
            if any("\ud800" <= letter <= "\udfff" for letter in text):  # what Python makes of bytes it cannot read
                raise ValueError(f"prompt {index} is not UTF-8, expected text")
        return [tokenizer.encode(text).ids for text in texts]
    try:
        return [[int(token) for token in text.split()] for text in prompt_ids]
    except ValueError as error:
        raise ValueError(f'--prompt-ids: {error}, expected integers such as "1 2 3"') from None


def _standard_input() -> str:
    if sys.stdin is None:
        raise ValueError("--prompt - reads standard input, which is closed")
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not UTF-8, expected text: {error}") from error
