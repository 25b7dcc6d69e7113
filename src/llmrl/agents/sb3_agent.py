"""Agent `agent=sb3`, which learns by an algorithm of Stable-Baselines3, as a baseline for policy search."""

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

from llmrl.core.agent_interfaces import PolicyWithoutValues
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
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

AlgorithmName = Literal["ppo", "a2c", "trpo", "ars", "dqn", "sac", "td3", "ddpg"]

CONTRIB_ALGORITHMS = ("trpo", "ars")
"""Algorithms of sb3-contrib."""

MAX_TRAINING_STEPS = 2**62
"""Number of steps for `learn` of Stable-Baselines3; training ends earlier, after a number of episodes."""


class SB3Agent:
    """Agent with an algorithm, networks and training loop of Stable-Baselines3.

    It uses the algorithm's default hyperparameters unless `arguments` replace them. Training ends after a number of
    episodes.

    Args:
        spec: spec of the environment; one agent, with the channel `vector` or `state`.
        seeds: seed tree for weights, exploration and environments.
        device: device of the networks.
        algorithm: `ppo`, `a2c`, `trpo` (any actions), `ars` (discrete actions or real numbers), `dqn` (discrete
            actions), `sac`, `td3`, `ddpg` (real numbers).
        games: number of parallel training environments.
        arguments: arguments of the algorithm's class that replace its defaults.

    Raises:
        ConfigError: the package is missing, the algorithm does not support the actions, or no channel is readable.
    """

    loop: ClassVar[AgentLoop] = "baseline"
    learns = True

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        device: str,
        algorithm: AlgorithmName = "ppo",
        games: PositiveInt = 1,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        try:
            _import_library(algorithm)
        except ModuleNotFoundError as error:
            raise ConfigError("agent=sb3 needs Stable-Baselines3: pip install 'llmrl[sb3]'") from error
        actions = spec.continuous_actions
        if actions is not None and any(actions.is_integer) and not all(actions.is_integer):
            raise ConfigError(
                f"agent=sb3: an action of env={spec.name} is {actions.description}, for which Stable-Baselines3 has no "
                "policy; use agent=ppo"
            )
        if spec.n_agents != 1:
            raise Incompatible(
                IncompatibilityReason.WRONG_GAME,
                f"agent=sb3 needs one agent, but env={spec.name} has {spec.n_agents}; use agent=ppo",
            )
        self.channel = next((name for name in ("state", "vector") if name in spec.observation), "")
        if not self.channel:
            raise Incompatible(
                IncompatibilityReason.INTERFACE,
                f"agent=sb3 needs the channel state or vector, but env={spec.name} has only "
                f"{', '.join(spec.observation)}; use agent=ppo",
            )
        self.spec, self.device, self.algorithm, self.games = spec, device, algorithm, games
        self.arguments = dict(arguments or {})
        self.seed = seeds.integer("sb3")
        with _preserve_global_rng():
            self.network: BasePolicy = self._build_model([_make_placeholder_env(spec, self.channel)]).policy
        self.policy = SB3Policy(self)

    def fit(
        self, make_env: Callable[[], gymnasium.Env[Any, Any]], on_episode: Callable[[float, int], bool], episodes: int
    ) -> None:
        """Train until `on_episode`, called with the return and length of each episode, returns False.

        `make_env` creates an environment. `episodes` is the planned number of episodes; schedules, such as that of the
        exploration of `dqn`, depend on the finished fraction of it. Training uses the global random generators of
        torch, NumPy and Python, whose states are restored afterwards.
        """
        from gymnasium import spaces
        from gymnasium.wrappers import FlattenObservation, TransformObservation
        from stable_baselines3.common.monitor import Monitor

        from llmrl.envs.gym.channel_spaces import select_numeric_part

        n_episodes = 0

        class EpisodeCounter(Monitor):
            """Monitor that reports each episode; a callback of Stable-Baselines3 would miss the episodes of `ars`."""

            def step(self, action: Any) -> Any:
                nonlocal n_episodes
                transition = super().step(action)
                if "episode" in transition[4]:
                    n_episodes += 1
                    if not on_episode(float(transition[4]["episode"]["r"]), int(transition[4]["episode"]["l"])):
                        raise _TrainingFinished
                return transition

        def make_training_env() -> gymnasium.Env[Any, Any]:
            env = make_env()
            space = env.observation_space
            if isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and len(space.shape) == 1):
                return EpisodeCounter(env)
            # Texts and images cannot be flattened and are omitted, as in the channel `vector`.
            numeric_part = select_numeric_part(space)
            assert numeric_part is not None, "the environment has the channel `vector`"
            return EpisodeCounter(FlattenObservation(TransformObservation(env, numeric_part[1], numeric_part[0])))

        def update_progress(*_: int) -> None:
            model._current_progress_remaining = max(0.0, 1.0 - n_episodes / episodes)

        with _preserve_global_rng():
            model: Any = self._build_model([make_training_env() for _ in range(self.games)])
            # Stable-Baselines3 computes progress from steps, whose total number is unknown.
            model._update_current_progress_remaining = update_progress
            self.network = model.policy
            try:
                model.learn(MAX_TRAINING_STEPS)
            except _TrainingFinished:
                pass
            finally:
                model.env.close()

    @property
    def controller(self) -> SB3Controller:
        """Deterministic policy of the current network."""
        return SB3Controller(self.network, self.channel)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Raise ConfigError: the agent learns only in `fit`."""
        raise ConfigError("agent=sb3 learns in a loop of its own; use principal=none")

    def reset(self) -> None:
        """Raise ConfigError: see `update`."""
        raise ConfigError("agent=sb3 learns in a loop of its own; use principal=none")

    def describe(self) -> dict[str, Any]:
        parameters = sum(p.numel() for p in self.network.parameters())
        library = "sb3-contrib" if self.algorithm in CONTRIB_ALGORITHMS else "Stable-Baselines3"
        return {"policy": f"{self.algorithm.upper()} of {library}", "parameters": parameters}

    def state_dict(self) -> State:
        return {"network": dict(self.network.state_dict())}

    def load_state_dict(self, state: State) -> None:
        self.network.load_state_dict(state["network"])

    def _build_model(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> BaseAlgorithm:
        from stable_baselines3.common.logger import Logger
        from stable_baselines3.common.vec_env import DummyVecEnv

        algorithm_class: Any = getattr(_import_library(self.algorithm), self.algorithm.upper())
        env_iterator = iter(envs)
        vec_env = DummyVecEnv([lambda: next(env_iterator) for _ in envs])
        arguments = {"seed": self.seed, "device": self.device, **self.arguments}
        try:
            # The same types of networks as in ProPS.
            policy_name = "LinearPolicy" if self.algorithm == "ars" else "MlpPolicy"
            model: BaseAlgorithm = algorithm_class(policy_name, vec_env, **arguments)
        except (TypeError, ValueError, AssertionError) as error:
            vec_env.close()
            raise ConfigError(
                f"agent.algorithm={self.algorithm}, agent.arguments={self.arguments}: Stable-Baselines3 rejects this "
                f"for env={self.spec.name}: {error}"
            ) from error
        if not self.arguments.get("verbose") and not self.arguments.get("tensorboard_log"):
            model.set_logger(Logger(None, []))  # the default logger leaves a temporary folder
        return model


class SB3Policy(PolicyWithoutValues):
    """Policy of the current network of an `SB3Agent`."""

    def __init__(self, agent: SB3Agent) -> None:
        self.agent, self.channels = agent, (agent.channel,)

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        inputs = observation[self.agent.channel][:, 0].cpu().numpy()
        with _preserve_global_rng():
            if not greedy and generator is not None:
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            actions = _predict(self.agent.network, inputs, greedy)
        dtype = torch.int64 if self.agent.spec.continuous_actions is None else torch.float32
        return PolicyOutput(torch.as_tensor(actions, dtype=dtype)[:, None])


class SB3Controller:
    """Deterministic policy of an `SB3Agent` as a controller without parameters.

    A copy in another process computes on the CPU.

    Args:
        network: network of the agent.
        channel: channel that the network reads.
    """

    space = ParameterSpace("nothing", ())

    def __init__(self, network: BasePolicy, channel: str) -> None:
        self.network, self.channel = network, channel

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        return _predict(self.network, observation, deterministic=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"network": copy.deepcopy(self.network).to("cpu"), "channel": self.channel}


def _predict(network: BasePolicy, observation: np.ndarray, deterministic: bool) -> np.ndarray:
    """Return actions [n] or [n, a] for observations [n, ...]; torch's global generator samples stochastic ones."""
    actions, _ = network.predict(observation, deterministic=deterministic)
    return np.asarray(actions)


class _TrainingFinished(Exception):  # noqa: N818  (not an error)
    """Raised to end training after the planned number of episodes."""


def _import_library(algorithm: str) -> ModuleType:
    return importlib.import_module("sb3_contrib" if algorithm in CONTRIB_ALGORITHMS else "stable_baselines3")


def _make_placeholder_env(spec: EnvSpec, channel: str) -> gymnasium.Env[Any, Any]:
    """Return an environment with the spaces of `spec`, for which networks are created; it is never stepped."""
    import gymnasium
    from gymnasium import spaces

    from llmrl.envs.adapters.gymnasium_env import build_action_space

    class PlaceholderEnv(gymnasium.Env[Any, Any]):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            raise AssertionError("the placeholder environment is never played")

    env, channel_spec = PlaceholderEnv(), spec.observation[channel]
    env.observation_space = (
        spaces.Discrete(int(channel_spec.high) + 1)
        if channel == "state"
        else spaces.Box(-np.inf, np.inf, channel_spec.shape)
    )
    env.action_space = build_action_space(spec)
    return env


@contextmanager
def _preserve_global_rng() -> Iterator[None]:
    """Restore the states of the global random generators of torch, NumPy and Python at the end of the `with` block."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
