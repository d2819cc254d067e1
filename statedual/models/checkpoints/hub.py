"""Where a checkpoint lies: a folder, or a repository of the Hugging Face hub."""

import re
from pathlib import Path

from statedual.models.checkpoints.config_file import read_json
from statedual.models.checkpoints.stored import WEIGHTS

CONFIGS = ("config.json", "params.json")
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "tokenizer.model.v3",
)
"""What a model needs besides its weights to read and write text."""


def locate(path_or_hub_id: str | Path) -> Path:
    """The folder, after a download if it is "owner/name" of the hub and no folder here."""
    folder = Path(path_or_hub_id)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is a file, expected the folder that holds it and its config.json")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(path_or_hub_id)) or str(path_or_hub_id).startswith("."):
        raise FileNotFoundError(f"{folder} does not exist, expected a folder, or owner/name of a hub repository")
    return _download(str(path_or_hub_id))


def _download(hub_id: str) -> Path:
    """Its configuration, then the first kind of weights that it has: a repository may hold the same ones twice."""
    folder = _fetch(hub_id, [*CONFIGS, *COMPANIONS, *(name for name in WEIGHTS if name.endswith(".json"))])
    for name in WEIGHTS:
        index = folder / name
        if name.endswith(".json"):
            if index.is_file():
                mapped = read_json(index).get("weight_map")
                shards = mapped.values() if isinstance(mapped, dict) else ()
                return _fetch(hub_id, sorted({str(shard) for shard in shards}) or [name])
        elif (_fetch(hub_id, [name]) / name).is_file():
            break
    return folder


def _fetch(hub_id: str, names: list[str]) -> Path:
    from huggingface_hub import snapshot_download  # here: its import takes longer than to load a small model

    try:
        return Path(snapshot_download(hub_id, allow_patterns=names))
    except (OSError, ValueError) as error:  # what it raises when offline, when there is no such name, or no access
        reason = " ".join(str(error).split())
        raise FileNotFoundError(
            f"{hub_id} is no folder here, and could not be downloaded: {reason} Check the name and the network, or run "
            f"`hf download {hub_id} --local-dir FOLDER` where there is one and give FOLDER"
        ) from error
