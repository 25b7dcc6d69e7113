"""The common base of worlds whose observations are texts and whose actions are a list of moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

from llmrl.envs.pettingzoo.agent_channels import MASK, TEXT_KEY


class ListedMovesWorld(AECEnv):  # type: ignore[misc]
    """A world with the same moves for all agents; the text of an agent is in its info.

    Args:
        name: name of the world.
        agents: names of the agents.
        action_names: texts of the moves.
    """

    def __init__(self, name: str, agents: Sequence[str], action_names: Sequence[str]) -> None:
        super().__init__()
        self.metadata = {"name": name, "render_modes": [], "is_parallelizable": False}
        self.render_mode = None
        self.possible_agents, self.agents = list(agents), list[str]()
        self.action_names = tuple(action_names)
        self._action_space = spaces.Discrete(len(self.action_names))
        self._observation_space = spaces.Dict({MASK: spaces.MultiBinary(len(self.action_names))})

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._action_space

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        """Return the legal moves of an agent: all."""
        return {MASK: np.ones(len(self.action_names), dtype=np.int8)}

    def _begin_episode(self) -> None:
        """Let all agents begin, without rewards and texts."""
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {TEXT_KEY: ""} for agent in self.agents}
