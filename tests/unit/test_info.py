"""``statedual info``: what it prints of named models and of checkpoints."""

from pathlib import Path

import pytest
import torch

from statedual.cli import main
from statedual.layers import AttentionConfig, Mamba2Config, MLPConfig
from statedual.models import LanguageModel, ModelConfig
from statedual.models.checkpoints import save
from statedual.models.sizes import NAMES

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def rows(capsys: Captured) -> list[list[str]]:
    """The cells of what was printed."""
    printed = capsys.readouterr()
    assert printed.err == ""
    return [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in printed.out.splitlines()
        if line.startswith(("│", "┃"))
    ]


def test_a_released_model(capsys: Captured) -> None:
    assert main(["info", "mamba2-130m"]) == 0
    assert rows(capsys) == [
        ["blocks", "24 mamba2"],
        ["d_model", "768"],
        ["vocabulary", "50,277, padded to 50,288"],
        ["parameters", "128,989,632"],
        ["operations a token", "281,370,624 FLOPs"],
        ["weights in float32", "515,958,528 bytes"],
        ["state of a sequence", "19,390,464 bytes"],
        ["weights in bfloat16", "257,982,720 bytes"],
        ["state of a sequence", "19,132,416 bytes"],
    ]


def test_the_context_counts_where_there_is_attention(capsys: Captured) -> None:
    assert main(["info", "mamba2-attention-2.7b", "--context", "2048"]) == 0
    found = rows(capsys)
    assert found[0] == ["blocks", "58 mamba2, 6 attention"]
    assert found[4] == ["operations a token behind 2,048 tokens", "5,772,355,584 FLOPs"]
    assert found[6] == ["state of a sequence behind 2,048 tokens", "534,102,064 bytes"]
    assert found[8] == ["state of a sequence behind 2,048 tokens", "343,072,816 bytes"]


def test_without_a_model_all_names_are_listed(capsys: Captured) -> None:
    assert main(["info"]) == 0
    head, *found = rows(capsys)
    assert head == ["name", "d_model", "blocks", "parameters"]
    assert [row[0] for row in found] == list(NAMES)
    assert found[0] == ["mamba2-130m", "768", "24 mamba2", "128,989,632"]
    assert found[-1] == ["mamba2-mlp-attention-2.7b", "2560", "28 mamba2, 32 mlp, 4 attention", "2,702,160,960"]


def test_a_checkpoint(tmp_path: Path, capsys: Captured) -> None:
    blocks = (Mamba2Config(d_state=8, head_dim=8), MLPConfig(hidden=24), AttentionConfig(heads=2), MLPConfig(hidden=24))
    model = LanguageModel(ModelConfig(d_model=16, vocab_size=50, blocks=blocks))
    save(model, tmp_path / "model", layout="statedual")
    assert main(["info", str(tmp_path / "model"), "--context", "3"]) == 0
    found = dict(rows(capsys)[:7])
    assert found["blocks"] == "1 mamba2, 2 mlp, 1 attention"
    assert found["vocabulary"] == "50"
    size = sum(parameter.numel() for parameter in model.parameters())
    assert found["parameters"] == f"{size:,}"
    assert found["weights in float32"] == f"{4 * size:,} bytes"
    with torch.no_grad():
        state = model(torch.tensor([[1, 2, 3]])).state
    assert found["state of a sequence behind 3 tokens"] == f"{state.bytes:,} bytes"


def test_an_unknown_name_is_told_the_nearest(capsys: Captured) -> None:
    assert main(["info", "mamba2-130M"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("statedual: name is 'mamba2-130M'")
    assert "did you mean 'mamba2-130m'?" in told
    assert "no folder of that name" in told


def test_a_folder_without_a_checkpoint_is_a_message(tmp_path: Path, capsys: Captured) -> None:
    assert main(["info", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_context_below_zero_is_a_message(capsys: Captured) -> None:
    assert main(["info", "mamba2-130m", "--context", "-1"]) == 2
    assert "context is -1" in capsys.readouterr().err
