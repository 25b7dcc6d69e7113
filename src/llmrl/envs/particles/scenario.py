"""What a particle world is about: who is in it, what they see and say, and what they are rewarded for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from llmrl.core.spaces import Aggregate
from llmrl.envs.particles.layout import Parts, width
from llmrl.envs.particles.world import MOVES, Bodies, World

NEAR = 0.15  # distance at which a landmark counts as reached, units
GREY = np.array([110, 110, 110], dtype=np.uint8)
DARK = np.array([40, 40, 40], dtype=np.uint8)


class Scenario(ABC):
    """One kind of game; it holds no state, only `World` does.

    Attributes:
        bodies: agents and what stands still.
        layouts: what the entries of each agent's vector mean, one mapping an agent (`llmrl.envs.particles.layout`).
        metrics: per-step numbers and how an episode sums them up.
        action_names: of all actions; `legal` says who may take which.
        legal: [A, n_actions] bool, or None where all agents may take all actions.
        words: length of what an agent says in a step.
        guides: for each goal, the agent that is shown it and the agent that must reach it.
        start: half-width of the square where each disc may start, [E].
    """

    name: ClassVar[str]
    metrics: ClassVar[dict[str, Aggregate]]
    action_names: tuple[str, ...] = MOVES
    legal: np.ndarray | None = None
    words: int = 2
    guides: tuple[tuple[int, int], ...] = ()
    n_landmarks: int

    def __init__(self, bodies: Bodies, layouts: tuple[Parts, ...]) -> None:
        self.bodies, self.layouts = bodies, layouts
        self.width = width(layouts)
        self.start = np.ones(len(bodies.size))
        self.n_landmarks = len(bodies.size) - bodies.n_agents
        # Row i: every agent but i, in order.
        self._others = np.array(
            [[j for j in range(bodies.n_agents) if j != i] for i in range(bodies.n_agents)], dtype=np.int64
        )

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions [n, E, 2] and goals [n, G] of `n` new games."""
        position = rng.uniform(-1.0, 1.0, (n, len(self.start), 2)) * self.start[:, None]
        return position, rng.integers(self.n_landmarks, size=(n, len(self.guides)))

    def decode(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Moves [n_envs, A], indices into `MOVES`, and what is said [n_envs, A, words], of actions [n_envs, A]."""
        return action, np.zeros((*action.shape, self.words))

    def in_mpe2(self, action: np.ndarray) -> np.ndarray:
        """The same actions as `mpe2` numbers them, [n_envs, A]."""
        return action

    @abstractmethod
    def observe(self, world: World) -> np.ndarray:
        """[n_envs, A, width] float32, shorter vectors filled up with zeros."""

    @abstractmethod
    def reward(self, world: World) -> np.ndarray:
        """[n_envs, A] float64."""

    @abstractmethod
    def measure(self, world: World) -> dict[str, np.ndarray]:
        """The numbers named in `metrics`, each [n_envs]."""

    def colours(self, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fill and outline of each disc of a game with goals [G], [E, 3] uint8 each, for pictures."""
        n_agents = self.bodies.n_agents
        fill = np.concatenate([hues(n_agents), np.tile(GREY, (self.n_landmarks, 1))])
        return fill, np.tile(DARK, (len(fill), 1))

    def _offsets_to_landmarks(self, world: World) -> np.ndarray:
        """From each agent to each landmark, [n_envs, A, L, 2]."""
        return np.asarray(world.landmarks[:, None] - world.agents[:, :, None])

    def _offsets_to_others(self, world: World) -> np.ndarray:
        """From each agent to every other, [n_envs, A, A - 1, 2]."""
        return np.asarray(world.agents[:, self._others] - world.agents[:, :, None])

    def _in_contact(self, world: World, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Whether agents a[k] and b[k] overlap, [n_envs, len(a)]."""
        size = self.bodies.size
        return np.asarray(length(world.agents[:, a] - world.agents[:, b]) < size[a] + size[b])

    def _distance_to_goals(self, world: World) -> np.ndarray:
        """From whoever must reach it to each goal, [n_envs, G]."""
        goes = [agent for _, agent in self.guides]
        there = np.take_along_axis(world.landmarks, world.goal[:, :, None], axis=1)
        return length(world.agents[:, goes] - there)


def length(vector: np.ndarray) -> np.ndarray:
    """Euclidean length along the last axis of [..., 2]."""
    return np.asarray(np.sqrt(np.square(vector[..., 0]) + np.square(vector[..., 1])))


def hues(count: int) -> np.ndarray:
    """Colours as different as `count` allows, [count, 3] uint8."""
    phase = 2 * np.pi * (np.arange(count)[:, None] / max(count, 1) + np.array([0.0, -1 / 3, 1 / 3]))
    return np.asarray(np.clip(135 + 110 * np.cos(phase), 0, 255), dtype=np.uint8)


def joined(world: World, *pieces: np.ndarray) -> np.ndarray:
    """Pieces [n_envs, A, ...], flattened behind the agents and put side by side, as float32."""
    lead = world.velocity.shape[:2]
    return np.concatenate([piece.reshape(*lead, -1) for piece in pieces], axis=2, dtype=np.float32, casting="same_kind")
