"""Suite ``diagonal``: the chunked form of the diagonal SSM against the recurrence as a plain loop."""

from collections.abc import Callable
from functools import partial

from statedual.benchmarks.candidate import Candidate, Layer, compare, random_inputs
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
    """Both layers: the chunked form against the recurrent one, and against the loop that a user would write.

    The recurrent form takes a decay in two parts, for accuracy, and so more time than the loop.
    """
    recurrent = partial(diagonal_ssm, form="recurrent")
    against = partial(compare, recurrence=recurrent, repeats=repeats, say=say)

    def candidates(shape: SSDShape) -> list[Candidate]:
        layers: dict[str, Layer] = {"chunked form": diagonal_ssm, "recurrent form": recurrent, "loop": loop}
        inputs = random_inputs(shape, diagonal=True)
        return [Candidate(name, layer, inputs) for name, layer in layers.items()]

    wide, narrow = candidates(gated), candidates(mamba_1)
    forward = against("GLA forward", wide)
    both = against("GLA forward + backward", [candidate.with_gradients() for candidate in wide])
    channels = against("Mamba-1 forward + backward", [candidate.with_gradients() for candidate in narrow])
    bars = [
        speed_bar(forward[0], forward[1], at_least=4.0),
        speed_bar(both[0], both[1], at_least=5.0),
        speed_bar(channels[0], channels[2], at_least=2.0),
        work_bar(channels[0], channels[2], at_most=1 / 4),
    ]
    setting = {"sizes, GLA": str(gated), "sizes, Mamba-1": str(mamba_1)}
    return Report("diagonal", setting, forward + both + channels, bars)
