"""Where a configuration says otherwise than the tensors beside it."""

from statedual.models.checkpoints.config_file import ConfigFile


class Conflicts:
    """Tensors win over the configuration: they are what was trained. One remark tells what was overruled."""

    def __init__(self, config: ConfigFile) -> None:
        self._path = config.path
        self._found: dict[str, None] = {}

    def settle(self, key: str, configured: int, tensors: int) -> int:
        """What the tensors say, noted if ``key`` says otherwise."""
        if configured != tensors:
            self._found[f"{key} is {configured}, the tensors say {tensors}"] = None
        return tensors

    def settle_groups(
        self, config: ConfigFile, groups_key: str, state_key: str, defaults: tuple[int, int], product: int
    ) -> tuple[int, int]:
        """Groups and state, of which the tensors tell only the ``product``.

        If the keys have another one, a key that is there counts more than a default, and groups more than the state.
        """
        groups, state = (
            config.integer(key, default, 1) for key, default in zip((groups_key, state_key), defaults, strict=True)
        )
        if groups * state == product:
            return groups, state
        known = (groups, state) if config.has(groups_key) or not config.has(state_key) else (state, groups)
        fixed = next((size for size in known if product % size == 0), None)
        if fixed is None:
            raise config.wrong(groups_key, f"a divisor of {product}, which the tensors have for groups times state")
        if fixed == groups:
            return groups, self.settle(config.spelled(state_key), state, product // groups)
        return self.settle(config.spelled(groups_key), groups, product // state), state

    def remarks(self) -> tuple[str, ...]:
        """One for all that was settled, if anything was."""
        if not self._found:
            return ()
        return (f"{self._path} does not describe its tensors, which win: {'; '.join(self._found)}",)
