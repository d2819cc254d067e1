"""Speed and memory (sec. 9.3), in ratios: against peers in the same run, and against the machine's own limits."""
