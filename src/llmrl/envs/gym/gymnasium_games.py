"""Games that are Gymnasium's own environments, one object per game."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.faults import REFUSALS, check_state, refused
from llmrl.envs.gym.rendering import check_draws, drawing_arguments

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from llmrl.envs.gym.interfaces import EnvArguments

_PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "llmrl.envs.babyai.registration", "llmrl/": "llmrl.envs.gym.tasks"}
"""Prefix of ids -> module that registers them."""
_OTHERS = ("GymV21Environment", "GymV26Environment")
"""Ids of Gymnasium that make the environment that an argument names, which would bypass the check of modules."""
_EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "Box2D": "box2d", "swig": "box2d"}
"""Word in Gymnasium's error about a missing package -> our extra that installs it."""
_KEEPS_ITS_WORLD = ("BipedalWalker", "CarRacing")
"""Classes whose physics keep state across `reset(seed=...)`; they are rebuilt for each episode."""
_ENDS = ("BlackjackEnv",)
"""Classes without a limit of steps whose episodes are always short."""
_NEAR = 5
"""Number of similar ids that the error about an unknown id names."""


class GymnasiumGames:
    """`n` environments made by `gymnasium.make`.

    Args:
        env_factory: arguments that define the environment.
        n: number of games.
        render: whether `render` must work.

    Raises:
        ConfigError: see `env_factory.EnvFactory.make`.
    """

    def __init__(self, env_factory: EnvArguments, n: int, render: bool = False) -> None:
        from gymnasium.spaces import Discrete

        self.n = n
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for _ in range(n):
                self.envs.append(make(env_factory, render))
        except BaseException:
            self.close()
            raise
        if render:
            try:
                check_draws(env_factory.id, self.envs[0])
            except ConfigError:
                self.close()
                raise
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        first = self.envs[0].unwrapped
        self.horizon = limit_of(self.envs[0])
        self.ends = self.horizon is not None or type(first).__name__ in _ENDS or _is_minigrid(first)
        self._remake = (lambda: make(env_factory, render)) if type(first).__name__ in _KEEPS_ITS_WORLD else None
        self._begun = np.zeros(n, dtype=bool)
        self.infos: Sequence[Mapping[str, Any]] = [{} for _ in range(n)]
        self._observations: list[Any] = [None] * n
        self._id, self._steps = env_factory.id, [0] * n
        # Observations of other spaces are checked where they are read.
        self._states = self.observation_space if isinstance(self.observation_space, Discrete) else None

    def reset(self, seeds: np.ndarray, mask: np.ndarray) -> Sequence[Any]:
        infos = list(self.infos)
        for i in np.flatnonzero(mask).tolist():
            if self._remake is not None and self._begun[i]:
                self.envs[i].close()
                self.envs[i] = self._remake()
            with _quiet(self.envs[i].unwrapped):
                self._observations[i], infos[i] = self.envs[i].reset(seed=int(seeds[i]))
            self._steps[i] = 0
            if self._states is not None:
                check_state(self._id, self._states, self._observations[i], 0)
        self._begun |= mask
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
            self._steps[i] += 1
            if self._states is not None:
                check_state(self._id, self._states, self._observations[i], self._steps[i])
        self.infos = infos
        return list(self._observations), reward, terminated, truncated

    def render(self, index: int) -> np.ndarray:
        return np.asarray(self.envs[index].render())

    def close(self) -> None:
        for env in self.envs:
            env.close()


