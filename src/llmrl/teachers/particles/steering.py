"""Moves of a disc that has a velocity: where it coasts to after each push, and which push is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, inf

Pair = tuple[float, float]
"""x to the right, y up; a position, an offset or a velocity."""

STAY, LEFT, RIGHT, DOWN, UP = range(5)
"""The moves of particle worlds."""
STEP = 0.1  # seconds
KEPT = 0.75  # share of the velocity that is left after a step
AHEAD = 7  # steps looked ahead
_DIRECTIONS: tuple[Pair, ...] = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
_COASTED = tuple(STEP * (1 - KEPT**k) / (1 - KEPT) for k in range(1, AHEAD))
"""How far a disc comes in k steps without a push, per unit of its velocity."""


@dataclass(frozen=True)
class Body:
    """How an agent moves.

    Attributes:
        acceleration: units a second squared.
        max_speed: units a second.
        size: radius, units.
    """

    acceleration: float = 5.0
    max_speed: float = inf
    size: float = 0.05

    def after(self, velocity: Pair) -> list[Pair]:
        """The velocity after each of the five moves."""
        gain = self.acceleration * STEP
        result = []
        for x, y in _DIRECTIONS:
            vx, vy = KEPT * velocity[0] + gain * x, KEPT * velocity[1] + gain * y
            speed = hypot(vx, vy)
            if speed > self.max_speed:
                vx, vy = vx / speed * self.max_speed, vy / speed * self.max_speed
            result.append((vx, vy))
        return result


def towards(target: Pair, velocity: Pair, body: Body) -> int:
    """The move after which the disc, if it then coasts, is nearest to `target` (an offset) on average in the next
    steps; so it brakes in time, and hovers where it has arrived."""
    x, y = STEP * velocity[0] - target[0], STEP * velocity[1] - target[1]
    best, least = STAY, inf
    for move, (vx, vy) in enumerate(body.after(velocity)):
        cost = 0.0
        for coasted in _COASTED:
            cost += hypot(x + coasted * vx, y + coasted * vy)
        if cost < least:
            best, least = move, cost
    return best


def brake(velocity: Pair, body: Body) -> int:
    """The move after which the disc is slowest."""
    speeds = [hypot(*after) for after in body.after(velocity)]
    return speeds.index(min(speeds))


def around(target: Pair, obstacles: Sequence[Pair], clearance: float) -> Pair:
    """`target`, or a point beside the first obstacle in the way to it; all are offsets.

    `clearance`: how near the way may come to the middle of an obstacle, units.
    """
    distance = hypot(*target)
    first, chosen = distance, target
    for ox, oy in obstacles:
        if distance == 0.0:
            break
        along = (ox * target[0] + oy * target[1]) / distance
        beside = (ox * target[1] - oy * target[0]) / distance  # > 0: the obstacle is to the right of the way
        if 0 < along < first and abs(beside) < clearance:
            side = 1.0 if beside >= 0 else -1.0
            nx, ny = -side * target[1] / distance, side * target[0] / distance
            first, chosen = along, (ox + 1.3 * clearance * nx, oy + 1.3 * clearance * ny)
    return chosen
