"""How games of one Gymnasium environment are made."""

from __future__ import annotations

from dataclasses import dataclass

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.protocols import EnvArguments, Games


@dataclass(frozen=True)
class GameMaker(EnvArguments):
    """Makes games of the environment that its arguments describe, here or in another process."""

    def make(self, n: int, render: bool = False) -> Games:
        """`n` games.

        Args:
            n: games, >= 1.
            render: be able to draw them.

        Raises:
            ConfigError: no such environment, a package it needs is missing, an argument it does not take, it cannot be
                drawn, or there is no batched engine of it.
        """
        if self.engine == "stock":
            from llmrl.envs.gym.stock import StockGames

            return StockGames(self, n, render)
        import gymnasium

        from llmrl.envs.gym.batched import BATCHED, batched
        from llmrl.envs.gym.stock import check_map

        if (spec := gymnasium.registry.get(self.id)) is not None:
            check_map(spec, self)
        games = batched(self.id, dict(self.kwargs), self.horizon, n)
        if games is None:
            raise ConfigError(
                f"there is no batched engine of {self.id} with {dict(self.kwargs)}; there is one of "
                f"{', '.join(sorted(BATCHED))}; use env.engine=stock"
            )
        return games
