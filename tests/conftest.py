"""Fixtures for every test: fixed seeds, and a way to see what a user sees when a shape is wrong."""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Without jaxtyping's own checks, as for users: bad input must meet our ValueError, and compilers our code."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
