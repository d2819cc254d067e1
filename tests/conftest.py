"""Fixtures for every test: fixed seeds, a way to see what a user sees when a shape is wrong, and poisoned memory."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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
    # Under pytest all checked functions share one wrapper, whose recompilations dynamo counts and limits.
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@contextmanager
def _poison() -> Iterator[None]:
    was = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was[0])
        torch.utils.deterministic.fill_uninitialized_memory = was[1]


@pytest.fixture
def poisoned() -> Callable[[], AbstractContextManager[None]]:
    """``with poisoned():`` all memory that PyTorch hands out as it found it is full of NaN."""
    return _poison
