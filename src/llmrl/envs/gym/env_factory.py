"""Factory of n parallel copies (games) of a Gymnasium environment, and games that are separate Gymnasium objects."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.trust import NO_FURTHER_TRUST, Trust
from llmrl.envs.env_errors import build_observation_error, convert_creation_errors
from llmrl.envs.gym.batched import BATCHED_GAMES

if TYPE_CHECKING:
    import gymnasium
    from gymnasium import Space
    from gymnasium.envs.registration import EnvSpec

Engine = Literal["stock", "batched"]
_MODULE_BY_PREFIX = {"MiniGrid-": "minigrid", "BabyAI-": "llmrl.envs.babyai.levels", "llmrl/": "llmrl.envs.gym.tasks"}
"""Prefix of ids -> module that registers them."""
_UNSUPPORTED_IDS = ("GymV21Environment", "GymV26Environment")
"""Gymnasium ids that create the environment given as an argument, which would bypass the check of trusted modules."""
_EXTRA_BY_KEYWORD = {"mujoco": "mujoco", "box2d": "box2d", "Box2D": "box2d", "swig": "box2d"}
"""Word in Gymnasium's error about a missing package -> extra of llmrl that installs the package."""
_ENVS_THAT_KEEP_STATE = ("BipedalWalker", "CarRacing")
"""Environment classes whose physics keep state across `reset(seed=...)`; each episode gets a new object."""
_ENVS_WITH_SHORT_EPISODES = ("BlackjackEnv",)
"""Environment classes without a step limit whose episodes are always short."""


