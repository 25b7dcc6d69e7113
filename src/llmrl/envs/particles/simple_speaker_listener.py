"""`simple_speaker_listener`: a speaker that observes the goals but cannot move guides listeners that move."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from annotated_types import Interval

from llmrl.envs.particles.physics import MOVES, Bodies, Landmarks, ParticleWorld
from llmrl.envs.particles.scenario import GuidedScenario, parts

COLORS = np.full((3, 3), 0.15) + 0.5 * np.eye(3)
WORDS = 3


class SimpleSpeakerListener(GuidedScenario):
    """A speaker and its listeners (Lowe et al., 2017; rewards as in `mpe2.simple_speaker_listener_v4`).

    **Agents.** `speaker_0`, which cannot move and observes only the color of each listener's goal, then `listener_0`,
    ..., which observe the three landmarks and the word addressed to them. The published game has one listener; more
    listeners, each with its own goal and word, are a generalization. No disc is solid.

    **Actions.** 0 to 4 are moves, for listeners. From 5 on, 3^k actions of the speaker say one of 3 words to each of k
    listeners at once. `action_mask` shows each agent's actions. In `mpe2` the speaker's actions begin at 0.

    **Reward.** Minus the squared distance of a listener to its goal, mean over listeners, the same for all agents.

    **Metrics.** `distance_to_goal`: mean over listeners, mean over steps. `success`: every listener is within 0.15 of
    its goal in the last step.

    Args:
        n_agents: speaker and listeners, 2 to 5. The bound of 5 limits the number of the speaker's actions, 3 to the
            power of the number of listeners.
    """

    name = "simple_speaker_listener"

    def __init__(self, n_agents: Annotated[int, Interval(ge=2, le=5)] = 2) -> None:
        self.n_agents, self.n_listeners = n_agents, n_agents - 1
        listeners = range(self.n_listeners)
        sentences = np.array(list(np.ndindex(*(WORDS,) * self.n_listeners)))  # [3^k, k]
        self.words = WORDS * self.n_listeners
        self.action_names = (*MOVES, *("say_" + "_".join(map(str, words)) for words in sentences))
        self.legal = np.zeros((n_agents, len(self.action_names)), dtype=bool)
        self.legal[0, len(MOVES) :] = True
        self.legal[1:, : len(MOVES)] = True
        self.guides = tuple((0, 1 + k) for k in listeners)
        names = ("speaker_0", *(f"listener_{k}" for k in listeners))
        layouts = (
            parts(told_goal=3 * self.n_listeners),
            *(parts(velocity=2, landmarks=6, heard=WORDS) for _ in listeners),
        )
        movable = np.arange(n_agents) > 0
        super().__init__(Bodies.create(names, 0.075, Landmarks(len(COLORS), 0.04), movable=movable), layouts)
        self._sentences = np.eye(WORDS)[sentences].reshape(len(sentences), self.words)

    def decode(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        messages = np.zeros((*action.shape, self.words))
        messages[:, 0] = self._sentences[action[:, 0] - len(MOVES)]
        return np.where(np.arange(self.n_agents) > 0, action, 0), messages

    def observe(self, world: ParticleWorld) -> np.ndarray:
        n_envs = len(world.goal)
        observation = np.zeros((n_envs, self.n_agents, self.width), dtype=np.float32)
        observation[:, 0, : 3 * self.n_listeners] = COLORS[world.goal].reshape(n_envs, -1)
        observation[:, 1:, :2] = world.velocity[:, 1:]
        observation[:, 1:, 2:8] = self._offsets_to_landmarks(world)[:, 1:].reshape(n_envs, self.n_listeners, 6)
        observation[:, 1:, 8:11] = world.said[:, 0].reshape(n_envs, self.n_listeners, WORDS)
        return observation

    def reward(self, world: ParticleWorld) -> np.ndarray:
        offset = self._offsets_from_goals(world)
        squared = np.square(offset[..., 0]) + np.square(offset[..., 1])
        return np.repeat(-squared.mean(axis=1, keepdims=True), self.n_agents, axis=1)
