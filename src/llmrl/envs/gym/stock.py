"""Gymnasium's own environments, one object a game."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium

    from llmrl.envs.gym.games import GameMaker

_PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "llmrl/": "llmrl.envs.gym.tasks"}
"""Modules that register the ids that begin so."""
_EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "Box2D": "box2d", "swig": "box2d"}
"""Words in Gymnasium's complaint about a missing package -> our extra that brings it."""
_NEAR = 5
"""Similar ids that a message about an unknown one names."""


class StockGames:
    """`n` environments made by `gymnasium.make`.

    Args:
        maker: which environment.
        n: games.
        render: make them able to draw themselves.

    Raises:
        ConfigError: see `GameMaker.make`.
    """

    def __init__(self, maker: GameMaker, n: int, render: bool = False) -> None:
        self.n = n
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for _ in range(n):
                self.envs.append(make(maker, render))
        except BaseException:
            self.close()
            raise
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        own = None if self.envs[0].spec is None else self.envs[0].spec.max_episode_steps
        self.horizon = maker.horizon or own
        self.infos: Sequence[Mapping[str, Any]] = [{} for _ in range(n)]
        self._observations: list[Any] = [None] * n

    def reset(self, seeds: np.ndarray, mask: np.ndarray) -> Sequence[Any]:
        infos = list(self.infos)
        for i in np.flatnonzero(mask).tolist():
            self._observations[i], infos[i] = self.envs[i].reset(seed=int(seeds[i]))
        self.infos = infos
        return list(self._observations)

    def step(
        self, actions: Sequence[Any] | np.ndarray, playing: np.ndarray
    ) -> tuple[Sequence[Any], np.ndarray, np.ndarray, np.ndarray]:
        reward = np.zeros(self.n)
        terminated, truncated = np.zeros(self.n, dtype=bool), np.zeros(self.n, dtype=bool)
        infos = list(self.infos)
        for i in np.flatnonzero(playing).tolist():
            self._observations[i], reward[i], terminated[i], truncated[i], infos[i] = self.envs[i].step(actions[i])
        self.infos = infos
        return list(self._observations), reward, terminated, truncated

    def render(self, index: int) -> np.ndarray:
        return np.asarray(self.envs[index].render())

    def close(self) -> None:
        for env in self.envs:
            env.close()


def make(maker: GameMaker, render: bool) -> gymnasium.Env[Any, Any]:
    """One environment, without Gymnasium's checks of every step, which cost as much as a small game.

    Raises:
        ConfigError: see `GameMaker.make`.
    """
    import gymnasium
    from gymnasium import error

    for prefix, module in _PACKAGES.items():
        if maker.id.startswith(prefix):
            importlib.import_module(module)
    mode: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    limit = {} if maker.horizon is None else {"max_episode_steps": maker.horizon}
    try:
        if render:
            _check_renders(maker.id)
        return gymnasium.make(maker.id, disable_env_checker=True, **mode, **limit, **maker.kwargs)
    except error.DependencyNotInstalled as fault:
        extra = next((extra for word, extra in _EXTRAS.items() if word in str(fault)), None)
        cure = f"pip install 'llmrl[{extra}]'" if extra else str(fault)
        raise ConfigError(f"{maker.id} needs a package that is not installed: {cure}") from fault
    except error.Error as fault:
        near = difflib.get_close_matches(maker.id, list(gymnasium.registry), n=_NEAR)
        like = f"; ids like it: {', '.join(near)}" if near else ""
        raise ConfigError(
            f"Gymnasium knows no environment {maker.id!r} ({str(fault).rstrip('.')}){like}. Ids of a package of your "
            "own are written package.module:Id-v0"
        ) from fault
    except ModuleNotFoundError as fault:
        raise ConfigError(f"{maker.id} needs the package {fault.name}, which is not installed") from fault
    except TypeError as fault:
        if "argument" not in str(fault):
            raise
        raise ConfigError(f"{maker.id} does not take env.kwargs={dict(maker.kwargs)}: {fault}") from fault


def _check_renders(name: str) -> None:
    """Raise ConfigError where the environment says that it draws no pictures."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    spec = gymnasium.spec(name)
    creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
    modes = getattr(creator, "metadata", {}).get("render_modes", [])
    if "rgb_array" not in modes:
        raise ConfigError(
            f"{name} draws no pictures (its render modes: {', '.join(modes) or 'none'}), so there can be no video of "
            "it; use play.videos=0 and env.render=false"
        )
