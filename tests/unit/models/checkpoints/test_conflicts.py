"""A configuration against its tensors."""

from pathlib import Path

import pytest

from statedual.models.checkpoints.config_file import ConfigFile
from statedual.models.checkpoints.conflicts import Conflicts

PATH = Path("folder/config.json")


def test_without_a_conflict_there_is_nothing_to_say() -> None:
    conflicts = Conflicts(ConfigFile(PATH, {}))
    assert conflicts.settle("d_model", 3, 3) == 3
    assert conflicts.remarks() == ()


def test_one_remark_has_every_conflict_once() -> None:
    conflicts = Conflicts(ConfigFile(PATH, {}))
    assert [conflicts.settle("d_model", 3, 4), conflicts.settle("d_model", 3, 4), conflicts.settle("n", 1, 2)] == [
        4,
        4,
        2,
    ]
    assert conflicts.remarks() == (
        f"{PATH} does not describe its tensors, which win: d_model is 3, the tensors say 4; n is 1, the tensors say 2",
    )


@pytest.mark.parametrize(
    ("values", "product", "expected", "told"),
    [
        ({}, 1024, (8, 128), None),
        ({"g": 2, "n": 4}, 8, (2, 4), None),
        ({"n": 4}, 32, (8, 4), None),
        ({"g": 2}, 256, (2, 128), None),
        ({}, 256, (8, 32), "n is 128, the tensors say 32"),  # both are defaults
        ({}, 128 * 3, (8, 48), "n is 128, the tensors say 48"),
        ({"g": 1}, 32, (1, 32), "n is 128, the tensors say 32"),
        ({"n": 16}, 32, (2, 16), "g is 8, the tensors say 2"),
        ({"n": 8}, 16, (2, 8), "g is 8, the tensors say 2"),  # what is there, though the default has the same value
        ({"g": 2, "n": 16}, 16, (2, 8), "n is 16, the tensors say 8"),
        ({"g": 3, "n": 16}, 32, (2, 16), "g is 3, the tensors say 2"),
        ({"n": 3}, 32, (8, 4), "n is 3, the tensors say 4"),
    ],
)
def test_groups_and_state(values: dict[str, int], product: int, expected: tuple[int, int], told: str | None) -> None:
    config = ConfigFile(PATH, values)
    conflicts = Conflicts(config)
    assert conflicts.settle_groups(config, "g", "n", (8, 128), product) == expected
    remarks = conflicts.remarks()
    assert remarks == () if told is None else remarks[0].endswith(f": {told}")


def test_groups_that_fit_no_state() -> None:
    config = ConfigFile(PATH, {"g": 3, "n": 5})
    with pytest.raises(ValueError, match=r"config\.json: g is 3, expected a divisor of 8"):
        Conflicts(config).settle_groups(config, "g", "n", (8, 128), 8)
