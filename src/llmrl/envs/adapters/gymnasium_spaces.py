"""Observations and actions of a `VecEnv` as Gymnasium has them: spaces, and what is in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from llmrl.core.records import Observation, Step, on_host
from llmrl.core.spaces import Channel, EnvSpec

LONGEST_TEXT = 100_000
"""Characters of the longest text that an observation space holds."""


class AnyText(spaces.Text):
    """Texts of any characters; samples are made of letters and digits."""

    def __init__(self, max_length: int = LONGEST_TEXT) -> None:
        super().__init__(max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


def observation_space(spec: EnvSpec) -> spaces.Dict:
    """What one agent sees: a dictionary with one entry a channel."""
    return spaces.Dict({name: _channel_space(channel) for name, channel in spec.observation.items()})


def _channel_space(channel: Channel) -> spaces.Space[Any]:
    if channel.dtype == "bool":
        return spaces.MultiBinary(channel.shape)
    if channel.dtype == "object":
        return AnyText()
    return spaces.Box(channel.low, channel.high, channel.shape, np.dtype(channel.dtype).type)


def action_space(spec: EnvSpec) -> spaces.Space[Any]:
    """What one agent chooses: one of several actions, or several numbers; whole ones among real ones are rounded."""
    numbers = spec.continuous_actions
    if numbers is None:
        return spaces.Discrete(spec.n_actions)
    low, high = np.array(numbers.low), np.array(numbers.high)
    if all(numbers.whole):
        start = low.astype(np.int64)
        return spaces.MultiDiscrete(high.astype(np.int64) - start + 1, start=start)
    return spaces.Box(low.astype(np.float32), high.astype(np.float32))


def actions_of(spec: EnvSpec, actions: Any) -> np.ndarray:
    """Actions of Gymnasium, one a game and agent, as a `VecEnv` takes them: [n_envs, n_agents], or numbers behind."""
    shape = (spec.n_envs, spec.n_agents)
    if spec.continuous_actions is None:
        return np.asarray(actions, dtype=np.int64).reshape(shape)
    return np.asarray(actions, dtype=np.float32).reshape(*shape, spec.continuous_actions.dim)


def seen_by(observation: Observation, game: int, agent: int) -> dict[str, Any]:
    """The observation of one agent of one game, as copies: an environment may use its memory again. Truth values are
    int8, which `Discrete.sample(mask)` asks for."""
    return {name: _plain(value[game, agent]) for name, value in observation.items()}


def seen_by_all(observation: Observation) -> dict[str, Any]:
    """The observations of all games of one agent each, as copies: arrays [n_envs, ...], and tuples of texts."""
    return {name: _batch(value) for name, value in observation.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    array = np.array(on_host(value))
    return array.astype(np.int8) if array.dtype == bool else array


def _batch(value: Any) -> Any:
    if str(value.dtype) == "object":
        return tuple(value[game, 0] for game in range(value.shape[0]))
    return _plain(value[:, 0])


def info_of(step: Step, game: int) -> dict[str, float]:
    """The metrics of a step of one game (`EnvSpec.metrics`)."""
    return {name: float(value[game]) for name, value in step.info.items()}
