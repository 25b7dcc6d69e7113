"""Our environments through the interfaces of PettingZoo (several agents) and Gymnasium (one agent).

Both wrap a `VecEnv` of one game: `parallel_env(EscapeRoom(seeds, n_envs=1))`. The mechanism is set on the wrapped
environment, `adapter.env.set_mechanism(values)`, before or during an episode.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Observation, Step, on_host
from llmrl.core.spaces import Channel

Space = spaces.Dict
_TEXT_LENGTH = 100_000


def observation_space(observation: dict[str, Channel], seed: int | None = None) -> Space:
    """What one agent sees: a dictionary with one entry a channel."""
    return Space({name: _channel_space(channel) for name, channel in observation.items()}, seed=seed)


def _channel_space(channel: Channel) -> spaces.Space[Any]:
    if channel.dtype == "bool":
        return spaces.MultiBinary(channel.shape)
    if channel.dtype == "object":
        return spaces.Text(_TEXT_LENGTH, min_length=0)
    return spaces.Box(channel.low, channel.high, channel.shape, np.dtype(channel.dtype).type)


def _single(env: VecEnv) -> VecEnv:
    if env.spec.n_envs != 1:
        raise ConfigError(f"PettingZoo and Gymnasium play one game at a time: build {env.spec.name} with n_envs=1")
    return env


def _seen(observation: Observation, agent: int) -> dict[str, Any]:
    """The observation of one agent of the only game, as copies: an environment may use its memory again. Truth values
    as int8, which `Discrete.sample(mask)` asks for."""
    seen = {name: value[0][agent] for name, value in observation.items()}
    seen = {name: value if isinstance(value, str) else np.array(on_host(value)) for name, value in seen.items()}
    return {n: x.astype(np.int8) if not isinstance(x, str) and x.dtype == bool else x for n, x in seen.items()}


def _info(step: Step) -> dict[str, float]:
    return {name: float(value[0]) for name, value in step.info.items()}


class ParallelAdapter(ParallelEnv[str, dict[str, Any], int]):  # type: ignore[misc]
    """A `VecEnv` of one game as a PettingZoo `ParallelEnv`; agents are `player_0`, `player_1`, ...

    Every agent's info holds the metrics of the step (`EnvSpec.metrics`) and the agent's own `base_reward`.

    Raises:
        ConfigError: an environment of more than one game.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env = _single(env)
        self.metadata = {"name": f"llmrl_{env.spec.name}", "render_modes": ["rgb_array"]}
        self.render_mode = "rgb_array"
        self.possible_agents = [f"player_{i}" for i in range(env.spec.n_agents)]
        self.agents: list[str] = []
        self.observation_spaces = {a: observation_space(dict(env.spec.observation)) for a in self.possible_agents}
        self.action_spaces = {a: spaces.Discrete(env.spec.n_actions) for a in self.possible_agents}

    def observation_space(self, agent: str) -> Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """`options` may hold `context`, an index into `EnvSpec.contexts`."""
        if options and "context" in options:
            self.env.set_context(options["context"])
        observation = self.env.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return {a: _seen(observation, i) for i, a in enumerate(self.agents)}, {a: {} for a in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[
        dict[str, dict[str, Any]], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:
        agents = self.agents
        step = self.env.step(np.array([[int(actions[agent]) for agent in agents]]))
        terminated, truncated, metrics = bool(step.terminated[0]), bool(step.truncated[0]), _info(step)
        if terminated or truncated:
            self.agents = []
        return (
            {a: _seen(step.observation, i) for i, a in enumerate(agents)},
            {a: float(step.reward[0][i]) for i, a in enumerate(agents)},
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            {a: {**metrics, "base_reward": float(step.base_reward[0][i])} for i, a in enumerate(agents)},
        )

    def render(self) -> np.ndarray:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def parallel_env(env: VecEnv) -> ParallelAdapter:
    """The PettingZoo environment of a `VecEnv` of one game."""
    return ParallelAdapter(env)


class GymnasiumAdapter(gymnasium.Env[dict[str, Any], np.int64]):
    """A `VecEnv` of one game with one agent as a Gymnasium `Env`.

    Raises:
        ConfigError: an environment of more than one game or more than one agent.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, env: VecEnv, render_mode: str | None = None) -> None:
        self.env = _single(env)
        if env.spec.n_agents != 1:
            raise ConfigError(f"Gymnasium is for one agent: {env.spec.name} has {env.spec.n_agents}, use parallel_env")
        self.render_mode = render_mode
        self.observation_space = observation_space(dict(env.spec.observation))
        self.action_space = spaces.Discrete(env.spec.n_actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """`options` may hold `context`, an index into `EnvSpec.contexts`."""
        super().reset(seed=seed)
        if options and "context" in options:
            self.env.set_context(options["context"])
        return _seen(self.env.reset(seed=seed), 0), {}

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        step = self.env.step(np.array([[int(action)]]))
        info = {**_info(step), "base_reward": float(step.base_reward[0][0])}
        reward, ends = float(step.reward[0][0]), (bool(step.terminated[0]), bool(step.truncated[0]))
        return _seen(step.observation, 0), reward, *ends, info

    def render(self) -> np.ndarray | None:
        return self.env.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.env.close()