@runtime_checkable
class Games(Protocol):
    """`n` games, numbered from 0, each of which behaves exactly as its Gymnasium environment.

    Attributes:
        n: number of games.
        observation_space, action_space: spaces of one game.
        horizon: steps after which an episode is truncated; None: never.
        always_ends: whether every episode is known to end.
        infos: the last `info` of each game; an empty mapping if there is none.
    """

    n: int
    observation_space: Space[Any]
    action_space: Space[Any]
    horizon: int | None
    always_ends: bool
    infos: Sequence[Mapping[str, Any]]

    def reset(self, seeds: np.ndarray, mask: np.ndarray) -> Sequence[Any] | np.ndarray:
        """Start an episode in the games where `mask` is true; game i is reset as by `env.reset(seed=seeds[i])`.

        Args:
            seeds: seed of each game, [n] int64.
            mask: whether to start an episode in a game, [n] bool.

        Returns:
            The observation of every game, in order; undefined for games that were never started.
        """
        ...

    def step(
        self, actions: Sequence[Any] | np.ndarray, active: np.ndarray
    ) -> tuple[Sequence[Any] | np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Advance the games where `active` [n] is true; the others do not change.

        `actions[i]` is an element of `action_space`. Return the observations of all games, rewards [n] float64,
        terminated [n] bool and truncated [n] bool. Rewards and flags of games that are not active are 0 and false.
        """
        ...

    def reseed(self, seeds: np.ndarray, mask: np.ndarray) -> None:
        """Replace the random generators of the games where `mask` [n] is true by new ones with `seeds` [n]."""
        ...

    def render(self, index: int) -> np.ndarray:
        """Return a frame of one game, [height, width, 3] uint8."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class EnvFactory:
    """Factory of games of one environment. It can be pickled for another process.

    Args:
        id: Gymnasium id; `module:Id-v0` imports `module` first.
        kwargs: arguments of the environment.
        horizon: steps after which an episode is truncated, >= 1; None: the step limit that Gymnasium registers.
        engine: `stock`: one Gymnasium object per game; `batched`: one object with the state of all games in arrays.
        trust: modules that `id`, or the option `env.text`, may name.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    horizon: int | None = None
    engine: Engine = "stock"
    trust: Trust = NO_FURTHER_TRUST

    def make(self, n: int, render: bool = False) -> Games:
        """Return `n` games.

        Args:
            n: number of games, >= 1.
            render: whether the games can be rendered.

        Raises:
            ConfigError: the environment is unknown, needs a missing package, rejects an argument, cannot be rendered
                or has no batched engine.
        """
        if self.engine == "stock":
            return GymnasiumGames(self, n, render)
        games = self._make_batched(n)
        if games is None:
            raise ConfigError(
                f"{self.id} has no batched engine with env.kwargs={dict(self.kwargs)}; use env.engine=stock, or env.id="
                f"{', '.join(sorted(BATCHED_GAMES))}"
            )
        return games

    def _make_batched(self, n: int) -> Games | None:
        """Return `n` games of the batched engine; None if there is none for the environment or these arguments."""
        import gymnasium
        from gymnasium.envs.registration import load_env_creator

        from llmrl.envs.gym import tasks

        tasks.register()
        # Some versions of Gymnasium lack an environment of `BATCHED_GAMES`.
        if self.id not in BATCHED_GAMES or (spec := gymnasium.registry.get(self.id)) is None:
            return None
        check_frozen_lake_map(spec, self)
        make_games: Any = load_env_creator(BATCHED_GAMES[self.id])
        with convert_creation_errors(self.id, self.kwargs):
            games: Games | None = make_games(
                n, self.horizon or spec.max_episode_steps, **{**spec.kwargs, **self.kwargs}
            )
        return games


class GymnasiumGames:
    """`n` environments created by `gymnasium.make`.

    Args:
        env_factory: arguments that define the environment.
        n: number of games.
        render: whether the games can be rendered.

    Raises:
        ConfigError: see `EnvFactory.make`.
    """

    def __init__(self, env_factory: EnvFactory, n: int, render: bool = False) -> None:
        from gymnasium.spaces import Discrete

        self.n = n
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for _ in range(n):
                self.envs.append(make_gymnasium_env(env_factory, render))
            if render and "envs.mujoco" in type(self.envs[0].unwrapped).__module__:
                # Fail before the first episode if MuJoCo cannot render.
                self.envs[0].reset(seed=0)
                with _convert_mujoco_errors(env_factory.id):
                    self.envs[0].render()
        except BaseException:
            self.close()
            raise
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        env = self.envs[0].unwrapped
        self.horizon, self._is_minigrid = find_step_limit(self.envs[0]), _is_minigrid(env)
        self.always_ends = (
            self.horizon is not None or type(env).__name__ in _ENVS_WITH_SHORT_EPISODES or self._is_minigrid
        )
        self._recreate_env = (
            (lambda: make_gymnasium_env(env_factory, render)) if type(env).__name__ in _ENVS_THAT_KEEP_STATE else None
        )
        self._started = np.zeros(n, dtype=bool)
        self.infos: Sequence[Mapping[str, Any]] = [{} for _ in range(n)]
        self._observations: list[Any] = [None] * n
        self._id, self._steps = env_factory.id, [0] * n
        self._discrete_space = self.observation_space if isinstance(self.observation_space, Discrete) else None

    def reseed(self, seeds: np.ndarray, mask: np.ndarray) -> None:
        for i in np.flatnonzero(mask).tolist():
            self.envs[i].unwrapped.np_random = np.random.Generator(np.random.PCG64(int(seeds[i])))

    def reset(self, seeds: np.ndarray, mask: np.ndarray) -> Sequence[Any]:
        infos = list(self.infos)
        for i in np.flatnonzero(mask).tolist():
            if self._recreate_env is not None and self._started[i]:
                self.envs[i].close()
                self.envs[i] = self._recreate_env()
            # BabyAI prints each mission that it samples and rejects.
            with contextlib.redirect_stdout(io.StringIO()) if self._is_minigrid else contextlib.nullcontext():
                self._observations[i], infos[i] = self.envs[i].reset(seed=int(seeds[i]))
            self._steps[i] = 0
            self._check_discrete_observation(i)
        self._started |= mask
        self.infos = infos
        return list(self._observations)

    def step(
        self, actions: Sequence[Any] | np.ndarray, active: np.ndarray
    ) -> tuple[Sequence[Any], np.ndarray, np.ndarray, np.ndarray]:
        reward = np.zeros(self.n)
        terminated, truncated = np.zeros(self.n, dtype=bool), np.zeros(self.n, dtype=bool)
        infos = list(self.infos)
        for i in np.flatnonzero(active).tolist():
            self._observations[i], reward[i], terminated[i], truncated[i], infos[i] = self.envs[i].step(actions[i])
            self._steps[i] += 1
            self._check_discrete_observation(i)
        self.infos = infos
        return list(self._observations), reward, terminated, truncated

    def _check_discrete_observation(self, game: int) -> None:
        """Raise EngineError if the observation space is `Discrete` and does not contain the observation of a game.

        Observations of other spaces are checked when they are encoded.
        """
        observation = self._observations[game]
        if self._discrete_space is not None and not self._discrete_space.contains(observation):
            raise build_observation_error(self._id, self._discrete_space, observation, self._steps[game])

    def render(self, index: int) -> np.ndarray:
        return np.asarray(self.envs[index].render())

    def close(self) -> None:
        for env in self.envs:
            env.close()


def make_gymnasium_env(env_factory: EnvFactory, render: bool) -> gymnasium.Env[Any, Any]:
    """Return one environment without Gymnasium's checks of each step, which take as long as a simple step.

    Raises:
        ConfigError: see `EnvFactory.make`.
    """
    import gymnasium
    from gymnasium import error

    arguments: dict[str, Any] = {} if env_factory.horizon is None else {"max_episode_steps": env_factory.horizon}
    try:
        with convert_creation_errors(env_factory.id, env_factory.kwargs):
            spec = _load_spec(env_factory)
            if spec is not None:
                check_frozen_lake_map(spec, env_factory)
            if render:
                arguments |= {"render_mode": "rgb_array"} if spec is None else prepare_rendering(spec)
            return gymnasium.make(env_factory.id, disable_env_checker=True, **{**arguments, **env_factory.kwargs})
    except error.DependencyNotInstalled as cause:
        extra = next((extra for word, extra in _EXTRA_BY_KEYWORD.items() if word in str(cause)), None)
        remedy = f"pip install 'llmrl[{extra}]'" if extra else str(cause)
        raise ConfigError(f"{env_factory.id} needs a package that is not installed: {remedy}") from cause
    except error.Error as cause:
        raise ConfigError(
            f"Gymnasium has no environment {env_factory.id!r} ({str(cause).rstrip('.')}). For an environment in your "
            "own package, use env.id=package.module:Id-v0"
        ) from cause
    except ModuleNotFoundError as cause:
        raise ConfigError(
            f"{env_factory.id} needs the package {cause.name}, which is not installed; install it"
        ) from cause


def _load_spec(env_factory: EnvFactory) -> EnvSpec | None:
    """Import the package that registers an id and return the registered spec; None if there is none.

    Raises:
        ConfigError: the id names a module that is not trusted, or is one of `_UNSUPPORTED_IDS`.
    """
    import gymnasium

    module, separator, id = env_factory.id.rpartition(":")
    if id.startswith(_UNSUPPORTED_IDS):
        raise ConfigError(
            f"env.id={env_factory.id} wraps an environment given as an argument; use the id of that environment"
        )
    if separator:
        env_factory.trust.load(module, f"env.id={env_factory.id}")
    for prefix, registering_module in _MODULE_BY_PREFIX.items():
        if id.startswith(prefix):
            importlib.import_module(registering_module)
    return gymnasium.registry.get(id)


def check_frozen_lake_map(spec: EnvSpec, env_factory: EnvFactory) -> None:
    """Raise ConfigError if the environment is FrozenLake and has no map or an invalid one.

    Without a map, each object would generate another one, without a seed.
    """
    if not str(spec.entry_point).endswith(":FrozenLakeEnv"):
        return
    kwargs = {**spec.kwargs, **env_factory.kwargs}
    map_rows = kwargs.get("desc")
    row_texts = None if map_rows is None else [str(row) for row in map_rows]
    letters = "".join(row_texts or ())
    if row_texts is not None and not (
        len({len(row) for row in row_texts}) == 1 and "S" in letters and set(letters) <= set("SFHG")
    ):
        raise ConfigError(
            f"{env_factory.id}: env.kwargs.desc={map_rows} is not a map; it must be rows of equal length with the "
            "letters S (start, at least one), F (ice), H (hole) and G (goal), such as [SFF,FHF,FFG]"
        )
    if row_texts is None and "map_name" in kwargs and kwargs["map_name"] is None:
        raise ConfigError(
            f"{env_factory.id} without a map would generate a different, unseeded map for each game; set "
            "env.kwargs.map_name=4x4 or 8x8, or a map as env.kwargs.desc (a list of rows such as SFFF)"
        )


def _is_minigrid(env: Any) -> bool:
    return any(base.__name__ == "MiniGridEnv" for base in type(env).__mro__)


def find_step_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the step limit of an episode: the lower one of Gymnasium's and MiniGrid's.

    None: there is no limit, or it depends on the episode (in BabyAI on the mission).
    """
    max_steps = None if env.spec is None else env.spec.max_episode_steps
    base_env: Any = env.unwrapped
    if _is_minigrid(base_env) and not any(base.__name__ == "RoomGridLevel" for base in type(base_env).__mro__):
        return int(base_env.max_steps) if max_steps is None else min(max_steps, int(base_env.max_steps))
    return max_steps


def prepare_rendering(spec: EnvSpec) -> dict[str, Any]:
    """Let MuJoCo render without a screen if there is none; return the arguments of `gymnasium.make` for rendering.

    Raises:
        ConfigError: the environment declares no render mode `rgb_array`, or its renderer cannot be loaded.
    """
    from gymnasium.envs.registration import load_env_creator

    is_mujoco = "envs.mujoco" in str(spec.entry_point)
    has_screen = sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if is_mujoco and not has_screen and not os.environ.get("MUJOCO_GL"):
        # MuJoCo opens a window unless it is configured to render without a screen.
        os.environ["MUJOCO_GL"] = "egl"
    with _convert_mujoco_errors(spec.id) if is_mujoco else contextlib.nullcontext():
        env_class = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
    render_modes = getattr(env_class, "metadata", {}).get("render_modes", [])
    if "rgb_array" not in render_modes:
        raise ConfigError(
            f"{spec.id} cannot be rendered as an image (its render modes: {', '.join(render_modes) or 'none'}), so no "
            "video is possible; leave --video out of llmrl-evaluate, or use play.videos=0 and env.render=false"
        )
    # Without this camera, robots that walk or swim leave the frame.
    return {"render_mode": "rgb_array"} | ({"camera_name": "track"} if is_mujoco else {})


@contextlib.contextmanager
def _convert_mujoco_errors(name: str) -> Iterator[None]:
    """Raise ConfigError if MuJoCo's renderer cannot be loaded or fails; a ModuleNotFoundError passes unchanged."""
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as cause:  # PyOpenGL raises an AttributeError if it does not find a library
        raise ConfigError(
            f"{name} cannot be rendered with MUJOCO_GL={os.environ.get('MUJOCO_GL') or '(unset)'}: "
            f"{type(cause).__name__}: {cause}. Without a screen set MUJOCO_GL=egl (needs a GPU driver, or libegl1 of "
            "Debian) or MUJOCO_GL=osmesa (needs libosmesa6); or record no videos (play.videos=0, env.render=false)"
        ) from cause
