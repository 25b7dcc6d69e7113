"""The scenarios of the multi-agent particle environment: spread, tag, reference, and speaker with listeners."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Interval

from llmrl.core.ranges import NonNegativeInt, PositiveInt, UnitInterval
from llmrl.core.spaces import Aggregate
from llmrl.envs.particles.physics import MOVES, Bodies, ParticleWorld
from llmrl.envs.particles.scenario import Scenario, build_slices, compute_lengths, concatenate_features

GOAL_DISTANCE = 0.15  # maximum distance at which a landmark counts as reached, in length units
COVERED_DISTANCE = 0.1  # distance below which a landmark counts as covered, in length units
CATCH_REWARD = 10.0  # simple_tag: reward of adversaries for each contact in a step
# simple_reference and simple_speaker_listener: observed colors of the three landmarks, [3, RGB]; number of words.
REFERENCE_COLORS = np.full((3, 3), 0.25) + 0.5 * np.eye(3)
N_REFERENCE_WORDS = 10
SPEAKER_COLORS = np.full((3, 3), 0.15) + 0.5 * np.eye(3)
N_SPEAKER_WORDS = 3


class SimpleSpread(Scenario):
    """As many landmarks as agents, all visible to all (Lowe et al., 2017; rewards as in `mpe2.simple_spread_v3`).

    **Agents.** `agent_0`, `agent_1`, ..., solid discs of radius 0.15.

    **Reward.** -(1 - local_ratio) * D - local_ratio * c. D, the same for all agents, is the sum over landmarks of the
    distance to the nearest agent; c is the number of agents that overlap with the rewarded agent.

    **Metrics.** `collisions`: pairs of agents that overlap, summed over the episode. `landmarks_covered`: landmarks
    with an agent closer than 0.1, in the last step. `mean_distance`: mean over landmarks and steps of the distance to
    the nearest agent. `success`: every landmark has an agent within 0.15 in the last step.

    Args:
        n_agents: number of agents and number of landmarks.
        local_ratio: weight of c, the agent's collisions; D has the weight 1 - local_ratio.
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
        bodies = Bodies.create(names, radius=0.15, n_landmarks=n_agents, landmark_radius=0.05, is_solid=True)
        others_size = 2 * (n_agents - 1)
        slices = build_slices(velocity=2, position=2, landmarks=2 * n_agents, agents=others_size, heard=others_size)
        super().__init__(bodies, (slices,) * n_agents)
        self._pair_first_agents, self._pair_second_agents = np.triu_indices(n_agents, k=1)

    def observe(self, world: ParticleWorld) -> np.ndarray:
        return concatenate_features(
            world,
            world.velocity,
            world.agent_positions,
            self._compute_offsets_to_landmarks(world),
            self._compute_offsets_to_others(world),
            world.messages[:, self._other_agents],
        )

    def compute_rewards(self, world: ParticleWorld) -> np.ndarray:
        is_contact = self._find_contacts(world, self._pair_first_agents, self._pair_second_agents)
        n_collisions = np.zeros(world.velocity.shape[:2])
        for pair, (agent, partner) in enumerate(zip(self._pair_first_agents, self._pair_second_agents, strict=True)):
            n_collisions[:, agent] += is_contact[:, pair]
            n_collisions[:, partner] += is_contact[:, pair]
        shared_reward = -_compute_nearest_agent_distances(world).sum(axis=1, keepdims=True)
        return np.asarray(shared_reward * (1 - self.local_ratio) - n_collisions * self.local_ratio)

    def compute_metrics(self, world: ParticleWorld) -> dict[str, np.ndarray]:
        nearest_distances = _compute_nearest_agent_distances(world)
        return {
            "collisions": self._find_contacts(world, self._pair_first_agents, self._pair_second_agents).sum(axis=1),
            "landmarks_covered": (nearest_distances < COVERED_DISTANCE).sum(axis=1),
            "mean_distance": nearest_distances.mean(axis=1),
            "success": (nearest_distances <= GOAL_DISTANCE).all(axis=1),
        }


def _compute_nearest_agent_distances(world: ParticleWorld) -> np.ndarray:
    """Return the distance of the nearest agent to each landmark, [n_envs, L]."""
    return np.asarray(
        compute_lengths(world.agent_positions[:, :, None] - world.landmark_positions[:, None]).min(axis=1)
    )


