"""The two instruments of every benchmark: seconds, and bytes at the peak. Both compare within one run."""

import ctypes
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler announces itself on stderr at every start and stop

# Parameters of mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Let glibc's malloc keep what is freed, for the rest of the process; whether it could be told so.

    By default every large tensor is mapped afresh, and the kernel faults in its pages inside the timed call: on a
    virtual machine the cost of that varies fivefold from run to run. Kept memory is faulted in once, in the warm-up.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


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
    results: Any = recorded.profiler.kineto_results  # PyTorch's annotations of its events lack ``nbytes``
    return [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
