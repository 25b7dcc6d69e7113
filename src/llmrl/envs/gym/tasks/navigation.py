"""Navigation: a robot with range sensors drives around a closed corridor. Units: meters and radians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.array_games import check_discrete_actions
from llmrl.envs.gym.batched import BatchedGames
from llmrl.envs.gym.tasks import canvas

GOAL_TEXT = (
    "You drive a robot round a closed corridor, 3 meters wide, with six corners. Five sensors measure how far the "
    "nearest wall is, with small errors; moves have small errors, too.\n"
    "A step forward gives 5, a turn costs 0.5. When any sensor measures less than 0.4 meters, the robot has crashed: "
    "that costs 200 and ends the episode."
)
# For each action (forward, right, left): the distance in meters, the turn clockwise in radians, and the reward.
_STEP_LENGTHS = np.array([0.2, 0.04, 0.04])
_TURN_ANGLES = np.array([0.0, 0.2, -0.2])
_REWARDS = np.array([5.0, -0.5, -0.5])
# A robot crashes if a sensor measures less than this distance in meters.
_CRASH_REWARD, _CRASH_DISTANCE = -200.0, 0.4
_NOISE_STD = 0.02
"""Standard deviation of the noise of distances and turns in a step (in m and rad) and of measurements (in m)."""
_MIN_DISTANCE, _MAX_DISTANCE = 0.2, 30.0
"""Range of measurements, in meters."""
_SENSOR_ANGLES = np.radians([-90.0, -45.0, 0.0, 45.0, 90.0])
OBSERVATION_SCHEMA = {
    name: {
        "description": f"distance to the nearest wall {direction}",
        "unit": "meters",
        "range": [_MIN_DISTANCE, _MAX_DISTANCE],
    }
    for name, direction in {
        "left": "to the left",
        "front_left": "ahead to the left, at 45 degrees",
        "front": "straight ahead",
        "front_right": "ahead to the right, at 45 degrees",
        "right": "to the right",
    }.items()
}
ACTION_SCHEMA = {
    "forward": "0.2 meters forward",
    "right": "0.04 meters forward, then turn to the right by 0.2 radians",
    "left": "0.04 meters forward, then turn to the left by 0.2 radians",
}

# Corners of the walls and the center line, (x, y) in meters.
_OUTER_WALL = ((0.0, 0.0), (0.0, 20.0), (20.0, 20.0), (20.0, 8.5), (11.5, 8.5), (11.5, 0.0))
_INNER_WALL = ((3.0, 3.0), (3.0, 17.0), (17.0, 17.0), (17.0, 11.5), (8.5, 11.5), (8.5, 3.0))
_CENTER_LINE = ((1.5, 1.5), (1.5, 18.5), (18.5, 18.5), (18.5, 10.0), (10.0, 10.0), (10.0, 1.5))
"""Center line of the corridor, on which an episode starts."""
_PIXELS_PER_METER, _MARGIN = 18, 20
"""Pixels per meter in a frame, and width of the margin around the corridor in pixels."""


def _list_sides(polygon: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    return list(zip(polygon, (*polygon[1:], polygon[0]), strict=True))


def _build_walls(axis: int) -> NDArray[np.float64]:
    """Return the walls with a constant x (`axis` 0) or a constant y (`axis` 1), [6, 3].

    Columns: the constant coordinate, and the lower and upper end along the other coordinate.
    """
    sides = [
        (start, end) for start, end in _list_sides(_OUTER_WALL) + _list_sides(_INNER_WALL) if start[axis] == end[axis]
    ]
    return np.array([(start[axis], *sorted((start[1 - axis], end[1 - axis]))) for start, end in sides])


class NavigationGames(BatchedGames):
    """Parallel copies of a corridor with a width of 3 m and six straight sections, in which a robot avoids the walls.

    **Observation.** [n, 5] float32: distances in meters to the nearest wall in five directions, which are 45 degrees
    apart from left over front to right. Each has noise of 0.02 m and is clipped to 0.2 .. 30.

    **Action.** 0: forward by 0.2 m; 1 and 2: forward by 0.04 m, and a turn by 0.2 rad to the right or left. Noise of
    0.02 m and 0.02 rad is added to distance and turn.

    **Reward.** 5 for forward, -0.5 for a turn, -200 instead for a crash.

    **Episode.** It starts at a random point of the center line, uniform on a random section, with a random heading. It
    terminates with a crash: a measured distance below 0.4 m.

    Args:
        n: number of copies.
        horizon: steps after which an episode is truncated; None: never.
    """

    def __init__(self, n: int, horizon: int | None = None) -> None:
        from gymnasium import spaces

        space = spaces.Box(_MIN_DISTANCE, _MAX_DISTANCE, (len(_SENSOR_ANGLES),), np.float32)
        super().__init__(n, space, spaces.Discrete(len(ACTION_SCHEMA)), horizon)
        self._vertical_walls, self._horizontal_walls = _build_walls(0), _build_walls(1)
        self._start_segments = _list_sides(_CENTER_LINE)
        # Rows: x, y, and the heading clockwise from north; y increases to the north.
        self._poses = np.array((np.full(n, 1.5), np.full(n, 1.5), np.zeros(n)))
        self._measured_distances = np.full((n, len(_SENSOR_ANGLES)), _MAX_DISTANCE)

    def set_start_states(self, indices: NDArray[np.int64], rngs: Sequence[np.random.Generator]) -> None:
        noise = np.zeros((len(indices), len(_SENSOR_ANGLES)))
        for i, (game, rng) in enumerate(zip(indices.tolist(), rngs, strict=True)):
            (x0, y0), (x1, y1) = self._start_segments[int(rng.integers(len(self._start_segments)))]
            fraction = rng.random()
            x, y = x0 + fraction * (x1 - x0), y0 + fraction * (y1 - y0)
            self._poses[:, game] = x, y, rng.uniform(-math.pi, math.pi)
            noise[i] = rng.standard_normal(len(_SENSOR_ANGLES))
        self._measured_distances[indices] = self._measure_distances(self._poses[:, indices], noise)

    def advance(self, actions: Any, active: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        action = check_discrete_actions(actions, len(ACTION_SCHEMA))
        noise = self.sample(2 + len(_SENSOR_ANGLES), active, "standard_normal")
        distance = _STEP_LENGTHS[action] + _NOISE_STD * noise[:, 0]
        turn_angle = _TURN_ANGLES[action] + _NOISE_STD * noise[:, 1]
        x, y, heading = self._poses
        pose = np.array((x + distance * np.sin(heading), y + distance * np.cos(heading), heading + turn_angle))
        distances = self._measure_distances(pose, noise[:, 2:])
        self._poses = pose if active is None else np.where(active, pose, self._poses)
        self._measured_distances = (
            distances if active is None else np.where(active[:, None], distances, self._measured_distances)
        )
        is_crash: NDArray[np.bool_] = np.any(distances < _CRASH_DISTANCE, axis=1)
        return np.where(is_crash, _CRASH_REWARD, _REWARDS[action]), is_crash

    def observe(self) -> NDArray[np.float32]:
        return self._measured_distances.astype(np.float32)

    def _measure_distances(self, pose: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the measured distances [m, 5] of m robots at `pose` [3, m], given standard normal `noise` [m, 5]."""
        x, y, heading = pose
        angles = heading[:, None] + _SENSOR_ANGLES
        east, north = np.sin(angles), np.cos(angles)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.minimum(
                _compute_ray_distances(self._vertical_walls, x, y, east, north),
                _compute_ray_distances(self._horizontal_walls, y, x, north, east),
            )
        return np.clip(np.minimum(distance, _MAX_DISTANCE) + _NOISE_STD * noise, _MIN_DISTANCE, _MAX_DISTANCE)

    def render(self, index: int) -> NDArray[np.uint8]:
        """Return a frame from above, north up, [400, 400, 3] uint8, with the robot, its heading and its sensors."""
        side = 20 * _PIXELS_PER_METER + 2 * _MARGIN
        drawing = canvas.Canvas(side, side)

        def to_pixels(x: float, y: float) -> tuple[float, float]:
            return _MARGIN + x * _PIXELS_PER_METER, side - _MARGIN - y * _PIXELS_PER_METER

        for start, end in _list_sides(_OUTER_WALL) + _list_sides(_INNER_WALL):
            drawing.draw_line(to_pixels(*start), to_pixels(*end), canvas.INK)
        x, y, heading = self._poses[:, index].tolist()
        for angle, distance in zip(_SENSOR_ANGLES + heading, self._measured_distances[index].tolist(), strict=True):
            end = to_pixels(x + distance * math.sin(angle), y + distance * math.cos(angle))
            drawing.draw_line(to_pixels(x, y), end, canvas.GRAY, width=1.5)
        drawing.draw_disc(*to_pixels(x, y), 0.4 * _PIXELS_PER_METER, canvas.BLUE)
        front = to_pixels(x + 0.4 * math.sin(heading), y + 0.4 * math.cos(heading))
        drawing.draw_line(to_pixels(x, y), front, canvas.PAPER, width=2.5)
        return drawing.image


def _compute_ray_distances(
    walls: NDArray[np.float64],
    normal: NDArray[np.float64],
    tangential: NDArray[np.float64],
    normal_step: NDArray[np.float64],
    tangential_step: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the distance from m robots to the nearest of w parallel walls along 5 rays each, [m, 5]; inf: no wall.

    Args:
        walls: see `_build_walls`, [w, 3].
        normal, tangential: coordinates of the robots perpendicular to the walls and along them, [m].
        normal_step, tangential_step: the same components of the unit vectors along the rays, [m, 5].
    """
    distance = (walls[:, 0] - normal[:, None])[:, None] / normal_step[..., None]
    hit_coordinate = tangential[:, None, None] + distance * tangential_step[..., None]
    is_hit = (distance >= 0) & (hit_coordinate >= walls[:, 1]) & (hit_coordinate <= walls[:, 2])
    return np.where(is_hit, distance, np.inf).min(axis=2)
