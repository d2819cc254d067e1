"""From one layout into another, with what belongs to the tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from statedual.models.checkpoints.hub import COMPANIONS, locate
from statedual.models.checkpoints.load import load
from statedual.models.checkpoints.save import describe, new_folder, require_new, write_files
from statedual.models.checkpoints.token_ids import token_ids
from statedual.models.language_model import LanguageModel

CHECKED_ROWS, CHECKED_TOKENS = 2, 100
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
"""Of the largest logit. The weights are the same to the bit; memory that is aligned otherwise may round otherwise."""


def convert(
    source: str | Path,
    target: str | Path,
    *,
    layout: str,
    dtype: torch.dtype | None = None,
    check: bool = False,
) -> float | None:
    """Write what ``load(source)`` gives into the new folder ``target``, and copy the files of the tokenizer along.

    check: load what was written, and return the largest difference between the logits of random ids before and after;
    if it is more than rounding, that is an error, and there is no ``target``.
    """
    require_new(Path(target))  # before the minutes of a download, not after
    folder = locate(source)
    model = load(folder, dtype=dtype)
    writing = describe(model, layout)
    ids = token_ids(folder)
    if layout == "transformers":
        writing.values.update(ids)
    with new_folder(Path(target)) as unfinished:
        write_files(model, writing, unfinished)
        for name in COMPANIONS:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, unfinished / name)
        # The other layouts have no keys for where texts end, which ``statedual generate`` asks for.
        generation = unfinished / "generation_config.json"
        if layout != "transformers" and not generation.is_file() and ids["eos_token_id"] is not None:
            known = {key: value for key, value in ids.items() if value is not None}
            generation.write_text(json.dumps(known, indent=2) + "\n")
        return _difference(model, load(unfinished)) if check else None


def _difference(before: LanguageModel, after: LanguageModel) -> float:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(before.config.vocab_size, (CHECKED_ROWS, CHECKED_TOKENS), generator=generator)
    with torch.no_grad():
        old, new = before(ids).logits.double(), after(ids).logits.double()
    largest = float((old - new).abs().max())
    bound = TOLERANCE[before.embedding.weight.dtype] * float(old.abs().max())
    if not largest <= bound:
        raise ValueError(f"the logits differ by {largest:.1e} after the conversion, expected at most {bound:.1e}")
    return largest
