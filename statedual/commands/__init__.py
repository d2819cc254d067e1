"""The subcommands of ``statedual`` that work with checkpoints. Only these may import rich and tyro."""