def make(env_factory: EnvArguments, render: bool) -> gymnasium.Env[Any, Any]:
    """Return one environment, without Gymnasium's checks of every step, which cost as much as a small game.

    Raises:
        ConfigError: see `env_factory.EnvFactory.make`.
    """
    import gymnasium
    from gymnasium import error

    mode: dict[str, Any] = {}
    limit = {} if env_factory.horizon is None else {"max_episode_steps": env_factory.horizon}
    try:
        spec = _spec(env_factory)
        if spec is not None:
            check_map(spec, env_factory)
        if render:
            mode = {"render_mode": "rgb_array"} if spec is None else drawing_arguments(spec)
        return gymnasium.make(env_factory.id, disable_env_checker=True, **{**mode, **limit, **env_factory.kwargs})
    except error.DependencyNotInstalled as fault:
        extra = next((extra for word, extra in _EXTRAS.items() if word in str(fault)), None)
        cure = f"pip install 'llmrl[{extra}]'" if extra else str(fault)
        raise ConfigError(f"{env_factory.id} needs a package that is not installed: {cure}") from fault
    except error.Error as fault:
        near = difflib.get_close_matches(env_factory.id, list(gymnasium.registry), n=_NEAR)
        like = f"; ids like it: {', '.join(near)}" if near else ""
        raise ConfigError(
            f"Gymnasium knows no environment {env_factory.id!r} ({str(fault).rstrip('.')}){like}. Ids of a package "
            "of your "
            "own are written package.module:Id-v0"
        ) from fault
    except ModuleNotFoundError as fault:
        raise ConfigError(f"{env_factory.id} needs the package {fault.name}, which is not installed") from fault
    except TypeError as fault:
        if "argument" not in str(fault):
            raise
        raise refused(env_factory.id, env_factory.kwargs, fault) from fault
    except REFUSALS as fault:
        raise refused(env_factory.id, env_factory.kwargs, fault) from fault


def _spec(env_factory: EnvArguments) -> EnvSpec | None:
    """Import the package that registers an id and return the registered spec; None if there is none.

    Raises:
        ConfigError: the id names a module that is not trusted, or is one of `_OTHERS`.
    """
    import gymnasium

    module, colon, id = env_factory.id.rpartition(":")
    if id.startswith(_OTHERS):
        raise ConfigError(f"env.id={env_factory.id} makes whatever an argument names; name that environment itself")
    if colon:
        env_factory.trust.load(module, f"env.id={env_factory.id}")
    for prefix, package in _PACKAGES.items():
        if id.startswith(prefix):
            importlib.import_module(package)
    return gymnasium.registry.get(id)


def check_map(spec: EnvSpec, env_factory: EnvArguments) -> None:
    """Raise ConfigError for a FrozenLake without a map (each object would draw its own, unseeded) or with an invalid
    one."""
    if not str(spec.entry_point).endswith(":FrozenLakeEnv"):
        return
    kwargs = {**spec.kwargs, **env_factory.kwargs}
    rows = kwargs.get("desc")
    if rows is not None:
        words = [row.decode() if isinstance(row, bytes) else str(row) for row in rows] if _lists(rows) else [""]
        if len({len(row) for row in words}) != 1 or not all(row and set(row) <= set("SFHG") for row in words):
            raise ConfigError(
                f"{env_factory.id}: env.kwargs.desc={rows} is no map: give rows of one length, of the letters S "
                "(start), F "
                "(ice), H (hole) and G (goal), such as [SFF,FHF,FFG]"
            )
        if not any("S" in row for row in words):
            raise ConfigError(f"{env_factory.id}: env.kwargs.desc={rows} has no S, where the game would start")
    if rows is None and "map_name" in kwargs and kwargs["map_name"] is None:
        raise ConfigError(
            f"{env_factory.id} without a map draws one that no seed decides, another one for each game: set "
            "env.kwargs.map_name=4x4 or 8x8, or give a map as env.kwargs.desc (a list of rows like SFFF)"
        )


def _lists(rows: object) -> bool:
    return isinstance(rows, list | tuple) and all(isinstance(row, str | bytes) for row in rows)


def _is_minigrid(env: Any) -> bool:
    return any(base.__name__ == "MiniGridEnv" for base in type(env).__mro__)


def limit_of(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the number of steps after which an episode is truncated by Gymnasium or MiniGrid, whichever is less.

    None: there is no limit, or it depends on the episode (in BabyAI on the mission)."""
    steps = None if env.spec is None else env.spec.max_episode_steps
    game: Any = env.unwrapped
    if _is_minigrid(game) and not any(base.__name__ == "RoomGridLevel" for base in type(game).__mro__):
        return int(game.max_steps) if steps is None else min(steps, int(game.max_steps))
    return steps


def _quiet(env: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager that hides what BabyAI prints (each mission that it drew and rejected)."""
    return contextlib.redirect_stdout(io.StringIO()) if _is_minigrid(env) else contextlib.nullcontext()
