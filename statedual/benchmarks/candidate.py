"""What a benchmark times: a function on given inputs, compared with the float64 recurrence before the clock starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from statedual.benchmarks.measure import median_seconds, peak_bytes
from statedual.benchmarks.report import Measurement
from statedual.ssd.cost import SSDShape

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
Layer = Callable[..., tuple[Tensor, Tensor]]

TOLERANCE = 1e-5  # float32 at any length and any decay


@dataclass(frozen=True)
class Candidate:
    """A layer (x, log_a, b, c) -> (y, final state) on its inputs: forward, and with ``grad_y`` backward too."""

    name: str
    layer: Layer
    inputs: Inputs
    grad_y: Tensor | None = None

    @property
    def time(self) -> int:
        """The length of the sequence."""
        return self.inputs[0].shape[1]

    def __call__(self) -> dict[str, Tensor]:
        """What is timed: every result by name."""
        if self.grad_y is None:
            with torch.no_grad():
                y, final_state = self.layer(*self.inputs)
            return {"y": y, "final state": final_state}
        leaves = [tensor.detach().requires_grad_() for tensor in self.inputs]
        y, final_state = self.layer(*leaves)
        gradients = torch.autograd.grad(y, leaves, self.grad_y)
        names = ("gradient of x", "gradient of log_a", "gradient of b", "gradient of c")
        return {"y": y.detach(), "final state": final_state.detach(), **dict(zip(names, gradients, strict=True))}

    def with_gradients(self) -> "Candidate":
        """Forward and backward, from a random gradient of y that is the same for all candidates of one size."""
        x, log_a, _, _ = self.inputs
        generator = torch.Generator().manual_seed(1)
        return replace(self, grad_y=torch.randn(*log_a.shape[:3], x.shape[3], generator=generator))


def random_inputs(shape: SSDShape, *, diagonal: bool = False) -> Inputs:
    """Float32 x, log_a, b, c with the decays of an untrained Mamba-2: steps 0.001 to 0.1, rates 1 to 16."""
    generator = torch.Generator().manual_seed(0)
    tokens, heads_x = (shape.batch, shape.time), shape.heads if shape.heads_x is None else shape.heads_x
    decays = (*tokens, shape.heads, shape.state) if diagonal else (*tokens, shape.heads)
    step = 0.001 * 100 ** torch.rand(decays, generator=generator)
    rate = 1 + 15 * torch.rand(decays[2:], generator=generator)
    x, b, c = (
        torch.randn(*tokens, heads, width, generator=generator)
        for heads, width in ((heads_x, shape.head_dim), (shape.heads_b, shape.state), (shape.heads_c, shape.state))
    )
    return x, -step * rate, b, c


def require_right(candidate: Candidate, recurrence: Layer, heads: int) -> None:
    """Stop if a result of the first ``heads`` heads differs from that of ``recurrence`` in float64.

    Inputs have one head or all of them, and y of the other heads gets no gradient, so the gradients of a shared b and
    c are those of the first heads alone. (The recurrence of a long sequence is slow: one head has to do.)
    """
    first = candidate.grad_y
    if first is not None:
        first = torch.cat([first[:, :, :heads], torch.zeros_like(first[:, :, heads:])], 2)
    got = replace(candidate, grad_y=first)()
    x, log_a, b, c = (tensor[:, :, :heads].double() for tensor in candidate.inputs)
    grad_y = None if first is None else first[:, :, :heads].double()
    true = Candidate("float64 recurrence", recurrence, (x, log_a, b, c), grad_y)()
    for name, expected in true.items():
        result = got[name][:, :heads] if name == "final state" else got[name][:, :, :heads]
        error = ((result - expected).norm() / expected.norm()).item()
        if not error <= TOLERANCE:  # NaN is wrong too
            raise ValueError(
                f"{candidate.name} at time {candidate.time}: {name} is off the float64 recurrence by {error:.1e}, "
                f"expected at most {TOLERANCE:.0e}; a wrong result has no speed"
            )


def compare(
    case: str,
    candidates: Sequence[Candidate],
    recurrence: Layer,
    *,
    repeats: int,
    say: Callable[[str], None],
    heads: int | None = None,
) -> list[Measurement]:
    """Time and memory of each candidate, if all are right (``heads`` of them; all if not given); ours goes first."""
    say(f"{case}: comparing with the float64 recurrence")
    for candidate in candidates:
        require_right(candidate, recurrence, heads or candidate.inputs[1].shape[2])
    say(f"{case}: taking times and memory")
    seconds = median_seconds({f"{c.name} {c.time}": c for c in candidates}, repeats=repeats)
    return [
        Measurement(case, c.time, c.name, seconds[f"{c.name} {c.time}"], peak_bytes(c), _result_bytes(c))
        for c in candidates
    ]


def _result_bytes(candidate: Candidate) -> int:
    return sum(result.nbytes for result in candidate().values())
