"""The machine that a benchmark ran on: what it is, and its own limits, which no program on it can pass."""

import platform
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch.nn.functional import linear

from statedual.benchmarks.measure import median_seconds


def describe() -> dict[str, str]:
    """What times depend on."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "dtype": "float32",
    }


def _processor() -> str:
    """The model name, which only Linux's own file knows in full."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class Limits:
    """Operations and bytes a second at the most, and which matrix library gives the operations."""

    flops: float
    library: str
    bandwidth: float

    def describe(self) -> dict[str, str]:
        """For people."""
        return {
            "best float32 product": f"{self.flops / 1e9:.0f} GFLOP/s ({self.library})",
            "copy bandwidth": f"{self.bandwidth / 1e9:.1f} GB/s",
        }


def measure_limits(repeats: int, *, size: int = 2048, copied: int = 1 << 26) -> Limits:
    """The best library product of two float32 matrices of ``size``, and a copy of ``copied`` numbers (read and write).

    PyTorch's default product is not the best everywhere: on some processors oneDNN takes less than half its time.
    """
    left, right = torch.randn(size, size), torch.randn(size, size)
    source, target = torch.zeros(copied), torch.zeros(copied)
    runs = {"torch.mm": lambda: left @ right, "copy": lambda: target.copy_(source)}
    if torch.backends.mkldnn.is_available():
        blocked_left, blocked_right = left.to_mkldnn(), right.to_mkldnn()
        runs["oneDNN"] = lambda: linear(blocked_left, blocked_right)
    with torch.no_grad():
        seconds = median_seconds(runs, repeats=repeats)
    bandwidth = 2 * source.nbytes / seconds.pop("copy")
    library = min(seconds, key=seconds.__getitem__)
    return Limits(2 * size**3 / seconds[library], library, bandwidth)