class SimpleTag(Scenario):
    """Adversaries (predators) pursue good agents (prey) (Lowe et al., 2017; rewards as in `mpe2.simple_tag_v3`).

    **Agents.** `adversary_0`, ... (radius 0.075, at most 1.0 units per second), then the good agents `agent_0`, ...
    (0.05, at most 1.3). Obstacles are solid and have a radius of 0.2.

    **Reward.** Every adversary: +10 for each contact of any adversary with any good agent. Good agents: -10 for each
    adversary that touches them, minus a penalty for each coordinate. For its absolute value d, the penalty is 0 up to
    d = 0.9, then 10 * (d - 0.9) up to d = 1, then exp(2 * d - 2), at most 10.

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
        group_sizes = [n_adversaries, n_good]
        bodies = Bodies.create(
            names,
            radius=np.repeat([0.075, 0.05], group_sizes),
            n_landmarks=n_obstacles,
            landmark_radius=0.2,
            is_solid=True,
            has_solid_landmarks=True,
            acceleration=np.repeat([3.0, 4.0], group_sizes),
            max_speed=np.repeat([1.0, 1.3], group_sizes),
        )
        n_observed_agents = [(n_adversaries - 1, n_good)] * n_adversaries + [(n_adversaries, n_good - 1)] * n_good
        vector_slices = (
            build_slices(
                velocity=2,
                position=2,
                obstacles=2 * n_obstacles,
                adversaries=2 * n_observed_adversaries,
                good=2 * n_observed_good,
                good_velocities=2 * n_observed_good,
            )
            for n_observed_adversaries, n_observed_good in n_observed_agents
        )
        super().__init__(bodies, tuple(vector_slices))
        self.start_half_width[len(names) :] = 0.9
        self._pair_predators, self._pair_prey = (x.ravel() for x in np.meshgrid(predators, prey, indexing="ij"))
        # Row i: good agents whose velocities agent i observes. If agent i is a good agent, the list without it is one
        # shorter and is padded with -1, the index of a row of zeros.
        self._observed_prey = np.array(
            [[*(j for j in prey if j != i), *([-1] if i in prey else [])] for i in range(len(names))]
        )

    def observe(self, world: ParticleWorld) -> np.ndarray:
        velocity = np.concatenate([world.velocity, np.zeros_like(world.velocity[:, :1])], axis=1)
        return concatenate_features(
            world,
            world.velocity,
            world.agent_positions,
            self._compute_offsets_to_landmarks(world),
            self._compute_offsets_to_others(world),
            velocity[:, self._observed_prey],
        )

    def compute_rewards(self, world: ParticleWorld) -> np.ndarray:
        is_catch = self._find_catches(world)
        x = np.abs(world.agent_positions[:, self.n_adversaries :])
        penalties = np.where(x < 0.9, 0.0, np.where(x < 1.0, (x - 0.9) * 10, np.exp(2 * np.minimum(x, 3.0) - 2)))
        penalties = np.minimum(penalties, 10.0)  # of each coordinate, [n_envs, n_good, 2]
        good_rewards = -CATCH_REWARD * is_catch.sum(axis=1) - penalties[..., 0] - penalties[..., 1]
        predator_rewards = np.repeat(CATCH_REWARD * is_catch.sum(axis=(1, 2))[:, None], self.n_adversaries, axis=1)
        return np.concatenate([predator_rewards, good_rewards], axis=1)

    def compute_metrics(self, world: ParticleWorld) -> dict[str, np.ndarray]:
        return {"catches": self._find_catches(world).sum(axis=(1, 2))}

    def compute_colors(self, goal_landmark: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return fill and outline [E, 3] uint8: shades of red for adversaries, of green for good agents."""
        fill, outline = super().compute_colors(goal_landmark)
        for start, count, channel in ((0, self.n_adversaries, 0), (self.n_adversaries, self.n_good, 1)):
            fill[start : start + count] = (40 + 110 * np.linspace(0, 1, count + 1)[:-1])[:, None].astype(np.uint8)
            fill[start : start + count, channel] = 225
        return fill, outline

    def _find_catches(self, world: ParticleWorld) -> np.ndarray:
        """Return which adversaries touch which good agents, [n_envs, n_adversaries, n_good] bool."""
        is_contact = self._find_contacts(world, self._pair_predators, self._pair_prey)
        return is_contact.reshape(-1, self.n_adversaries, self.n_good)


