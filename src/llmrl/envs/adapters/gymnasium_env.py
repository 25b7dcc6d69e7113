"""A `VecEnv` with one agent per game as a Gymnasium `Env` (one game) or `VectorEnv` (many games)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.core.records import on_host
from llmrl.envs.adapters.gymnasium_spaces import (
    action_space,
    agent_observation,
    all_observations,
    observation_space,
    step_metrics,
    vec_env_actions,
)


def _check_single_agent(env: VecEnv) -> None:
    if env.spec.n_agents != 1:
        raise ConfigError(
            f"Gymnasium supports one agent per game, and {env.spec.name} has {env.spec.n_agents}; use PettingZoo "
            "(make_env(..., api='pettingzoo'), ParallelAdapter)"
        )


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
            raise ConfigError(f"a Gymnasium Env contains one game; make {env.spec.name} with n_envs=1")
        _check_single_agent(env)
        self.env = env
        self.render_mode = render_mode
        self.observation_space = observation_space(env.spec)
        self.action_space = action_space(env.spec)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; return the observation and an empty info.

        `options` may contain `context`, an index into `EnvSpec.contexts`.
        """
        super().reset(seed=seed)
        if options and "context" in options:
            self.env.set_context(options["context"])
        return agent_observation(self.env.reset(seed=seed), 0, 0), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        step = self.env.step(vec_env_actions(self.env.spec, action))
        info = {**step_metrics(step, 0), "base_reward": float(step.base_reward[0][0])}
        reward, ends = float(step.reward[0][0]), (bool(step.terminated[0]), bool(step.truncated[0]))
        return agent_observation(step.observation, 0, 0), reward, *ends, info

    def render(self) -> np.ndarray | None:
        return self.env.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.env.close()


class GymnasiumVectorAdapter(VectorEnv[dict[str, Any], Any, np.ndarray]):
    """A `VecEnv` of games with one agent each as a Gymnasium `VectorEnv`.

    A game that ended begins its next episode in the following step, whose action is ignored and whose reward is 0
    (`AutoresetMode.NEXT_STEP`). Infos contain the metrics of the step and `base_reward`, each [num_envs].

    Args:
        env: environment to wrap.
        render_mode: `rgb_array`, which renders every game, or None for no rendering.

    Raises:
        ConfigError: the environment has more than one agent.
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, env: VecEnv, render_mode: str | None = None) -> None:
        _check_single_agent(env)
        self.env = env
        self.render_mode = render_mode
        self.num_envs = env.spec.n_envs
        self.single_observation_space = observation_space(env.spec)
        self.single_action_space = action_space(env.spec)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._ended = np.zeros(self.num_envs, dtype=bool)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode in every game; return observations and an empty info.

        One `seed` seeds all games. `options` may contain `context`, an index into `EnvSpec.contexts`.

        Raises:
            ConfigError: `seed` is a list.
        """
        if isinstance(seed, list):
            raise ConfigError(
                "seed must be an integer or None, not a list, because the games of one environment share a stream of "
                "random numbers"
            )
        if options and "context" in options:
            self.env.set_context(options["context"])
        self._ended[:] = False
        return all_observations(self.env.reset(seed=seed)), {}

    def step(self, actions: Any) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        begin = self._ended
        step = self.env.step(vec_env_actions(self.env.spec, actions))
        observation = self.env.reset(mask=begin) if begin.any() else step.observation
        terminated = np.asarray(step.terminated, dtype=bool) & ~begin
        truncated = np.asarray(step.truncated, dtype=bool) & ~begin
        self._ended = terminated | truncated
        arrays = {**step.info, "base_reward": step.base_reward[:, 0]}
        infos: dict[str, Any] = {name: np.array(on_host(value), dtype=np.float64) for name, value in arrays.items()}
        infos |= {f"_{name}": ~begin for name in arrays}
        reward = np.where(begin, 0.0, np.array(on_host(step.reward[:, 0]), dtype=np.float64))
        return all_observations(observation), reward, terminated, truncated, infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        return tuple(map(self.env.render, range(self.num_envs))) if self.render_mode == "rgb_array" else None

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()
