"""A `VecEnv` of one game as a PettingZoo `ParallelEnv`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.envs.adapters.gymnasium_env import (
    build_action_space,
    build_observation_space,
    copy_agent_observation,
    read_step_metrics,
    to_vec_env_actions,
)

Space = spaces.Space[Any]
AgentDicts = dict[str, dict[str, Any]]


class ParallelAdapter(ParallelEnv[str, dict[str, Any], Any]):  # type: ignore[misc]
    """A `VecEnv` of one game as a PettingZoo `ParallelEnv`.

    Agents have the names in `EnvSpec.agent_names`, or `player_0`, `player_1`, ... After a step, every agent's info
    contains the metrics of the step (`EnvSpec.per_step`) and the agent's `base_reward`. The mechanism is set on the
    wrapped environment, `adapter.env.set_mechanism(values)`, before or during an episode.

    Args:
        env: environment to wrap.
        render_mode: `rgb_array`, or None for no rendering.

    Raises:
        ConfigError: the environment has more than one game.
    """

    def __init__(self, env: VecEnv, render_mode: str | None = "rgb_array") -> None:
        spec = env.spec
        if spec.n_envs != 1:
            raise ConfigError(f"a PettingZoo ParallelEnv contains one game; create {spec.name} with n_envs=1")
        self.env = env
        self.metadata = {"name": f"llmrl_{spec.name}", "render_modes": ["rgb_array"]}
        self.render_mode = render_mode
        names = list(spec.agent_names)
        self.possible_agents = (
            names if len(set(names)) == spec.n_agents else [f"player_{i}" for i in range(spec.n_agents)]
        )
        self.agents: list[str] = []
        self.observation_spaces = {agent: build_observation_space(spec) for agent in self.possible_agents}
        self.action_spaces = {agent: build_action_space(spec) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDicts, AgentDicts]:
        """Start an episode; return observations and infos by agent.

        `options` may contain `context`, an index into `EnvSpec.contexts`.
        """
        if options and "context" in options:
            self.env.set_context(options["context"])
        observation = self.env.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return {agent: copy_agent_observation(observation, 0, i) for i, agent in enumerate(self.agents)}, {
            agent: {} for agent in self.agents
        }

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[AgentDicts, dict[str, float], dict[str, bool], dict[str, bool], AgentDicts]:
        agents = self.agents
        step = self.env.step(to_vec_env_actions(self.env.spec, [actions[agent] for agent in agents]))
        terminated, truncated, metrics = bool(step.terminated[0]), bool(step.truncated[0]), read_step_metrics(step, 0)
        if terminated or truncated:
            self.agents = []
        return (
            {agent: copy_agent_observation(step.observation, 0, i) for i, agent in enumerate(agents)},
            {agent: float(step.reward[0][i]) for i, agent in enumerate(agents)},
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            {agent: {**metrics, "base_reward": float(step.base_reward[0][i])} for i, agent in enumerate(agents)},
        )

    def render(self) -> np.ndarray | None:
        return self.env.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.env.close()
