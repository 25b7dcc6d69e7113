"""Adapter from `VecEnv` to Gymnasium's `Env` for one game with one agent, and conversions for adapters."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Observation, Step, to_numpy
from llmrl.core.spaces import Channel, EnvSpec

MAX_TEXT_LENGTH = 100_000
"""Maximum number of characters of a text in an observation space."""


class AnyText(spaces.Text):
    """Space of texts of any characters; samples consist of letters and digits."""

    def __init__(self, max_length: int = MAX_TEXT_LENGTH) -> None:
        super().__init__(max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length


def build_observation_space(spec: EnvSpec) -> spaces.Dict:
    """Return the observation space of one agent: a Dict with one entry per channel."""
    return spaces.Dict({name: _build_channel_space(channel) for name, channel in spec.observation.items()})


def _build_channel_space(channel: Channel) -> spaces.Space[Any]:
    if channel.dtype == "bool":
        return spaces.MultiBinary(channel.shape)
    if channel.dtype == "object":
        return AnyText()
    return spaces.Box(channel.low, channel.high, channel.shape, np.dtype(channel.dtype).type)


def build_action_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Return the action space of one agent: Discrete, MultiDiscrete, or a Box, in which integers are rounded."""
    numbers = spec.continuous_actions
    if numbers is None:
        return spaces.Discrete(spec.n_actions)
    low, high = np.array(numbers.low), np.array(numbers.high)
    if all(numbers.is_integer):
        start = low.astype(np.int64)
        return spaces.MultiDiscrete(high.astype(np.int64) - start + 1, start=start)
    return spaces.Box(low.astype(np.float32), high.astype(np.float32))


def to_vec_env_actions(spec: EnvSpec, actions: Any) -> np.ndarray:
    """Return Gymnasium actions, one per game and agent, as an array for `VecEnv.step`.

    Its shape is [n_envs, n_agents], or [n_envs, n_agents, a] if an action consists of a numbers.
    """
    shape = (spec.n_envs, spec.n_agents)
    if spec.continuous_actions is None:
        return np.asarray(actions, dtype=np.int64).reshape(shape)
    return np.asarray(actions, dtype=np.float32).reshape(*shape, spec.continuous_actions.dim)


def copy_agent_observation(observation: Observation, game: int, agent: int) -> dict[str, Any]:
    """Return copies of the channels that one agent of one game observes; an environment may reuse their memory.

    Booleans become int8, which `Discrete.sample(mask)` requires.
    """
    return {name: _copy_array(value[game, agent]) for name, value in observation.items()}


def _copy_array(value: Any) -> Any:
    if isinstance(value, str):
        return value
    array = np.array(to_numpy(value))
    return array.astype(np.int8) if array.dtype == bool else array


def read_step_metrics(step: Step, game: int) -> dict[str, float]:
    """Return the metrics of one game in a step (`EnvSpec.per_step`)."""
    return {name: float(value[game]) for name, value in step.info.items()}


class GymnasiumAdapter(gymnasium.Env[dict[str, Any], Any]):
    """A `VecEnv` of one game with one agent as a Gymnasium `Env`.

    The info of a step contains its metrics (`EnvSpec.per_step`) and `base_reward`. The mechanism is set on the wrapped
    environment, `adapter.env.set_mechanism(values)`.

    Args:
        env: environment to wrap.
        render_mode: `rgb_array`, or None for no rendering.

    Raises:
        ConfigError: the environment has more than one game or more than one agent.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, env: VecEnv, render_mode: str | None = None) -> None:
        if env.spec.n_envs != 1:
            raise ConfigError(
                f"n_envs={env.spec.n_envs}: a Gymnasium Env has one game of {env.spec.name}; use n_envs=1, or the "
                "interface of all games, make_env(..., api='vec')"
            )
        if env.spec.n_agents != 1:
            raise ConfigError(
                f"Gymnasium supports one agent per game, and {env.spec.name} has {env.spec.n_agents}; use PettingZoo "
                "(make_env(..., api='pettingzoo'), ParallelAdapter)"
            )
        self.env = env
        self.render_mode = render_mode
        self.observation_space = build_observation_space(env.spec)
        self.action_space = build_action_space(env.spec)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; return the observation and an empty info.

        `options` may contain `context`, an index into `EnvSpec.contexts`.
        """
        super().reset(seed=seed)
        if options and "context" in options:
            self.env.set_context(options["context"])
        return copy_agent_observation(self.env.reset(seed=seed), 0, 0), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        step = self.env.step(to_vec_env_actions(self.env.spec, action))
        info = {**read_step_metrics(step, 0), "base_reward": float(step.base_reward[0][0])}
        reward, ends = float(step.reward[0][0]), (bool(step.terminated[0]), bool(step.truncated[0]))
        return copy_agent_observation(step.observation, 0, 0), reward, *ends, info

    def render(self) -> np.ndarray | None:
        return self.env.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.env.close()
