"""Environments of this package that Gymnasium makes by id; importing this module registers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmrl.envs.gym.tasks.registration import IDS, register

if TYPE_CHECKING:
    from llmrl.envs.gym.batched.arrays import ArrayGames

__all__ = ["IDS", "games", "register"]


def games(name: str, kwargs: Mapping[str, Any], horizon: int | None, n: int) -> ArrayGames:
    """Return `n` batched games of the environment registered as `name`, with its arguments `kwargs`."""
    if name == "llmrl/Maze-v0":
        from llmrl.envs.gym.tasks.maze import maze_games

        return maze_games(n, horizon, **kwargs)
    if name == "llmrl/Nim-v0":
        from llmrl.envs.gym.tasks.nim import nim_games

        return nim_games(n, horizon, **kwargs)
    if name == "llmrl/Navigation-v0":
        from llmrl.envs.gym.tasks.navigation import NavigationGames

        return NavigationGames(n, horizon, **kwargs)
    if name == "llmrl/Pong-v0":
        from llmrl.envs.gym.tasks.pong import PongGames

        return PongGames(n, horizon, **kwargs)
    raise KeyError(name)


register()
