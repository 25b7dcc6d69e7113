"""Physics of particle environments: discs with velocity, damping, acceleration by actions, and soft contacts.

The equations are those of the multi-agent particle environment (Lowe et al., 2017, arXiv 1706.02275; Mordatch and
Abbeel, 2017, arXiv 1703.04908), for all games and discs at once. Operations have the same order as in `mpe2`, so
results are bit-identical; contacts would amplify any rounding difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from llmrl.core.state_fields import StateFields

STEP_SECONDS = 0.1  # duration of a step
DAMPING = 0.25  # fraction of the velocity that is lost in a step
CONTACT_FORCE = 100.0  # stiffness: force per length unit of penetration; all masses are 1
CONTACT_MARGIN = 1e-3  # width of the soft contact zone, in length units
ACCELERATION = 5.0  # default acceleration of agents, in length units per second squared

MOVES = ("stay", "left", "right", "down", "up")
MOVE_DIRECTIONS = np.array([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])  # (x, y) of each move


@dataclass(frozen=True)
class Bodies:
    """Constant properties of the E discs of an environment.

    The first A are agents, the others landmarks or obstacles, which never move. Lengths have arbitrary units.

    Attributes:
        agent_names: name of each agent, [A].
        radius: radius of each disc, [E].
        is_solid: whether the disc takes part in contacts, [E] bool.
        is_movable: whether the agent can move and be pushed, [A] bool.
        acceleration: acceleration by the agent's action, in units per second squared, [A].
        max_speed: maximum speed, in units per second, [A]; inf: no maximum.
    """

    agent_names: tuple[str, ...]
    radius: np.ndarray
    is_solid: np.ndarray
    is_movable: np.ndarray
    acceleration: np.ndarray
    max_speed: np.ndarray

    @classmethod
    def create(
        cls,
        agent_names: tuple[str, ...],
        radius: float | np.ndarray,
        n_landmarks: int,
        landmark_radius: float,
        *,
        is_solid: bool = False,
        has_solid_landmarks: bool = False,
        is_movable: np.ndarray | None = None,
        acceleration: float | np.ndarray = ACCELERATION,
        max_speed: float | np.ndarray = np.inf,
    ) -> Bodies:
        """Return the bodies of agents and of landmarks or obstacles.

        `is_solid` and `has_solid_landmarks`: whether agents and landmarks take part in contacts. `radius`,
        `acceleration` and `max_speed` are arrays [A], or one number for all agents. `is_movable` None: all can move.
        """
        n_agents = len(agent_names)

        def broadcast_to_agents(x: float | np.ndarray) -> np.ndarray:
            return np.broadcast_to(np.asarray(x, dtype=np.float64), n_agents).copy()

        return cls(
            agent_names=agent_names,
            radius=np.concatenate([broadcast_to_agents(radius), np.full(n_landmarks, landmark_radius)]),
            is_solid=np.repeat([is_solid, has_solid_landmarks], [n_agents, n_landmarks]),
            is_movable=np.ones(n_agents, dtype=bool) if is_movable is None else is_movable,
            acceleration=broadcast_to_agents(acceleration),
            max_speed=broadcast_to_agents(max_speed),
        )

    @property
    def n_agents(self) -> int:
        return len(self.agent_names)


class ParticleWorld(StateFields):
    """The state of the discs in `n_envs` parallel copies (games) of an environment.

    Attributes:
        bodies: constant properties of the discs.
        position: positions (x, y) in the order of `bodies`, [n_envs, E, 2] float64.
        velocity: velocities of the agents, in units per second, [n_envs, A, 2] float64.
        messages: message of each agent in the last step, [n_envs, A, message_dim] float64; zeros for silence.
        goal_landmark: index of the landmark of each of the G goals, [n_envs, G] int64 (see `Scenario.guide_pairs`).
    """

    _state_fields = ("position", "velocity", "messages", "goal_landmark")

    def __init__(self, bodies: Bodies, n_envs: int, message_dim: int, n_goals: int) -> None:
        self.bodies = bodies
        n_agents, n_bodies = bodies.n_agents, len(bodies.radius)
        self.position = np.zeros((n_envs, n_bodies, 2))
        self.velocity = np.zeros((n_envs, n_agents, 2))
        self.messages = np.zeros((n_envs, n_agents, message_dim))
        self.goal_landmark = np.zeros((n_envs, n_goals), dtype=np.int64)
        self._contact_forces = _ContactForces(bodies)

    @property
    def agent_positions(self) -> np.ndarray:
        """Positions of the agents, [n_envs, A, 2]."""
        return self.position[:, : self.bodies.n_agents]

    @property
    def landmark_positions(self) -> np.ndarray:
        """Positions of landmarks or obstacles, [n_envs, E - A, 2]."""
        return self.position[:, self.bodies.n_agents :]

    def reset(self, mask: np.ndarray, position: np.ndarray, goal_landmark: np.ndarray) -> None:
        """Reset the games where `mask` is true to the given positions and goals; velocities and messages become zero.

        Args:
            mask: whether to reset each game, [n_envs] bool.
            position: start positions, [n_envs, E, 2]; ignored in other games.
            goal_landmark: index of the landmark of each goal, [n_envs, G]; ignored in other games.
        """
        self.position[mask], self.goal_landmark[mask] = position[mask], goal_landmark[mask]
        self.velocity[mask] = 0.0
        self.messages[mask] = 0.0

    def step(self, move: np.ndarray, messages: np.ndarray, active: np.ndarray) -> None:
        """Advance the games where `active` [n_envs] is true by 0.1 seconds.

        `move` [n_envs, A] contains indices into `MOVES`, `messages` [n_envs, A, message_dim] the agents' messages.
        """
        bodies, n_agents = self.bodies, self.bodies.n_agents
        force = MOVE_DIRECTIONS[move] * bodies.acceleration[:, None] * bodies.is_movable[:, None]
        force = self._contact_forces.add_to(self.position, force)
        position = self.agent_positions + self.velocity * STEP_SECONDS
        velocity = self.velocity * (1.0 - DAMPING) + force * STEP_SECONDS
        speed = np.sqrt(np.square(velocity[..., 0]) + np.square(velocity[..., 1]))[..., None]
        max_speed = bodies.max_speed[:, None]
        is_too_fast = speed > max_speed
        velocity = velocity / np.where(is_too_fast, speed, 1.0) * np.where(is_too_fast, max_speed, 1.0)
        self.position[active, :n_agents] = position[active]
        self.velocity[active] = velocity[active]
        self.messages[active] = messages[active]


class _ContactForces:
    """Contact forces between solid discs, which are soft: a small repulsion acts just before discs touch."""

    def __init__(self, bodies: Bodies) -> None:
        n_agents, n_bodies = bodies.n_agents, len(bodies.radius)
        is_movable = np.concatenate([bodies.is_movable, np.zeros(n_bodies - n_agents, dtype=bool)])
        pairs = [
            (body, partner)
            for body, partner in combinations(np.flatnonzero(bodies.is_solid).tolist(), 2)
            if is_movable[body] or is_movable[partner]
        ]
        self._pair_first_bodies, self._pair_second_bodies = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        self._pair_contact_distance = bodies.radius[self._pair_first_bodies] + bodies.radius[self._pair_second_bodies]
        # For each agent, the indices of its pairs and the sign with which the force of each pair acts on it. Rows are
        # padded with the index of an extra pair whose force is zero.
        agent_contacts = [
            [(p, 1.0 if pair[0] == i else -1.0) for p, pair in enumerate(pairs) if is_movable[i] and i in pair]
            for i in range(n_agents)
        ]
        max_contacts = max(map(len, agent_contacts), default=0)
        padding = (len(pairs), 1.0)
        padded_contacts = [contacts + [padding] * (max_contacts - len(contacts)) for contacts in agent_contacts]
        contact_table = np.array(padded_contacts).reshape(n_agents, max_contacts, 2)
        self._pair_indices_by_agent = contact_table[:, :, 0].T.astype(np.int64)
        self._force_signs = contact_table[:, :, 1].T[:, :, None, None]

    def add_to(self, position: np.ndarray, force: np.ndarray) -> np.ndarray:
        """Return `force` [n_envs, A, 2] plus the contact forces."""
        if not self._pair_indices_by_agent.size:
            return force
        body_positions = position.transpose(1, 0, 2)
        # [pairs, n_envs, 2]
        offset = body_positions[self._pair_first_bodies] - body_positions[self._pair_second_bodies]
        distance = np.sqrt(np.square(offset[..., 0]) + np.square(offset[..., 1]))
        depth = np.logaddexp(0.0, -(distance - self._pair_contact_distance[:, None]) / CONTACT_MARGIN) * CONTACT_MARGIN
        # The force between discs at the same position has no direction; dividing by their distance would give NaN.
        safe_distance = np.where(distance > 0, distance, 1.0)[..., None]
        pair_forces = np.zeros((len(offset) + 1, *offset.shape[1:]))
        np.multiply(CONTACT_FORCE * offset / safe_distance, depth[..., None], out=pair_forces[:-1])
        # NumPy sums over axis 0 sequentially, so the order of additions (and the rounding) matches `mpe2`.
        agent_forces = pair_forces[self._pair_indices_by_agent] * self._force_signs
        terms = np.concatenate([force.transpose(1, 0, 2)[None], agent_forces])
        return np.asarray(np.add.reduce(terms, axis=0).transpose(1, 0, 2))
