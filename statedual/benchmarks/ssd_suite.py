"""Suite ``ssd``: the chunked form against Listing 1, against the machine's limits, and as the length doubles."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from statedual.benchmarks.candidate import Candidate, compare, random_inputs
from statedual.benchmarks.listing import listing_1
from statedual.benchmarks.machine import Limits, measure_limits
from statedual.benchmarks.report import Measurement, Report, growth_bars, memory_bar, speed_bar
from statedual.ssd.cost import SSDShape, chunked_flops, least_bytes
from statedual.ssd.op import DEFAULT_CHUNK, ssd

# One layer of the 130M Mamba-2 model.
SHAPE = SSDShape(batch=1, time=2048, heads=24, head_dim=64, state=128)
LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)
LISTING_LONGEST = 8192


def run_ssd(
    repeats: int, say: Callable[[str], None], *, shape: SSDShape = SHAPE, lengths: tuple[int, ...] = LENGTHS
) -> Report:
    """Both comparisons at ``shape``, then ours and Listing 1 at ``lengths``, with gradients at the last two."""
    truth = partial(ssd, form="recurrent")
    say("limits of this machine")
    limits = measure_limits(repeats)
    measurements, bars = [], []

    pair = [ours(shape), listing(shape)]
    for case, candidates, speed in (
        ("forward", pair, 1.8),
        ("forward + backward", [candidate.with_gradients() for candidate in pair], 2.0),
    ):
        found = compare(case, candidates, truth, repeats=repeats, say=say)
        measurements += found + floors(case, shape, limits)
        bars += [speed_bar(*found, at_least=speed), memory_bar(*found, at_most=1 / 3)]

    sizes = [replace(shape, time=time) for time in lengths]
    short_enough = [listing(size) for size in sizes if size.time <= LISTING_LONGEST]
    by_length = [ours(size) for size in sizes]
    for case, candidates in (
        ("forward by length", by_length + short_enough),
        ("forward + backward by length", [candidate.with_gradients() for candidate in by_length[-2:]]),
    ):
        found = compare(case, candidates, truth, repeats=repeats, say=say, heads=1)
        measurements += found
        short, long = (m for m in found if m.candidate == candidates[0].name and m.time in lengths[-2:])
        bars += growth_bars(short, long, at_most=2.1)
    return Report("ssd", {"sizes": str(shape), **limits.describe()}, measurements, bars)


def ours(shape: SSDShape) -> Candidate:
    """The chunked form as it comes."""
    return Candidate("ssd chunked", ssd, random_inputs(shape))


def listing(shape: SSDShape) -> Candidate:
    """Listing 1 on the same numbers; its b and c are broadcast before the clock starts."""
    x, log_a, b, c = random_inputs(shape)
    b, c = (tensor.expand(-1, -1, shape.heads, -1).contiguous() for tensor in (b, c))
    return Candidate("Listing 1", listing_1, (x, log_a, b, c))


def floors(case: str, shape: SSDShape, limits: Limits) -> list[Measurement]:
    """The time that the operations alone and the bytes alone need, at the machine's limits."""
    counted = chunked_flops(shape, DEFAULT_CHUNK)
    flops, moved = counted.total, least_bytes(shape, 4)
    if "backward" in case:
        flops, moved = flops + counted.backward, moved + least_bytes(shape, 4, backward=True)
    return [
        Measurement(case, shape.time, "floor: operations", flops / limits.flops, None),
        Measurement(case, shape.time, "floor: bytes", moved / limits.bandwidth, None),
    ]
