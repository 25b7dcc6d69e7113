"""Stable-Baselines3 as an agent: the algorithms that policy search is measured against."""

from __future__ import annotations

import copy
import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.protocols import AgentLoop
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import PolicyOutput, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec, ParameterSpace

if TYPE_CHECKING:
    import gymnasium
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.policies import BasePolicy

Algorithm = Literal["ppo", "a2c", "trpo", "ars", "dqn", "sac", "td3", "ddpg"]

CONTRIBUTED = ("trpo", "ars")
"""Those of sb3-contrib."""

ENDLESS = 2**62
"""Steps that a training is begun with; episodes are what ends it."""


class SB3Agent:
    """`agent=sb3`: an algorithm of Stable-Baselines3 with networks and a loop of its own, and with its default
    hyperparameters unless told otherwise. Training ends after a number of episodes.

    Args:
        spec: of the environment; one agent, with the channel `vector` or `state`.
        seeds: of weights, exploration and games.
        device: of the networks.
        algorithm: `ppo`, `a2c`, `trpo` (any actions), `ars` (a choice or real numbers), `dqn` (a choice), `sac`, `td3`,
            `ddpg` (real numbers).
        games: environments it trains on side by side.
        arguments: of the algorithm's class, in place of its defaults.

    Raises:
        ConfigError: the package is missing, the actions are not of its kind, or there is nothing it can read.
    """

    loop: ClassVar[AgentLoop] = "baseline"
    learns = True

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        device: str,
        algorithm: Algorithm = "ppo",
        games: PositiveInt = 1,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        try:
            _library(algorithm)
        except ModuleNotFoundError as error:
            raise ConfigError("agent=sb3 needs Stable-Baselines3: pip install 'llmrl[sb3]'") from error
        _check_actions(spec, algorithm)
        if spec.n_agents != 1:
            raise Incompatible(
                Misfit.ONE_GAME, f"agent=sb3 is one agent, and env={spec.name} has {spec.n_agents}; use agent=ppo"
            )
        self.channel = next((name for name in ("state", "vector") if name in spec.observation), "")
        if not self.channel:
            raise Incompatible(
                Misfit.INTERFACE,
                f"agent=sb3 reads an observation of numbers, and env={spec.name} shows {', '.join(spec.observation)}",
            )
        self.spec, self.device, self.algorithm, self.games = spec, device, algorithm, games
        self.arguments = dict(arguments or {})
        self.seed = seeds.integer("sb3")
        with _own_randomness():
            self.network: BasePolicy = self._model([_blank_env(spec, self.channel)]).policy
        self.policy = SB3Policy(self)

    def fit(
        self, make: Callable[[], gymnasium.Env[Any, Any]], episode_over: Callable[[float, int], bool], episodes: int
    ) -> None:
        """Train until `episode_over`, called with the return and length of every episode, says that it is enough.

        `make` makes one more environment. `episodes` is how many there will be: schedules, such as that of the
        exploration of `dqn`, go by the share of them that is over. Torch, NumPy and Python draw from their global
        streams meanwhile, which are put back.
        """
        from gymnasium import spaces
        from gymnasium.wrappers import FlattenObservation, TransformObservation
        from stable_baselines3.common.monitor import Monitor

        from llmrl.envs.gym.channel_spaces import numeric_part

        over = 0

        class Counted(Monitor):
            """Tells of its episodes. A callback would not hear of those of `ars`."""

            def step(self, action: Any) -> Any:
                nonlocal over
                told = super().step(action)
                if "episode" in told[4]:
                    over += 1
                    if not episode_over(float(told[4]["episode"]["r"]), int(told[4]["episode"]["l"])):
                        raise _Enough
                return told

        def prepared() -> gymnasium.Env[Any, Any]:
            env = make()
            shown = env.observation_space
            plain = isinstance(shown, spaces.Discrete) or (isinstance(shown, spaces.Box) and len(shown.shape) == 1)
            if plain:
                return Counted(env)
            # As the channel `vector` is: texts and pictures, which cannot be flattened, are left out.
            numbers = numeric_part(shown)
            assert numbers is not None, "the channel `vector` is there"
            return Counted(FlattenObservation(TransformObservation(env, numbers[1], numbers[0])))

        def progress(*_: int) -> None:
            model._current_progress_remaining = max(0.0, 1.0 - over / episodes)

        with _own_randomness():
            model: Any = self._model([prepared() for _ in range(self.games)])
            # Its own goes by steps, of which nobody knows how many there will be.
            model._update_current_progress_remaining = progress
            self.network = model.policy
            try:
                model.learn(ENDLESS)
            except _Enough:
                pass
            finally:
                model.env.close()

    @property
    def controller(self) -> SB3Controller:
        """What it has learnt so far, acting deterministically."""
        return SB3Controller(self.network, self.channel)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Never asked: it learns in its own loop."""
        raise ConfigError("agent=sb3 learns in a loop of its own; use principal=none")

    def reset(self) -> None:
        """Never asked, as `update`."""
        raise ConfigError("agent=sb3 learns in a loop of its own; use principal=none")

    def describe(self) -> dict[str, Any]:
        parameters = sum(p.numel() for p in self.network.parameters())
        library = "sb3-contrib" if self.algorithm in CONTRIBUTED else "Stable-Baselines3"
        return {"policy": f"{self.algorithm.upper()} of {library}", "parameters": parameters}

    def state_dict(self) -> State:
        return {"network": dict(self.network.state_dict())}

    def load_state_dict(self, state: State) -> None:
        self.network.load_state_dict(state["network"])

    def actions(self, observation: np.ndarray, deterministic: bool) -> np.ndarray:
        """Actions [n] or [n, a] for observations [n, ...]; not deterministic, from torch's global stream."""
        return _chosen(self.network, observation, deterministic)

    def _model(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> BaseAlgorithm:
        from stable_baselines3.common.vec_env import DummyVecEnv

        build: Any = getattr(_library(self.algorithm), self.algorithm.upper())
        made = iter(envs)
        games = DummyVecEnv([lambda: next(made) for _ in envs])
        arguments = {"seed": self.seed, "device": self.device, **self.arguments}
        try:
            # The networks that the algorithms were published with.
            policy = "LinearPolicy" if self.algorithm == "ars" else "MlpPolicy"
            model: BaseAlgorithm = build(policy, games, **arguments)
        except (TypeError, ValueError, AssertionError) as error:
            games.close()
            raise ConfigError(f"agent.arguments={self.arguments} of {self.algorithm.upper()}: {error}") from error
        return model


class SB3Policy:
    """What an `SB3Agent` has learnt, as a policy."""

    def __init__(self, agent: SB3Agent) -> None:
        self.agent, self.channels = agent, (agent.channel,)

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        seen = observation[self.agent.channel][:, 0].cpu().numpy()
        with _own_randomness():
            if not greedy and generator is not None:
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            chosen = self.agent.actions(seen, greedy)
        dtype = torch.int64 if self.agent.spec.continuous_actions is None else torch.float32
        return PolicyOutput(torch.as_tensor(chosen, dtype=dtype)[:, None])

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Zeros: what it expects stays its own business."""
        return torch.zeros(next(iter(observation.values())).shape[:2])


class SB3Controller:
    """What an `SB3Agent` has learnt, acting deterministically, as a controller without parameters.

    A copy in another process acts on the CPU there.

    Args:
        network: of the agent.
        channel: that it reads.
    """

    space = ParameterSpace("nothing", ())

    def __init__(self, network: BasePolicy, channel: str) -> None:
        self.network, self.channel = network, channel

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        return _chosen(self.network, observation, deterministic=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"network": copy.deepcopy(self.network).to("cpu"), "channel": self.channel}


def _chosen(network: BasePolicy, observation: np.ndarray, deterministic: bool) -> np.ndarray:
    chosen, _ = network.predict(observation, deterministic=deterministic)
    return np.asarray(chosen)


class _Enough(Exception):  # noqa: N818  (nothing went wrong)
    """Ends a training: there were as many episodes as there were to be."""


def _library(algorithm: str) -> ModuleType:
    return importlib.import_module("sb3_contrib" if algorithm in CONTRIBUTED else "stable_baselines3")


def _check_actions(spec: EnvSpec, algorithm: Algorithm) -> None:
    numbers = spec.continuous_actions
    if numbers is None:
        kind, works = f"one of {spec.n_actions}", "dqn, ppo, a2c, trpo or ars"
    elif any(numbers.whole) and not all(numbers.whole):
        raise ConfigError(
            f"agent=sb3: an action of env={spec.name} is {numbers.kind}, which Stable-Baselines3 has no policy for; "
            "use agent=ppo"
        )
    elif all(numbers.whole):
        kind, works = f"{numbers.dim} whole number{'s' * (numbers.dim != 1)}", "ppo, a2c or trpo"
    else:
        kind, works = f"{numbers.dim} number{'s' * (numbers.dim != 1)}", "sac, td3, ddpg, ppo, a2c, trpo or ars"
    if algorithm not in works.replace(" or ", ", ").split(", "):
        wanted = {"dqn": "one of several actions", "ars": "one of several actions, or real numbers"}
        raise ConfigError(
            f"agent.algorithm={algorithm} chooses {wanted.get(algorithm, 'real numbers')}, and an action of "
            f"env={spec.name} is {kind}; use {works}"
        )


def _blank_env(spec: EnvSpec, channel: str) -> gymnasium.Env[Any, Any]:
    """An environment with the right spaces that is never played: networks are made for it."""
    import gymnasium
    from gymnasium import spaces

    class Blank(gymnasium.Env[Any, Any]):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            raise AssertionError("nobody plays it")

    blank, shown = Blank(), spec.observation[channel]
    blank.observation_space = (
        spaces.Discrete(int(shown.high) + 1) if channel == "state" else spaces.Box(-np.inf, np.inf, shown.shape)
    )
    numbers = spec.continuous_actions
    if numbers is None:
        blank.action_space = spaces.Discrete(spec.n_actions)
    elif all(numbers.whole):
        low, high = np.array(numbers.low, dtype=np.int64), np.array(numbers.high, dtype=np.int64)
        blank.action_space = spaces.MultiDiscrete(high - low + 1, start=low)
    else:
        blank.action_space = spaces.Box(np.array(numbers.low, np.float32), np.array(numbers.high, np.float32))
    return blank


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Global streams of torch, NumPy and Python as they were before, afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
