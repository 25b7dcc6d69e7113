"""Base class of scenarios of particle environments: bodies, observations, actions, rewards and metrics.

`EnvSpec.observation["vector"].parts[i]` maps names to slices of agent i's vector. Positions, offsets and velocities
are pairs (x to the right, y up). Coordinates of start positions are in [-1, 1]. An offset is a position minus the
observing agent's position. Entries for other agents are in the order of `EnvSpec.agent_names`.

| scenario, agent | name | entries | meaning |
| --- | --- | --- | --- |
| simple_spread, all | `velocity` | 2 | own velocity, units per second (a step is 0.1 s) |
| | `position` | 2 | own position |
| | `landmarks` | 2 each | offset to each landmark |
| | `agents` | 2 each | offset to each other agent |
| | `heard` | 2 each | zeros: there are no messages |
| simple_tag, all | `velocity`, `position` | 2 + 2 | own |
| | `obstacles` | 2 each | offset to each obstacle |
| | `adversaries` | 2 each | offset to each other adversary |
| | `good` | 2 each | offset to each other good agent |
| | `good_velocities` | 2 each | velocity of each other good agent |
| simple_reference, all | `velocity` | 2 | own |
| | `landmarks` | 6 | offset to the red, the green and the blue landmark |
| | `told_goal` | 3 | red, green, blue of the landmark that the next agent of the ring must reach |
| | `heard` | 10 each | the word each other agent said in this step, one-hot (zeros before the first step) |
| simple_speaker_listener, speaker | `told_goal` | 3 each | red, green, blue of each listener's landmark |
| simple_speaker_listener, listeners | `velocity` | 2 | own |
| | `landmarks` | 6 | offset to the red, the green and the blue landmark |
| | `heard` | 3 | the word the speaker said to this listener in this step, one-hot (zeros before the first step) |

Entries that no part covers are padding, always zero.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from llmrl.core.spaces import Aggregate
from llmrl.envs.particles.physics import MOVES, Bodies, ParticleWorld

NamedSlices = Mapping[str, slice]


def build_slices(**sizes: int) -> NamedSlices:
    """Return consecutive slices of the given lengths by name.

    >>> build_slices(velocity=2, position=2)
    {'velocity': slice(0, 2, None), 'position': slice(2, 4, None)}
    """
    stops = itertools.accumulate(sizes.values())
    return {name: slice(stop - size, stop) for (name, size), stop in zip(sizes.items(), stops, strict=True)}


LANDMARK_COLOR = np.array([110, 110, 110], dtype=np.uint8)
OUTLINE_COLOR = np.array([40, 40, 40], dtype=np.uint8)


class Scenario(ABC):
    """Base class of scenarios: goals, observations and rewards. `ParticleWorld` contains the state.

    Attributes:
        bodies: agents, and landmarks or obstacles.
        vector_slices: entry name -> slice of the observation vector, one mapping per agent.
        vector_width: length of the longest observation vector.
        metrics: per-step metrics with their aggregation over an episode.
        action_names: names of all actions.
        legal_actions: whether each agent may take each action, [A, n_actions] bool; None: all actions are legal.
        message_dim: length of an agent's message vector in a step.
        guide_pairs: for each goal, the indices of the agent that observes it and of the agent that must reach it.
        start_half_width: half of the side of the square, centered at 0, in which each disc starts, [E].
    """

    name: ClassVar[str]
    metrics: ClassVar[dict[str, Aggregate]]
    action_names: tuple[str, ...] = MOVES
    legal_actions: np.ndarray | None = None
    message_dim: int = 2
    guide_pairs: tuple[tuple[int, int], ...] = ()
    n_landmarks: int

    def __init__(self, bodies: Bodies, vector_slices: tuple[NamedSlices, ...]) -> None:
        self.bodies, self.vector_slices = bodies, vector_slices
        self.vector_width = max(int(entry.stop) for slices in vector_slices for entry in slices.values())
        self.start_half_width = np.ones(len(bodies.radius))
        self.n_landmarks = len(bodies.radius) - bodies.n_agents
        # Row i: all agents except i, in order.
        self._other_agents = np.array(
            [[j for j in range(bodies.n_agents) if j != i] for i in range(bodies.n_agents)], dtype=np.int64
        )

    def sample_start(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return random start positions [n, E, 2] and the landmarks of the goals [n, G] of `n` games."""
        position = rng.uniform(-1.0, 1.0, (n, len(self.start_half_width), 2)) * self.start_half_width[:, None]
        return position, rng.integers(self.n_landmarks, size=(n, len(self.guide_pairs)))

    def decode_actions(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return indices into `MOVES` [n_envs, A] and messages [n_envs, A, message_dim], given actions [n_envs, A]."""
        return action, np.zeros((*action.shape, self.message_dim))

    @abstractmethod
    def observe(self, world: ParticleWorld) -> np.ndarray:
        """Return observation vectors, [n_envs, A, vector_width] float32; shorter vectors are padded with zeros."""

    @abstractmethod
    def compute_rewards(self, world: ParticleWorld) -> np.ndarray:
        """Return rewards, [n_envs, A] float64."""

    @abstractmethod
    def compute_metrics(self, world: ParticleWorld) -> dict[str, np.ndarray]:
        """Return the values of the `metrics` in the current state, each [n_envs]."""

    def compute_colors(self, goal_landmark: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return fill and outline colors of the discs in a frame, [E, 3] uint8 each, given the goals [G] of a game."""
        n_agents = self.bodies.n_agents
        fill_colors = np.concatenate([compute_agent_colors(n_agents), np.tile(LANDMARK_COLOR, (self.n_landmarks, 1))])
        return fill_colors, np.tile(OUTLINE_COLOR, (len(fill_colors), 1))

    def _compute_offsets_to_landmarks(self, world: ParticleWorld) -> np.ndarray:
        """Return offsets from each agent to each landmark, [n_envs, A, L, 2]."""
        return np.asarray(world.landmark_positions[:, None] - world.agent_positions[:, :, None])

    def _compute_offsets_to_others(self, world: ParticleWorld) -> np.ndarray:
        """Return offsets from each agent to every other agent, [n_envs, A, A - 1, 2]."""
        return np.asarray(world.agent_positions[:, self._other_agents] - world.agent_positions[:, :, None])

    def _find_contacts(self, world: ParticleWorld, agents: np.ndarray, partners: np.ndarray) -> np.ndarray:
        """Return whether agents `agents[k]` and `partners[k]` overlap, [n_envs, len(agents)] bool."""
        distance = compute_lengths(world.agent_positions[:, agents] - world.agent_positions[:, partners])
        return np.asarray(distance < self.bodies.radius[agents] + self.bodies.radius[partners])


def compute_lengths(vector: np.ndarray) -> np.ndarray:
    """Return the Euclidean lengths [...] of vectors [..., 2]."""
    return np.asarray(np.sqrt(np.square(vector[..., 0]) + np.square(vector[..., 1])))


def compute_agent_colors(n_agents: int) -> np.ndarray:
    """Return a color for each agent, [n_agents, 3] uint8; hues are evenly spaced."""
    phase = 2 * np.pi * (np.arange(n_agents)[:, None] / max(n_agents, 1) + np.array([0.0, -1 / 3, 1 / 3]))
    return np.asarray(np.clip(135 + 110 * np.cos(phase), 0, 255), dtype=np.uint8)


def concatenate_features(world: ParticleWorld, *features: np.ndarray) -> np.ndarray:
    """Return arrays [n_envs, A, ...] flattened after the agents' axis and concatenated, [n_envs, A, width] float32."""
    flat_features = [feature.reshape(*world.velocity.shape[:2], -1) for feature in features]
    return np.concatenate(flat_features, axis=2, dtype=np.float32, casting="same_kind")
