"""The two instruments of every benchmark: seconds, and bytes at the peak. Both compare within one run."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping

from torch.profiler import ProfilerActivity, profile


def median_seconds(
    candidates: Mapping[str, Callable[[], object]], *, repeats: int = 9, warmup: int = 2
) -> dict[str, float]:
    """The median time of each candidate. They take turns, so that what disturbs the machine disturbs all alike."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(warmup + repeats):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            elapsed = time.perf_counter() - start
            if round_ >= warmup:
                taken[name].append(elapsed)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes that PyTorch's CPU allocator held at once during ``run`` beyond what it held before.

    What ``run`` returns counts; scratch memory inside the matrix libraries does not, for they do not report it.
    """
    run()  # Whatever is made once and kept, is made now.
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        result = run()
        del result
    held = peak = 0
    for event in sorted(_allocations(recorded), key=lambda event: event[0]):
        held += event[1]
        peak = max(peak, held)
    return peak


def _allocations(recorded: profile) -> list[tuple[int, int]]:
    """(time, bytes; negative where freed) of everything the allocator reported."""
    assert recorded.profiler is not None
    events = recorded.profiler.kineto_results.events()
    return [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
