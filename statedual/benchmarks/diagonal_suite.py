"""Suite ``diagonal``: the chunked form of the diagonal SSM against the recurrence as a plain loop."""

from collections.abc import Callable
from functools import partial

from statedual.benchmarks.candidate import Candidate, compare, random_inputs
from statedual.benchmarks.loop import loop
from statedual.benchmarks.report import Report, speed_bar, work_bar
from statedual.selective_scan import diagonal_ssm
from statedual.ssd.cost import SSDShape

# Gated linear attention has wide heads with b and c of their own; Mamba-1 has heads of one channel that share b and c.
GATED = SSDShape(batch=1, time=2048, heads=24, head_dim=64, state=64, heads_b=24, heads_c=24)
MAMBA_1 = SSDShape(batch=1, time=2048, heads=1536, head_dim=1, state=16)


def run_diagonal(
    repeats: int, say: Callable[[str], None], *, gated: SSDShape = GATED, mamba_1: SSDShape = MAMBA_1
) -> Report:
    """Both layers, chunked against recurrent."""
    against_loop = partial(compare, recurrence=partial(diagonal_ssm, form="recurrent"), repeats=repeats, say=say)

    inputs = random_inputs(gated, diagonal=True)
    pair = [Candidate("diagonal_ssm chunked", diagonal_ssm, inputs), Candidate("loop", loop, inputs)]
    forward = against_loop("GLA forward", pair)
    both = against_loop("GLA forward + backward", [candidate.with_gradients() for candidate in pair])

    inputs = random_inputs(mamba_1, diagonal=True)
    pair = [Candidate("diagonal_ssm chunked", diagonal_ssm, inputs), Candidate("loop", loop, inputs)]
    channels = against_loop("Mamba-1 forward + backward", [candidate.with_gradients() for candidate in pair])

    bars = [
        speed_bar(*forward, at_least=4.0),
        speed_bar(*both, at_least=5.0),
        speed_bar(*channels, at_least=2.0),
        work_bar(*channels, at_most=1 / 4),
    ]
    setting = {"sizes, GLA": str(gated), "sizes, Mamba-1": str(mamba_1)}
    return Report("diagonal", setting, forward + both + channels, bars)
