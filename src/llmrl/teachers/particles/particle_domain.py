"""Base class of the domains of particle environments, and functions that choose moves of a disc with a velocity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf

from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Domain


class ParticleDomain(Domain):
    """Base class of the domains of particle environments.

    Args:
        spec: spec of the environment, with the parts of each agent's vector.

    Attributes:
        agent_names: names of the agents.
        layouts: for each agent: name of a part -> its slice of the vector.
    """

    channels = ("vector",)
    idle = 0

    def __init__(self, spec: EnvSpec) -> None:
        self.n_actions = spec.n_actions
        self.agent_names, self.layouts = spec.agent_names, spec.observation["vector"].parts


def read_pairs(vector: Sequence[float], layout: Mapping[str, slice], part_name: str) -> list[Pair]:
    """Return the (x, y) pairs in the part `part_name` of a vector; `layout` has the slice of each part."""
    numbers = vector[layout[part_name]]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def join_words(words: Sequence[str]) -> str:
    """Join words as `a`, `a and b`, `a, b and c`.

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


Pair = tuple[float, float]
"""Position, offset or velocity: x to the right, y up."""

STAY, LEFT, RIGHT, DOWN, UP = range(5)
"""The moves of particle environments."""
TIME_STEP = 0.1  # duration of a step in seconds
DAMPING = 0.75  # factor of the velocity in each step
HORIZON_STEPS = 7  # number of steps that `move_towards` considers
_DIRECTIONS: tuple[Pair, ...] = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
_COAST_FACTORS = tuple(TIME_STEP * (1 - DAMPING**k) / (1 - DAMPING) for k in range(1, HORIZON_STEPS))
"""Distance that a disc moves in k steps without acceleration, per unit of its velocity, for k = 1, 2, ..."""


@dataclass(frozen=True)
class Body:
    """The disc of an agent and limits of its motion.

    Attributes:
        acceleration: acceleration by a move, in length units per second squared.
        max_speed: maximum speed, in length units per second.
        size: radius, in length units.
    """

    acceleration: float = 5.0
    max_speed: float = inf
    size: float = 0.05

    def list_next_velocities(self, velocity: Pair) -> list[Pair]:
        """Return the velocity after each of the five moves."""
        velocity_gain = self.acceleration * TIME_STEP
        velocities = []
        for x, y in _DIRECTIONS:
            vx, vy = DAMPING * velocity[0] + velocity_gain * x, DAMPING * velocity[1] + velocity_gain * y
            speed = hypot(vx, vy)
            if speed > self.max_speed:
                vx, vy = vx / speed * self.max_speed, vy / speed * self.max_speed
            velocities.append((vx, vy))
        return velocities


def move_towards(target: Pair, velocity: Pair, body: Body) -> int:
    """Return the move after which the disc, without further moves, has the minimum mean distance to `target`.

    The mean is over the next steps; `target` is an offset. The disc therefore brakes in time and stays at the target.
    """
    x, y = TIME_STEP * velocity[0] - target[0], TIME_STEP * velocity[1] - target[1]
    best_move, min_cost = STAY, inf
    for move, (vx, vy) in enumerate(body.list_next_velocities(velocity)):
        cost = 0.0
        for factor in _COAST_FACTORS:
            cost += hypot(x + factor * vx, y + factor * vy)
        if cost < min_cost:
            best_move, min_cost = move, cost
    return best_move


def brake(velocity: Pair, body: Body) -> int:
    """Return the move after which the speed of the disc is minimal."""
    speeds = [hypot(*next_velocity) for next_velocity in body.list_next_velocities(velocity)]
    return speeds.index(min(speeds))


def find_waypoint(target: Pair, obstacles: Sequence[Pair], clearance: float) -> Pair:
    """Return `target`, or a point beside the first obstacle on the way to it; all are offsets.

    Args:
        target: destination.
        obstacles: centers of obstacles.
        clearance: minimum distance from the path to the center of an obstacle, in length units.
    """
    distance = hypot(*target)
    min_distance, waypoint = distance, target
    for obstacle_x, obstacle_y in obstacles:
        if distance == 0.0:
            break
        distance_along = (obstacle_x * target[0] + obstacle_y * target[1]) / distance
        lateral_offset = (obstacle_x * target[1] - obstacle_y * target[0]) / distance  # > 0: to the right of the way
        if 0 < distance_along < min_distance and abs(lateral_offset) < clearance:
            side = 1.0 if lateral_offset >= 0 else -1.0
            normal_x, normal_y = -side * target[1] / distance, side * target[0] / distance
            min_distance, gap = distance_along, 1.3 * clearance
            waypoint = obstacle_x + gap * normal_x, obstacle_y + gap * normal_y
    return waypoint
