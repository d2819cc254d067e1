"""Tokens and padding of the embedding."""

from pathlib import Path

import pytest

from statedual.models.checkpoints.config_file import ConfigFile
from statedual.models.checkpoints.conflicts import Conflicts
from statedual.models.checkpoints.vocabulary import vocabulary


@pytest.mark.parametrize(
    ("claimed", "rows", "expected", "told"),
    [
        ((50277, 16), 50288, (50277, 16), ""),
        ((50277, 8), 50280, (50277, 8), ""),
        ((50277, 7), 50281, (50277, 7), ""),
        ((50288, 16), 50288, (50288, 16), ""),
        ((50277, 8), 50288, (50277, 16), "pad_vocab_size_multiple is 8, the tensors say 16"),
        ((50277, 16), 50304, (50277, 32), "pad_vocab_size_multiple is 16, the tensors say 32"),
        ((50277, 16), 50277, (50277, 1), "pad_vocab_size_multiple is 16, the tensors say 1"),
        ((50277, 16), 50000, (50000, 1), "vocab_size is 50277, the tensors say 50000"),
        ((50277, 16), 90001, (90001, 1), "vocab_size is 50277, the tensors say 90001"),
    ],
)
def test_vocabulary(claimed: tuple[int, int], rows: int, expected: tuple[int, int], told: str) -> None:
    values = dict(zip(("vocab_size", "pad_vocab_size_multiple"), claimed, strict=True))
    config = ConfigFile(Path("config.json"), values)
    conflicts = Conflicts(config)
    assert vocabulary(config, conflicts, rows) == expected
    remarks = conflicts.remarks()
    assert len(remarks) == bool(told)
    assert all(remark.endswith(told) for remark in remarks)


def test_defaults_are_the_class_defaults() -> None:
    config = ConfigFile(Path("config.json"), {})
    assert vocabulary(config, Conflicts(config), 50280) == (50277, 8)
