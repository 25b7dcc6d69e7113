"""The physics of particle worlds: discs with velocity, damping, an acceleration of their own, and soft contacts.

The equations are those of the multi-agent particle environment (Lowe et al., 2017, arXiv 1706.02275; Mordatch and
Abbeel, 2017, arXiv 1703.04908), for all games and discs at once. Operations have the order of the `mpe2` package, so
that rounding is equal, too: contacts amplify the smallest difference from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from llmrl.core.state_fields import StateFields

STEP = 0.1  # seconds
DAMPING = 0.25  # share of the velocity that is lost in a step
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3  # softness of the surface, units
ACCELERATION = 5.0  # default acceleration of agents, units per second squared

MOVES = ("stay", "left", "right", "down", "up")
DIRECTIONS = np.array([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])


@dataclass(frozen=True)
class Landmarks:
    """Equal discs that never move.

    Attributes:
        count: number of discs.
        size: radius, units.
        solid: whether they take part in contacts.
    """

    count: int
    size: float
    solid: bool = False


@dataclass(frozen=True)
class Bodies:
    """Constant properties of the E discs of a game: first A agents, then landmarks or obstacles, which never move.

    Attributes:
        agents: name of each agent, [A].
        size: radius, units, [E].
        solid: whether the disc takes part in contacts, [E] bool.
        movable: whether the agent can move and be pushed, [A] bool.
        acceleration: acceleration by the agent's own move, units per second squared, [A].
        max_speed: maximum speed, units per second, [A]; inf for none.
    """

    agents: tuple[str, ...]
    size: np.ndarray
    solid: np.ndarray
    movable: np.ndarray
    acceleration: np.ndarray
    max_speed: np.ndarray

    @classmethod
    def create(
        cls,
        agents: tuple[str, ...],
        size: float | np.ndarray,
        landmarks: Landmarks,
        solid: bool = False,
        movable: np.ndarray | None = None,
        acceleration: float | np.ndarray = ACCELERATION,
        max_speed: float | np.ndarray = np.inf,
    ) -> Bodies:
        """Return the bodies of agents and of landmarks or obstacles.

        Arrays are [A]; a number applies to all agents.
        """
        count = len(agents)

        def per_agent(value: float | np.ndarray) -> np.ndarray:
            return np.broadcast_to(np.asarray(value, dtype=np.float64), count).copy()

        return cls(
            agents=agents,
            size=np.concatenate([per_agent(size), np.full(landmarks.count, landmarks.size)]),
            solid=np.repeat([solid, landmarks.solid], [count, landmarks.count]),
            movable=np.ones(count, dtype=bool) if movable is None else movable,
            acceleration=per_agent(acceleration),
            max_speed=per_agent(max_speed),
        )

    @property
    def n_agents(self) -> int:
        return len(self.agents)


class ParticleWorld(StateFields):
    """The state of the discs of `n_envs` games.

    Attributes:
        bodies: constant properties of the discs.
        position: positions in the order of `bodies`, units, [n_envs, E, 2] float64.
        velocity: velocities of the agents, units per second, [n_envs, A, 2] float64.
        said: message of each agent in the last step, [n_envs, A, words] float64; zeros for silence.
        goal: index of the landmark of each goal, [n_envs, G] int64 (see `Scenario.guides`).
    """

    _state_fields = ("position", "velocity", "said", "goal")

    def __init__(self, bodies: Bodies, n_envs: int, words: int, n_goals: int) -> None:
        self.bodies = bodies
        n_agents, n_bodies = bodies.n_agents, len(bodies.size)
        self.position = np.zeros((n_envs, n_bodies, 2))
        self.velocity = np.zeros((n_envs, n_agents, 2))
        self.said = np.zeros((n_envs, n_agents, words))
        self.goal = np.zeros((n_envs, n_goals), dtype=np.int64)
        self._contacts = _Contacts(bodies)

    @property
    def agents(self) -> np.ndarray:
        """Positions of the agents, [n_envs, A, 2]."""
        return self.position[:, : self.bodies.n_agents]

    @property
    def landmarks(self) -> np.ndarray:
        """Positions of landmarks or obstacles, [n_envs, E - A, 2]."""
        return self.position[:, self.bodies.n_agents :]

    def place(self, mask: np.ndarray, position: np.ndarray, goal: np.ndarray) -> None:
        """Set positions and goals, at rest and silent, in the games where `mask` [n_envs] is true."""
        self.position[mask], self.goal[mask] = position[mask], goal[mask]
        self.velocity[mask] = 0.0
        self.said[mask] = 0.0

    def step(self, move: np.ndarray, said: np.ndarray, active: np.ndarray) -> None:
        """Advance the games where `active` [n_envs] is true by 0.1 seconds.

        `move` [n_envs, A] indexes `MOVES`; `said` [n_envs, A, words] are the agents' messages.
        """
        bodies, n_agents = self.bodies, self.bodies.n_agents
        force = DIRECTIONS[move] * bodies.acceleration[:, None] * bodies.movable[:, None]
        force = self._contacts.add(self.position, force)
        position = self.agents + self.velocity * STEP
        velocity = self.velocity * (1.0 - DAMPING) + force * STEP
        norm = np.sqrt(np.square(velocity[..., 0]) + np.square(velocity[..., 1]))[..., None]
        limit = bodies.max_speed[:, None]
        fast = norm > limit
        velocity = velocity / np.where(fast, norm, 1.0) * np.where(fast, limit, 1.0)
        self.position[active, :n_agents] = position[active]
        self.velocity[active] = velocity[active]
        self.said[active] = said[active]


class _Contacts:
    """Softened contact forces between discs: a small force acts shortly before they touch."""

    def __init__(self, bodies: Bodies) -> None:
        n_agents, n_bodies = bodies.n_agents, len(bodies.size)
        moves = np.concatenate([bodies.movable, np.zeros(n_bodies - n_agents, dtype=bool)])
        pairs = [
            (body, partner)
            for body, partner in combinations(np.flatnonzero(bodies.solid).tolist(), 2)
            if moves[body] or moves[partner]
        ]
        self._first, self._second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        self._reach = bodies.size[self._first] + bodies.size[self._second]
        # For each agent, its pairs in order, with the sign of the force; the extra pair at the end has no force.
        agent_contacts = [
            [(p, 1.0 if pair[0] == i else -1.0) for p, pair in enumerate(pairs) if moves[i] and i in pair]
            for i in range(n_agents)
        ]
        max_contacts = max(map(len, agent_contacts), default=0)
        padded = [contacts + [(len(pairs), 1.0)] * (max_contacts - len(contacts)) for contacts in agent_contacts]
        table = np.array(padded).reshape(n_agents, max_contacts, 2)
        self._pair = table[:, :, 0].T.astype(np.int64)
        self._sign = table[:, :, 1].T[:, :, None, None]

    def add(self, position: np.ndarray, force: np.ndarray) -> np.ndarray:
        """Return `force` [n_envs, A, 2] plus the contact forces."""
        if not self._pair.size:
            return force
        body_positions = position.transpose(1, 0, 2)
        offset = body_positions[self._first] - body_positions[self._second]  # [pairs, n_envs, 2]
        distance = np.sqrt(np.square(offset[..., 0]) + np.square(offset[..., 1]))
        depth = np.logaddexp(0.0, -(distance - self._reach[:, None]) / CONTACT_MARGIN) * CONTACT_MARGIN
        # The force between discs at the same position has no direction; dividing by their distance would give NaN.
        safe_distance = np.where(distance > 0, distance, 1.0)[..., None]
        pair_forces = np.zeros((len(offset) + 1, *offset.shape[1:]))
        np.multiply(CONTACT_FORCE * offset / safe_distance, depth[..., None], out=pair_forces[:-1])
        # A reduction along the first axis adds the terms one by one in order.
        terms = np.concatenate([force.transpose(1, 0, 2)[None], pair_forces[self._pair] * self._sign])
        return np.asarray(np.add.reduce(terms, axis=0).transpose(1, 0, 2))
