"""`simple_reference`: each agent must learn its goal from another agent's messages while going to its own goal."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Ge

from llmrl.core.ranges import UnitInterval
from llmrl.envs.particles.physics import MOVES, Bodies, Landmarks, ParticleWorld
from llmrl.envs.particles.scenario import GuidedScenario, concatenate_features, length, parts

COLORS = np.full((3, 3), 0.25) + 0.5 * np.eye(3)
WORDS = 10


class SimpleReference(GuidedScenario):
    """Each agent observes the goal of the next agent (Lowe et al., 2017; rewards as in `mpe2.simple_reference_v3`).

    **Agents.** `agent_0`, `agent_1`, ... in a ring: agent i observes which of the three landmarks agent i + 1 must
    reach; the last agent observes the goal of agent 0. All agents hear each other. The published game has two agents;
    longer rings are a generalization. No disc is solid.

    **Actions.** One of five moves and one of ten words at once: action 5 * word + move. Words have no fixed meaning.

    **Reward.** local_ratio * r_i + (1 - local_ratio) * the mean of r over all agents, where r_i is minus the distance
    of the agent that agent i guides to its goal.

    **Metrics.** `distance_to_goal`: mean over agents, mean over steps. `success`: every agent is within 0.15 of its
    goal in the last step.

    Args:
        n_agents: length of the ring, >= 2.
        local_ratio: weight of the guided agent's distance; the mean over all agents has the weight 1 - local_ratio.
    """

    name = "simple_reference"

    def __init__(self, n_agents: Annotated[int, Ge(2)] = 2, local_ratio: UnitInterval = 0.5) -> None:
        self.n_agents, self.local_ratio = n_agents, local_ratio
        self.words = WORDS
        self.action_names = tuple(f"{move}_say_{word}" for word in range(WORDS) for move in MOVES)
        self.guides = tuple((i, (i + 1) % n_agents) for i in range(n_agents))
        names = tuple(f"agent_{i}" for i in range(n_agents))
        layout = parts(velocity=2, landmarks=6, told_goal=3, heard=WORDS * (n_agents - 1))
        super().__init__(Bodies.create(names, 0.05, Landmarks(len(COLORS), 0.05)), (layout,) * n_agents)

    def decode(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return action % len(MOVES), np.eye(WORDS)[action // len(MOVES)]

    def observe(self, world: ParticleWorld) -> np.ndarray:
        return concatenate_features(
            world,
            world.velocity,
            self._offsets_to_landmarks(world),
            COLORS[world.goal],
            world.said[:, self._other_agents],
        )

    def reward(self, world: ParticleWorld) -> np.ndarray:
        local = -length(self._offsets_from_goals(world))
        shared = local.sum(axis=1, keepdims=True) / self.n_agents
        return np.asarray(shared * (1 - self.local_ratio) + local * self.local_ratio)
