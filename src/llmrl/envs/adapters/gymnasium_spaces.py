"""Observations and actions of a `VecEnv` in Gymnasium's form: spaces and conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from llmrl.core.records import Observation, Step, on_host
from llmrl.core.spaces import Channel, EnvSpec

MAX_TEXT_LENGTH = 100_000
"""Maximum number of characters of a text in an observation space."""


class AnyText(spaces.Text):
    """Texts of any characters; samples are made of letters and digits."""

    def __init__(self, max_length: int = MAX_TEXT_LENGTH) -> None:
        super().__init__(max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


def observation_space(spec: EnvSpec) -> spaces.Dict:
    """Return the observation space of one agent: a Dict with one entry per channel."""
    return spaces.Dict({name: _channel_space(channel) for name, channel in spec.observation.items()})


def _channel_space(channel: Channel) -> spaces.Space[Any]:
    if channel.dtype == "bool":
        return spaces.MultiBinary(channel.shape)
    if channel.dtype == "object":
        return AnyText()
    return spaces.Box(channel.low, channel.high, channel.shape, np.dtype(channel.dtype).type)


def action_space(spec: EnvSpec) -> spaces.Space[Any]:
    """Return the action space of one agent: Discrete, MultiDiscrete, or Box, whose integer entries are rounded."""
    numbers = spec.continuous_actions
    if numbers is None:
        return spaces.Discrete(spec.n_actions)
    low, high = np.array(numbers.low), np.array(numbers.high)
    if all(numbers.whole):
        start = low.astype(np.int64)
        return spaces.MultiDiscrete(high.astype(np.int64) - start + 1, start=start)
    return spaces.Box(low.astype(np.float32), high.astype(np.float32))


def vec_env_actions(spec: EnvSpec, actions: Any) -> np.ndarray:
    """Return Gymnasium's actions, one per game and agent, in the form of a `VecEnv`.

    They are [n_envs, n_agents], or [n_envs, n_agents, a] if an action is several numbers.
    """
    shape = (spec.n_envs, spec.n_agents)
    if spec.continuous_actions is None:
        return np.asarray(actions, dtype=np.int64).reshape(shape)
    return np.asarray(actions, dtype=np.float32).reshape(*shape, spec.continuous_actions.dim)


def agent_observation(observation: Observation, game: int, agent: int) -> dict[str, Any]:
    """Return copies of the observation of one agent of one game, because an environment may reuse its memory.

    Booleans become int8, which `Discrete.sample(mask)` requires.
    """
    return {name: _copied_array(value[game, agent]) for name, value in observation.items()}


def all_observations(observation: Observation) -> dict[str, Any]:
    """Return copies of the observations of all games with one agent each: arrays [n_envs, ...], or tuples of texts."""
    return {name: _batched_channel(value) for name, value in observation.items()}


def _copied_array(value: Any) -> Any:
    if isinstance(value, str):
        return value
    array = np.array(on_host(value))
    return array.astype(np.int8) if array.dtype == bool else array


def _batched_channel(value: Any) -> Any:
    if str(value.dtype) == "object":
        return tuple(value[game, 0] for game in range(value.shape[0]))
    return _copied_array(value[:, 0])


def step_metrics(step: Step, game: int) -> dict[str, float]:
    """Return the metrics of a step of one game (`EnvSpec.metrics`)."""
    return {name: float(value[game]) for name, value in step.info.items()}
