"""Tokens, and the rows of the embedding that pad them."""

import math

from statedual.models.checkpoints.config_file import ConfigFile
from statedual.models.checkpoints.conflicts import Conflicts


def vocabulary(config: ConfigFile, conflicts: Conflicts, rows: int) -> tuple[int, int]:
    """vocab_size and pad_vocab_size_multiple whose padded size is ``rows``.

    Where the multiple of the file does not give them, the smallest power of two that does; where none does, there are
    as many tokens as rows.
    """
    size = config.integer("vocab_size", 50277, 1)
    multiple = config.integer("pad_vocab_size_multiple", 8, 1)
    candidates = [multiple, *(2**power for power in range(12))]
    fitting = next((candidate for candidate in candidates if math.ceil(size / candidate) * candidate == rows), None)
    if fitting is None:
        return conflicts.settle(config.spelled("vocab_size"), size, rows), 1
    return size, conflicts.settle("pad_vocab_size_multiple", multiple, fitting)
