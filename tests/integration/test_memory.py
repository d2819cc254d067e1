"""Memory of generation does not grow with the prompt, where the state does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc"),
]

# Widths of the 130m model, with fewer blocks; the peak of the whole process, before and after.
PROGRAM = """
import sys
import torch
from statedual.generation import generate
from statedual.layers import AttentionConfig, Mamba1Config, Mamba2Config
from statedual.models import LanguageModel, ModelConfig

def peak():
    # Not ru_maxrss, which a process inherits from the one that started it.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))

torch.manual_seed(0)
kind, time = sys.argv[1], int(sys.argv[2])
block = {"mamba2": Mamba2Config(), "mamba1": Mamba1Config(), "window": AttentionConfig(heads=12, window=512)}[kind]
lm = LanguageModel(ModelConfig(d_model=768, vocab_size=50277, blocks=(block,) * 2, pad_vocab_size_multiple=16))
prompt = torch.randint(50277, (time,)).tolist()
generate(lm, [[1, 2, 3]], max_new_tokens=2)
before = peak()
(row,) = generate(lm, [prompt], max_new_tokens=4)
assert len(row.tokens) == 4
print(peak() - before)
"""


def used(kind: str, time: int) -> int:
    """KiB beyond the weights and what PyTorch needs to run at all."""
    given = [sys.executable, "-c", PROGRAM, kind, str(time)]
    # Otherwise glibc keeps some of what is given back, by chance up to 60 MiB more in one run than in another.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    return int(subprocess.run(given, env=environment, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("kind", ["mamba2", "mamba1", "window"])
def test_a_prompt_of_32768_tokens_needs_no_more_memory_than_one_of_4096(kind: str) -> None:
    short, long = used(kind, 4096), used(kind, 32_768)
    assert short > 10_000
    assert long < 1.3 * short
