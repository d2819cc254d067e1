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

        If the keys have another one, a key that is there counts more than a default, else groups more than the state.
        """
        groups, state = (
            config.integer(key, default, 1) for key, default in zip((groups_key, state_key), defaults, strict=True)
        )
        state_first = config.has(state_key) and not config.has(groups_key)
        for by_state in (state_first, not state_first):
            if by_state and product % state == 0:
                return self.settle(config.spelled(groups_key), groups, product // state), state
            if not by_state and product % groups == 0:
                return groups, self.settle(config.spelled(state_key), state, product // groups)
        raise config.wrong(groups_key, f"a divisor of {product}, which the tensors have for groups times state")

    def remarks(self) -> tuple[str, ...]:
        """One for all that was settled, if anything was."""
        if not self._found:
            return ()
        return (f"{self._path} does not describe its tensors, which win: {'; '.join(self._found)}",)
