"""Folders, and repositories of the hub. (The network is a function that a test gives.)"""

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from checkpoint_examples import (
    codestral_config,
    state_spaces_config,
    state_spaces_tensors,
    told,
    transformers_config,
    transformers_tensors,
    write,
    write_shards,
)
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from statedual.models.checkpoints import load
from statedual.models.checkpoints.hub import locate

ID = "state-spaces/mamba2-130m"


class Hub:
    """One repository, and the cache into which its files come."""

    def __init__(self, remote: Path, cache: Path) -> None:
        self.remote, self.cache = remote, cache
        self.asked: list[str] = []
        self.error: Exception | None = None

    def snapshot_download(self, repo_id: str, *, allow_patterns: list[str]) -> str:
        self.asked.append(repo_id)
        if self.error is not None:
            raise self.error
        self.cache.mkdir(exist_ok=True)
        for file in self.remote.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, self.cache)
        return str(self.cache)

    @property
    def fetched(self) -> set[str]:
        return {file.name for file in self.cache.iterdir()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "remote").mkdir()
    made = Hub(tmp_path / "remote", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    return made


def test_a_folder_is_itself_whatever_its_name(hub: Hub) -> None:
    Path(ID).mkdir(parents=True)
    assert locate(ID) == locate(Path(ID)) == Path(ID)
    assert hub.asked == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match="is a file, expected the folder that holds it") as raised:
        locate(tmp_path / "model.safetensors")
    told(raised.value, tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["absent", "./owner/name", "../name", "/owner/name", "a/b/c", "owner/na me", "~/name"])
def test_a_path_that_does_not_exist(name: str, hub: Hub) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist, expected a folder, or owner/name") as raised:
        locate(name)
    told(raised.value, Path(name))
    assert hub.asked == []


@pytest.mark.parametrize(
    "error",
    [
        LocalEntryNotFoundError("Cannot find the snapshot.\nCheck your connection."),
        OfflineModeIsEnabled("Offline."),
        huggingface_hub.errors.HFValidationError("Repo id must use alphanumeric chars."),
    ],
)
def test_a_repository_that_cannot_be_had(error: Exception, hub: Hub) -> None:
    hub.error = error
    with pytest.raises(FileNotFoundError, match="could not be downloaded") as raised:
        load(ID)
    first = str(error).splitlines()[0]
    told(raised.value, ID, first, f"hf download {ID} --local-dir FOLDER")
    assert "\n" not in str(raised.value)


def test_a_released_model(hub: Hub) -> None:
    config = state_spaces_config()
    write(hub.remote, config, state_spaces_tensors(config), "pytorch_model.bin")
    (hub.remote / "README.md").touch()
    (hub.remote / "tokenizer.json").write_text("{}")
    assert load(ID).config.d_model == config["d_model"]
    assert set(hub.asked) == {ID}
    assert hub.fetched == {"config.json", "tokenizer.json", "pytorch_model.bin"}


def test_the_same_weights_are_fetched_once(hub: Hub) -> None:
    """The hub has Codestral Mamba in shards and in one piece, and other models in both kinds of file."""
    tensors = transformers_tensors()
    write_shards(hub.remote, transformers_config(), tensors, "safetensors")
    write(hub.remote, codestral_config(), tensors, "consolidated.safetensors")
    write(hub.remote, codestral_config(), tensors, "pytorch_model.bin")
    load("mistralai/Mamba-Codestral-7B-v0.1")
    shards = {f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)}
    assert hub.fetched == {"config.json", "params.json", "model.safetensors.index.json", *shards}


def test_the_first_kind_of_file_is_enough(hub: Hub) -> None:
    for weights in ("model.safetensors", "pytorch_model.bin"):
        write(hub.remote, transformers_config(), transformers_tensors(), weights)
    load(ID)
    assert hub.fetched == {"config.json", "model.safetensors"}


def test_shards_of_pickles(hub: Hub) -> None:
    config = state_spaces_config(tie_embeddings=False)
    write_shards(hub.remote, config, state_spaces_tensors(config), "bin")
    load(ID)
    assert len(hub.fetched) == 5


@pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 3}])
def test_a_broken_index(weight_map: Any, hub: Hub) -> None:
    (hub.remote / "config.json").write_text(json.dumps(transformers_config()))
    (hub.remote / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        load(ID)


def test_a_repository_without_weights(hub: Hub) -> None:
    (hub.remote / "config.json").write_text(json.dumps(transformers_config()))
    with pytest.raises(ValueError, match="holds no weights"):
        load(ID)
