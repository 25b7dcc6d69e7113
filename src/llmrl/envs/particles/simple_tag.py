"""`simple_tag`: slow adversaries chase fast good agents among obstacles."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.spaces import Aggregate
from llmrl.envs.particles.physics import Bodies, Landmarks, ParticleWorld
from llmrl.envs.particles.scenario import Parts, Scenario, concatenate_features, parts

CATCH = 10.0  # reward of a contact, per step


class SimpleTag(Scenario):
    """Predators and prey (Lowe et al., 2017; rewards as in `mpe2.simple_tag_v3`).

    **Agents.** `adversary_0`, ... (radius 0.075, at most 1.0 units per second), then the good agents `agent_0`, ...
    (0.05, at most 1.3). Obstacles are solid and have a radius of 0.2.

    **Reward.** Adversaries: +10 for each contact of any adversary with any good agent, the same for all of them. Good
    agents: -10 for each adversary that touches them, and a penalty for leaving the arena: for each of x and y, with
    d its absolute value, 0 up to 0.9, then 10 * (d - 0.9) up to 1, then exp(2 * d - 2), at most 10.

    **Metrics.** `catches`: contacts of an adversary with a good agent, summed over the episode.

    Args:
        n_adversaries: number of adversaries.
        n_good: number of good agents.
        n_obstacles: number of obstacles.
    """

    name = "simple_tag"
    metrics: ClassVar[dict[str, Aggregate]] = {"catches": "sum"}

    def __init__(
        self, n_adversaries: PositiveInt = 3, n_good: PositiveInt = 1, n_obstacles: NonNegativeInt = 2
    ) -> None:
        self.n_adversaries, self.n_good, self.n_obstacles = n_adversaries, n_good, n_obstacles
        predators, prey = range(n_adversaries), range(n_adversaries, n_adversaries + n_good)
        names = (*(f"adversary_{i}" for i in predators), *(f"agent_{i}" for i in range(n_good)))
        counts = [n_adversaries, n_good]
        bodies = Bodies.create(
            names,
            np.repeat([0.075, 0.05], counts),
            Landmarks(n_obstacles, 0.2, solid=True),
            solid=True,
            acceleration=np.repeat([3.0, 4.0], counts),
            max_speed=np.repeat([1.0, 1.3], counts),
        )
        layouts = (
            *(_layout(n_adversaries - 1, n_good, n_obstacles) for _ in predators),
            *(_layout(n_adversaries, n_good - 1, n_obstacles) for _ in prey),
        )
        super().__init__(bodies, layouts)
        self.start[len(names) :] = 0.9
        self._predators, self._prey = (x.ravel() for x in np.meshgrid(predators, prey, indexing="ij"))
        # Good agents whose velocities each agent observes; a good agent has a row of zeros (index -1) for its own.
        self._observed_prey = np.array(
            [[*(j for j in prey if j != i), *([-1] if i in prey else [])] for i in range(len(names))]
        )

    def observe(self, world: ParticleWorld) -> np.ndarray:
        velocity = np.concatenate([world.velocity, np.zeros_like(world.velocity[:, :1])], axis=1)
        return concatenate_features(
            world,
            world.velocity,
            world.agents,
            self._offsets_to_landmarks(world),
            self._offsets_to_others(world),
            velocity[:, self._observed_prey],
        )

    def reward(self, world: ParticleWorld) -> np.ndarray:
        catches = self._catches(world)
        d = np.abs(world.agents[:, self.n_adversaries :])
        penalty = np.where(d < 0.9, 0.0, np.where(d < 1.0, (d - 0.9) * 10, np.exp(2 * np.minimum(d, 3.0) - 2)))
        penalty = np.minimum(penalty, 10.0)
        good_rewards = -CATCH * catches.sum(axis=1) - penalty[..., 0] - penalty[..., 1]
        predator_rewards = np.repeat(CATCH * catches.sum(axis=(1, 2))[:, None], self.n_adversaries, axis=1)
        return np.concatenate([predator_rewards, good_rewards], axis=1)

    def measure(self, world: ParticleWorld) -> dict[str, np.ndarray]:
        return {"catches": self._catches(world).sum(axis=(1, 2))}

    def colors(self, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return fill and outline [E, 3] uint8: shades of red for adversaries, of green for good agents."""
        fill, outline = super().colors(goal)
        for start, count, channel in ((0, self.n_adversaries, 0), (self.n_adversaries, self.n_good, 1)):
            shade = np.linspace(0, 1, count + 1)[:-1]
            fill[start : start + count] = (40 + 110 * shade)[:, None].astype(np.uint8)
            fill[start : start + count, channel] = 225
        return fill, outline

    def _catches(self, world: ParticleWorld) -> np.ndarray:
        """Return which adversaries touch which good agents, [n_envs, n_adversaries, n_good] bool."""
        touching = self._in_contact(world, self._predators, self._prey)
        return touching.reshape(-1, self.n_adversaries, self.n_good)


def _layout(adversaries: int, good: int, obstacles: int) -> Parts:
    """Return the layout of an agent that observes so many others."""
    return parts(
        velocity=2,
        position=2,
        obstacles=2 * obstacles,
        adversaries=2 * adversaries,
        good=2 * good,
        good_velocities=2 * good,
    )
