"""The factory of games of one Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.trust import NOBODY, Trust
from llmrl.envs.gym.batched import BATCHED
from llmrl.envs.gym.interfaces import Games

Engine = Literal["stock", "batched"]


@dataclass(frozen=True)
class EnvFactory:
    """Factory of games of one environment. It can be pickled for another process.

    Args:
        id: Gymnasium's id; `module:Id-v0` imports `module` first.
        kwargs: arguments of the environment.
        horizon: steps after which an episode is truncated, >= 1; None: the environment's own number.
        engine: `stock`, Gymnasium's own environment, one object per game; or `batched`, the same game as arrays.
        trust: modules that an id, or a text of the game, may name.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    horizon: int | None = None
    engine: Engine = "stock"
    trust: Trust = NOBODY

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
        games = self._make_batched(n)
        if games is None:
            raise ConfigError(
                f"{self.id} has no batched engine with env.kwargs={dict(self.kwargs)}; use env.engine=stock, or one of "
                f"{', '.join(sorted(BATCHED))}"
            )
        return games

    def _make_batched(self, n: int) -> Games | None:
        """Return `n` games as arrays; None if there is no such engine, or not with these arguments."""
        import gymnasium
        from gymnasium.envs.registration import load_env_creator

        from llmrl.envs.gym import tasks
        from llmrl.envs.gym.errors import creation_errors
        from llmrl.envs.gym.gymnasium_games import check_map

        tasks.register()
        # Other versions of Gymnasium have other environments, so the id may be unknown.
        if self.id not in BATCHED or (spec := gymnasium.registry.get(self.id)) is None:
            return None
        check_map(spec, self)
        make: Any = load_env_creator(BATCHED[self.id])
        with creation_errors(self.id, self.kwargs):
            games: Games | None = make(n, self.horizon or spec.max_episode_steps, **{**spec.kwargs, **self.kwargs})
        return games
