"""`simple_spread`: agents cover all landmarks without collisions."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from llmrl.core.ranges import PositiveInt, UnitInterval
from llmrl.core.spaces import Aggregate
from llmrl.envs.particles.physics import Bodies, Landmarks, ParticleWorld
from llmrl.envs.particles.scenario import NEAR, Scenario, concatenate_features, length, parts

COVERED = 0.1  # distance at which a landmark counts as covered, units


class SimpleSpread(Scenario):
    """As many landmarks as agents, all visible to all (Lowe et al., 2017; rewards as in `mpe2.simple_spread_v3`).

    **Agents.** `agent_0`, `agent_1`, ..., solid discs of radius 0.15.

    **Reward.** -(1 - local_ratio) * D - local_ratio * c, where D is the sum over landmarks of the distance of the
    nearest agent, the same for all agents, and c the number of agents that overlap with the rewarded one.

    **Metrics.** `collisions`: pairs of agents that overlap, summed over the episode. `landmarks_covered`: landmarks
    with an agent closer than 0.1, in the last step. `mean_distance`: mean over landmarks of the distance of the nearest
    agent, mean over steps. `success`: every landmark has an agent within 0.15 in the last step.

    Args:
        n_agents: number of agents, and of landmarks.
        local_ratio: weight of an agent's own collisions; the shared distances have the weight 1 - local_ratio.
    """

    name = "simple_spread"
    metrics: ClassVar[dict[str, Aggregate]] = {
        "collisions": "sum",
        "landmarks_covered": "last",
        "mean_distance": "mean",
        "success": "last",
    }

    def __init__(self, n_agents: PositiveInt = 3, local_ratio: UnitInterval = 0.5) -> None:
        self.n_agents, self.local_ratio = n_agents, local_ratio
        names = tuple(f"agent_{i}" for i in range(n_agents))
        partner_width = 2 * (n_agents - 1)
        layout = parts(velocity=2, position=2, landmarks=2 * n_agents, agents=partner_width, heard=partner_width)
        super().__init__(Bodies.create(names, 0.15, Landmarks(n_agents, 0.05), solid=True), (layout,) * n_agents)
        self._first, self._second = np.triu_indices(n_agents, k=1)

    def observe(self, world: ParticleWorld) -> np.ndarray:
        return concatenate_features(
            world,
            world.velocity,
            world.agents,
            self._offsets_to_landmarks(world),
            self._offsets_to_others(world),
            world.said[:, self._other_agents],
        )

    def reward(self, world: ParticleWorld) -> np.ndarray:
        touching = self._in_contact(world, self._first, self._second)
        collisions = np.zeros(world.velocity.shape[:2])
        for pair, (agent, partner) in enumerate(zip(self._first, self._second, strict=True)):
            collisions[:, agent] += touching[:, pair]
            collisions[:, partner] += touching[:, pair]
        shared = -_nearest(world).sum(axis=1, keepdims=True)
        return np.asarray(shared * (1 - self.local_ratio) - collisions * self.local_ratio)

    def measure(self, world: ParticleWorld) -> dict[str, np.ndarray]:
        nearest = _nearest(world)
        return {
            "collisions": self._in_contact(world, self._first, self._second).sum(axis=1),
            "landmarks_covered": (nearest < COVERED).sum(axis=1),
            "mean_distance": nearest.mean(axis=1),
            "success": (nearest <= NEAR).all(axis=1),
        }


def _nearest(world: ParticleWorld) -> np.ndarray:
    """Return the distance of the nearest agent to each landmark, [n_envs, L]."""
    return np.asarray(length(world.agents[:, :, None] - world.landmarks[:, None]).min(axis=1))