class GuidedScenario(Scenario):
    """Base class of scenarios in which some agents observe goals of others; a goal is a red, green or blue landmark."""

    metrics: ClassVar[dict[str, Aggregate]] = {"distance_to_goal": "mean", "success": "last"}

    def compute_metrics(self, world: ParticleWorld) -> dict[str, np.ndarray]:
        distance = compute_lengths(self._compute_offsets_from_goals(world))
        return {"distance_to_goal": distance.mean(axis=1), "success": (distance <= GOAL_DISTANCE).all(axis=1)}

    def compute_colors(self, goal_landmark: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return fill and outline [E, 3] uint8; the outline of an agent with a goal has the color of its landmark."""
        n_agents = self.bodies.n_agents
        fill, outline = super().compute_colors(goal_landmark)
        landmark_colors = (40 + 190 * np.eye(3)).astype(np.uint8)
        fill[n_agents:] = landmark_colors
        # Hues of agents differ from those of landmarks.
        fill[:n_agents] = 255 - (255 - fill[:n_agents][:, [1, 2, 0]]) // 2
        for (_, agent), landmark in zip(self.guide_pairs, goal_landmark, strict=True):
            outline[agent] = landmark_colors[landmark]
        return fill, outline

    def _compute_offsets_from_goals(self, world: ParticleWorld) -> np.ndarray:
        """Return the offset from each of the G goals' landmarks to the agent that must reach it, [n_envs, G, 2]."""
        targets = np.take_along_axis(world.landmark_positions, world.goal_landmark[:, :, None], axis=1)
        return np.asarray(world.agent_positions[:, [agent for _, agent in self.guide_pairs]] - targets)


class SimpleReference(GuidedScenario):
    """Each agent observes the goal of the next agent (Lowe et al., 2017; rewards as in `mpe2.simple_reference_v3`).

    **Agents.** `agent_0`, `agent_1`, ...: agent i observes which of the three landmarks agent i + 1 must reach; the
    last agent observes the goal of agent 0. All agents observe each other's words. The published environment has two
    agents; more agents are a generalization. No disc is solid.

    **Actions.** Each action combines one of five moves and one of ten words: action 5 * word + move. Words have no
    fixed meaning.

    **Reward.** local_ratio * r_i + (1 - local_ratio) * (mean of r over all agents), where -r_i is the distance between
    agent i + 1 and its goal.

    **Metrics.** `distance_to_goal`: mean over agents and steps. `success`: every agent is within 0.15 of its goal in
    the last step.

    Args:
        n_agents: number of agents, >= 2.
        local_ratio: weight of r_i; the mean over all agents has the weight 1 - local_ratio.
    """

    name = "simple_reference"

    def __init__(self, n_agents: Annotated[int, Ge(2)] = 2, local_ratio: UnitInterval = 0.5) -> None:
        self.n_agents, self.local_ratio = n_agents, local_ratio
        self.message_dim = N_REFERENCE_WORDS
        self.action_names = tuple(f"{move}_say_{word}" for word in range(N_REFERENCE_WORDS) for move in MOVES)
        self.guide_pairs = tuple((i, (i + 1) % n_agents) for i in range(n_agents))
        names = tuple(f"agent_{i}" for i in range(n_agents))
        slices = build_slices(velocity=2, landmarks=6, told_goal=3, heard=N_REFERENCE_WORDS * (n_agents - 1))
        bodies = Bodies.create(names, radius=0.05, n_landmarks=len(REFERENCE_COLORS), landmark_radius=0.05)
        super().__init__(bodies, (slices,) * n_agents)

    def decode_actions(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return action % len(MOVES), np.eye(N_REFERENCE_WORDS)[action // len(MOVES)]

    def observe(self, world: ParticleWorld) -> np.ndarray:
        return concatenate_features(
            world,
            world.velocity,
            self._compute_offsets_to_landmarks(world),
            REFERENCE_COLORS[world.goal_landmark],
            world.messages[:, self._other_agents],
        )

    def compute_rewards(self, world: ParticleWorld) -> np.ndarray:
        local_rewards = -compute_lengths(self._compute_offsets_from_goals(world))
        shared_reward = local_rewards.sum(axis=1, keepdims=True) / self.n_agents
        return np.asarray(shared_reward * (1 - self.local_ratio) + local_rewards * self.local_ratio)


class SimpleSpeakerListener(GuidedScenario):
    """A speaker and its listeners (Lowe et al., 2017; rewards as in `mpe2.simple_speaker_listener_v4`).

    **Agents.** `speaker_0`, which cannot move and observes only the color of each listener's goal, then `listener_0`,
    ..., which observe the three landmarks and the speaker's word for them. The published environment has one listener;
    more listeners, each with another goal and word, are a generalization. No disc is solid.

    **Actions.** 0 to 4 are moves of listeners. From 5 on, there are 3^k actions of the speaker, each of which says one
    of 3 words to each of k listeners. `action_mask` marks each agent's actions. In `mpe2` the speaker's actions begin
    at 0.

    **Reward.** Minus the mean over listeners of the squared distance to the goal, the same for all agents.

    **Metrics.** `distance_to_goal`: mean over listeners and steps. `success`: every listener is within 0.15 of its goal
    in the last step.

    Args:
        n_agents: number of agents, including the speaker, 2 to 5. More listeners would have too many combinations of
            words.
    """

    name = "simple_speaker_listener"

    def __init__(self, n_agents: Annotated[int, Interval(ge=2, le=5)] = 2) -> None:
        self.n_agents, self.n_listeners = n_agents, n_agents - 1
        listeners = range(self.n_listeners)
        word_combinations = np.array(list(np.ndindex(*(N_SPEAKER_WORDS,) * self.n_listeners)))  # [3^k, k]
        self.message_dim = N_SPEAKER_WORDS * self.n_listeners
        self.action_names = (*MOVES, *("say_" + "_".join(map(str, words)) for words in word_combinations))
        self.legal_actions = np.zeros((n_agents, len(self.action_names)), dtype=bool)
        self.legal_actions[0, len(MOVES) :] = True
        self.legal_actions[1:, : len(MOVES)] = True
        self.guide_pairs = tuple((0, 1 + k) for k in listeners)
        names = ("speaker_0", *(f"listener_{k}" for k in listeners))
        vector_slices = (
            build_slices(told_goal=3 * self.n_listeners),
            *(build_slices(velocity=2, landmarks=6, heard=N_SPEAKER_WORDS) for _ in listeners),
        )
        is_movable = np.arange(n_agents) > 0
        bodies = Bodies.create(names, 0.075, len(SPEAKER_COLORS), landmark_radius=0.04, is_movable=is_movable)
        super().__init__(bodies, vector_slices)
        self._messages_by_action = np.eye(N_SPEAKER_WORDS)[word_combinations].reshape(-1, self.message_dim)

    def decode_actions(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        messages = np.zeros((*action.shape, self.message_dim))
        messages[:, 0] = self._messages_by_action[action[:, 0] - len(MOVES)]
        return np.where(np.arange(self.n_agents) > 0, action, 0), messages

    def observe(self, world: ParticleWorld) -> np.ndarray:
        n_envs = len(world.goal_landmark)
        observation = np.zeros((n_envs, self.n_agents, self.vector_width), dtype=np.float32)
        observation[:, 0, : 3 * self.n_listeners] = SPEAKER_COLORS[world.goal_landmark].reshape(n_envs, -1)
        observation[:, 1:, :2] = world.velocity[:, 1:]
        observation[:, 1:, 2:8] = self._compute_offsets_to_landmarks(world)[:, 1:].reshape(n_envs, self.n_listeners, 6)
        observation[:, 1:, 8:11] = world.messages[:, 0].reshape(n_envs, self.n_listeners, N_SPEAKER_WORDS)
        return observation

    def compute_rewards(self, world: ParticleWorld) -> np.ndarray:
        offset = self._compute_offsets_from_goals(world)
        squared_distance = np.square(offset[..., 0]) + np.square(offset[..., 1])
        return np.repeat(-squared_distance.mean(axis=1, keepdims=True), self.n_agents, axis=1)
