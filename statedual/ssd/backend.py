"""Which implementation serves a call: decided here, once, and open to questions."""

from typing import NamedTuple

import torch

from statedual.checks import require_choice

BACKENDS = ("auto", "torch", "cpu", "triton")


class BackendChoice(NamedTuple):
    """The backend that will run, and why."""

    name: str
    reason: str


def choose_backend(backend: str = "auto", device: torch.device | str = "cpu") -> BackendChoice:
    """What ``backend`` means for tensors on ``device``. One asked for by name that cannot serve is an error."""
    require_choice("backend", backend, BACKENDS)
    if backend in ("cpu", "triton"):
        raise ValueError(
            f"backend is {backend!r}, which this version of statedual does not contain yet; use 'torch' or 'auto'"
        )
    if backend == "torch":
        return BackendChoice("torch", "asked for by name")
    return BackendChoice("torch", f"the only backend of this version for tensors on {torch.device(device)}")
