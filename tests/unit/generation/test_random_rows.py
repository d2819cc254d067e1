"""Each row has its own random numbers."""

import pytest
import torch

from statedual.generation.random_rows import row_generators, uniform


def numbers(generators: list[torch.Generator], count: int = 3) -> list[list[float]]:
    return [[uniform(generator) for _ in range(count)] for generator in generators]


def test_row_i_of_an_integer_has_the_seed_plus_i() -> None:
    together = numbers(row_generators(7, 3))
    assert together == numbers(row_generators([7, 8, 9], 3))
    assert [row for seed in (7, 8, 9) for row in numbers(row_generators(seed, 1))] == together
    assert len({value for row in together for value in row}) == 9


def test_rows_do_not_depend_on_when_others_draw() -> None:
    first, second = row_generators(7, 2)
    apart = numbers([first]), numbers([second])
    first, second = row_generators(7, 2)
    between = [(uniform(second), uniform(first)) for _ in range(3)]
    assert apart == ([[own for _, own in between]], [[own for own, _ in between]])


def test_without_a_seed_rows_are_fresh_and_pytorch_s_own_seed_makes_them_known() -> None:
    torch.manual_seed(5)
    found = numbers(row_generators(None, 2)) + numbers(row_generators(None, 2))
    assert len({value for row in found for value in row}) == 12
    torch.manual_seed(5)
    assert numbers(row_generators(None, 2)) == found[:2]


def test_a_seed_leaves_the_global_stream_alone() -> None:
    before = torch.random.get_rng_state()
    numbers(row_generators(3, 2))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_numbers_are_uniform_with_all_bits_of_a_float64() -> None:
    (generator,) = row_generators(0, 1)
    found = torch.tensor([uniform(generator) for _ in range(4000)], dtype=torch.float64)
    assert found.min() >= 0
    assert found.max() < 1
    assert (found.float().double() != found).any()
    counts = torch.histc(found, 10, 0, 1)
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # chi-square of 9 degrees of freedom, 0.1 %


@pytest.mark.parametrize(
    ("seed", "told"),
    [
        ([1], "seed has 1 integers, expected 2"),
        ([1, 2, 3], "seed has 3 integers, expected 2"),
        (-1, "seed of row 0 is -1, expected an integer, at least 0"),
        (2**63 - 1, f"seed of row 1 is {2**63}, expected"),
        ([1, 2.0], "seed of row 1 is 2.0, expected"),
        ([True, 1], "seed of row 0 is True, expected"),
        (True, "seed is True, expected"),
        (1.5, "seed is 1.5, expected"),
        ("12", "seed is '12', expected"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_seeds_that_are_none_are_refused(seed: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        row_generators(seed, 2)
