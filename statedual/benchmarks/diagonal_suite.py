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
    """Both layers, the chunked form against the loop: a stricter peer than our own recurrent form, which is slower.

    The bar for memory is on what is held beyond the results: the gradient of log_a, which both return, is as large as
    log_a and already a third of what the loop holds in all.
    """
    against = partial(compare, recurrence=partial(diagonal_ssm, form="recurrent"), repeats=repeats, say=say)

    def pair(shape: SSDShape) -> list[Candidate]:
        inputs = random_inputs(shape, diagonal=True)
        return [Candidate("chunked form", diagonal_ssm, inputs), Candidate("loop", loop, inputs)]

    wide, narrow = pair(gated), pair(mamba_1)
    forward = against("GLA forward", wide)
    both = against("GLA forward + backward", [candidate.with_gradients() for candidate in wide])
    channels = against("Mamba-1 forward + backward", [candidate.with_gradients() for candidate in narrow])
    bars = [
        speed_bar(*forward, at_least=4.0),
        speed_bar(*both, at_least=5.0),
        speed_bar(*channels, at_least=2.0),
        work_bar(*channels, at_most=1 / 4),
    ]
    setting = {"sizes, GLA": str(gated), "sizes, Mamba-1": str(mamba_1)}
    return Report("diagonal", setting, forward + both + channels, bars)
