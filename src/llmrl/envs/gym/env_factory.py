"""The factory of games of one Gymnasium environment."""

from __future__ import annotations

from dataclasses import dataclass

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.interfaces import EnvArguments, Games


@dataclass(frozen=True)
class EnvFactory(EnvArguments):
    """Factory of games of the environment that its arguments describe. It can be pickled for another process."""

    def make(self, n: int, render: bool = False) -> Games:
        """Return `n` games.

        Args:
            n: number of games, >= 1.
            render: whether `Games.render` must work.

        Raises:
            ConfigError: unknown environment, missing package, invalid argument, an environment that cannot be rendered,
                or one without a batched engine.
        """
        if self.engine == "stock":
            from llmrl.envs.gym.gymnasium_games import GymnasiumGames

            return GymnasiumGames(self, n, render)
        import gymnasium

        from llmrl.envs.gym.batched import BATCHED, batched
        from llmrl.envs.gym.gymnasium_games import check_map

        if (spec := gymnasium.registry.get(self.id)) is not None:
            check_map(spec, self)
        games = batched(self.id, dict(self.kwargs), self.horizon, n)
        if games is None:
            raise ConfigError(
                f"{self.id} has no batched engine with env.kwargs={dict(self.kwargs)}; use env.engine=stock, or one of "
                f"{', '.join(sorted(BATCHED))}"
            )
        return games
