"""Gymnasium's own environments, one object a game."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.drawing import check_draws, drawing_arguments
from llmrl.envs.gym.faults import REFUSALS, check_state, refused

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from llmrl.envs.gym.protocols import EnvArguments

_PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "llmrl.envs.babyai.registration", "llmrl/": "llmrl.envs.gym.tasks"}
"""Modules that register the ids that begin so."""
_OTHERS = ("GymV21Environment", "GymV26Environment")
"""Ids of Gymnasium that import and make what their arguments name, past the gate for modules."""
_EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "Box2D": "box2d", "swig": "box2d"}
"""Words in Gymnasium's complaint about a missing package -> our extra that brings it."""
_KEEPS_ITS_WORLD = ("BipedalWalker", "CarRacing")
"""Classes whose physics remember earlier episodes across `reset(seed=...)`; they are made anew for each episode."""
_ENDS = ("BlackjackEnv",)
"""Classes without a limit of steps whose episodes are short all the same."""
_NEAR = 5
"""Similar ids that a message about an unknown one names."""


class StockGames:
    """`n` environments made by `gymnasium.make`.

    Args:
        maker: which environment.
        n: games.
        render: make them able to draw themselves.

    Raises:
        ConfigError: see `games.GameMaker.make`.
    """

    def __init__(self, maker: EnvArguments, n: int, render: bool = False) -> None:
        from gymnasium.spaces import Discrete

        self.n = n
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for _ in range(n):
                self.envs.append(make(maker, render))
        except BaseException:
            self.close()
            raise
        if render:
            try:
                check_draws(maker.id, self.envs[0])
            except ConfigError:
                self.close()
                raise
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        first = self.envs[0].unwrapped
        self.horizon = limit_of(self.envs[0])
        self.ends = self.horizon is not None or type(first).__name__ in _ENDS or _is_minigrid(first)
        self._remake = (lambda: make(maker, render)) if type(first).__name__ in _KEEPS_ITS_WORLD else None
        self._begun = np.zeros(n, dtype=bool)
        self.infos: Sequence[Mapping[str, Any]] = [{} for _ in range(n)]
        self._observations: list[Any] = [None] * n
        self._id, self._steps = maker.id, [0] * n
        # Other observations are looked at where they are read.
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


def make(maker: EnvArguments, render: bool) -> gymnasium.Env[Any, Any]:
    """One environment, without Gymnasium's checks of every step, which cost as much as a small game.

    Raises:
        ConfigError: see `games.GameMaker.make`.
    """
    import gymnasium
    from gymnasium import error

    mode: dict[str, Any] = {}
    limit = {} if maker.horizon is None else {"max_episode_steps": maker.horizon}
    try:
        spec = _spec(maker)
        if spec is not None:
            check_map(spec, maker)
        if render:
            mode = {"render_mode": "rgb_array"} if spec is None else drawing_arguments(spec)
        return gymnasium.make(maker.id, disable_env_checker=True, **{**mode, **limit, **maker.kwargs})
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
        raise refused(maker.id, maker.kwargs, fault) from fault
    except REFUSALS as fault:
        raise refused(maker.id, maker.kwargs, fault) from fault


def _spec(maker: EnvArguments) -> EnvSpec | None:
    """What is registered under an id, once the package that registers it has been imported; None: nothing is.

    Raises:
        ConfigError: the id names a module that is not trusted, or is one of those that make what another id says.
    """
    import gymnasium

    module, colon, id = maker.id.rpartition(":")
    if id.startswith(_OTHERS):
        raise ConfigError(f"env.id={maker.id} makes whatever an argument names; name that environment itself")
    if colon:
        maker.trust.load(module, f"env.id={maker.id}")
    for prefix, package in _PACKAGES.items():
        if id.startswith(prefix):
            importlib.import_module(package)
    return gymnasium.registry.get(id)


def check_map(spec: EnvSpec, maker: EnvArguments) -> None:
    """Raise ConfigError where each object of FrozenLake would draw a map of its own, from no seed, or where the map is
    none."""
    if not str(spec.entry_point).endswith(":FrozenLakeEnv"):
        return
    kwargs = {**spec.kwargs, **maker.kwargs}
    rows = kwargs.get("desc")
    if rows is not None:
        words = [row.decode() if isinstance(row, bytes) else str(row) for row in rows] if _lists(rows) else [""]
        if len({len(row) for row in words}) != 1 or not all(row and set(row) <= set("SFHG") for row in words):
            raise ConfigError(
                f"{maker.id}: env.kwargs.desc={rows} is no map: give rows of one length, of the letters S (start), F "
                "(ice), H (hole) and G (goal), such as [SFF,FHF,FFG]"
            )
        if not any("S" in row for row in words):
            raise ConfigError(f"{maker.id}: env.kwargs.desc={rows} has no S, where the game would start")
    if rows is None and "map_name" in kwargs and kwargs["map_name"] is None:
        raise ConfigError(
            f"{maker.id} without a map draws one that no seed decides, another one for each game: set "
            "env.kwargs.map_name=4x4 or 8x8, or give a map as env.kwargs.desc (a list of rows like SFFF)"
        )


def _lists(rows: object) -> bool:
    return isinstance(rows, list | tuple) and all(isinstance(row, str | bytes) for row in rows)


def _is_minigrid(env: Any) -> bool:
    return any(base.__name__ == "MiniGridEnv" for base in type(env).__mro__)


def limit_of(env: gymnasium.Env[Any, Any]) -> int | None:
    """Steps after which an episode is truncated: Gymnasium's number, and MiniGrid's own; None where there is none, or
    where only the episode tells (in BabyAI it depends on the mission)."""
    steps = None if env.spec is None else env.spec.max_episode_steps
    game: Any = env.unwrapped
    if _is_minigrid(game) and not any(base.__name__ == "RoomGridLevel" for base in type(game).__mro__):
        return int(game.max_steps) if steps is None else min(steps, int(game.max_steps))
    return steps


def _quiet(env: Any) -> contextlib.AbstractContextManager[Any]:
    """BabyAI prints each mission that it drew and rejected."""
    return contextlib.redirect_stdout(io.StringIO()) if _is_minigrid(env) else contextlib.nullcontext()
