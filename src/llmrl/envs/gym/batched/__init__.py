"""Environments as arrays: many games in lock step, each equal to Gymnasium's own at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.envs.gym.interfaces import Games

Make = Callable[[Mapping[str, Any], int | None, int], "Games | None"]


def _cart_pole(kwargs: Mapping[str, Any], horizon: int | None, n: int) -> Games:
    from llmrl.envs.gym.batched.cart_pole import CartPoleGames

    return CartPoleGames(n, horizon, **kwargs)


def _mountain_car(kwargs: Mapping[str, Any], horizon: int | None, n: int) -> Games:
    from llmrl.envs.gym.batched.mountain_car import MountainCarGames

    return MountainCarGames(n, horizon, **kwargs)


def _mountain_car_continuous(kwargs: Mapping[str, Any], horizon: int | None, n: int) -> Games:
    from llmrl.envs.gym.batched.mountain_car import MountainCarContinuousGames

    return MountainCarContinuousGames(n, horizon, **kwargs)


def _toy_text(entry_point: str) -> Make:
    def make(kwargs: Mapping[str, Any], horizon: int | None, n: int) -> Games | None:
        from llmrl.envs.gym.batched.tabular_games import toy_text_games

        return toy_text_games(entry_point, kwargs, horizon, n)

    return make


def _task(name: str) -> Make:
    def make(kwargs: Mapping[str, Any], horizon: int | None, n: int) -> Games:
        from llmrl.envs.gym.tasks import games

        return games(name, kwargs, horizon, n)

    return make


_FROZEN_LAKE = "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv"
_CLIFF_WALKING = "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv"

BATCHED: Mapping[str, Make] = {
    "CartPole-v1": _cart_pole,
    "MountainCar-v0": _mountain_car,
    "MountainCarContinuous-v0": _mountain_car_continuous,
    "FrozenLake-v1": _toy_text(_FROZEN_LAKE),
    "FrozenLake8x8-v1": _toy_text(_FROZEN_LAKE),
    "CliffWalking-v1": _toy_text(_CLIFF_WALKING),
    "CliffWalkingSlippery-v1": _toy_text(_CLIFF_WALKING),
    "Taxi-v4": _toy_text("gymnasium.envs.toy_text.taxi:TaxiEnv"),
    "llmrl/Maze-v0": _task("llmrl/Maze-v0"),
    "llmrl/Nim-v0": _task("llmrl/Nim-v0"),
    "llmrl/Navigation-v0": _task("llmrl/Navigation-v0"),
    "llmrl/Pong-v0": _task("llmrl/Pong-v0"),
}
"""Id -> factory of games, given arguments of the environment, a horizon, and the number of games."""


def batched(id: str, kwargs: Mapping[str, Any], horizon: int | None, n: int) -> Games | None:
    """Return `n` games of environment `id` as arrays; None if there is no such engine, or not with these arguments.

    Args:
        id: Gymnasium's id.
        kwargs: arguments of the environment; they go before those that Gymnasium has registered.
        horizon: steps after which an episode is truncated; None: the number that Gymnasium has registered.
        n: games.

    Raises:
        ConfigError: an argument that the environment does not take.
    """
    if id not in BATCHED:
        return None
    import gymnasium

    from llmrl.envs.gym import tasks
    from llmrl.envs.gym.errors import CREATION_ERRORS, creation_error

    tasks.register()
    # Other versions of Gymnasium have other environments, so the id may be unknown.
    if id not in gymnasium.registry:
        return None
    spec = gymnasium.spec(id)
    try:
        return BATCHED[id]({**spec.kwargs, **kwargs}, horizon or spec.max_episode_steps, n)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise creation_error(id, kwargs, error) from error
    except CREATION_ERRORS as error:
        raise creation_error(id, kwargs, error) from error
