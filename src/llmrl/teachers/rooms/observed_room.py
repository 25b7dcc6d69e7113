"""Room as observed by an agent, and shortest paths in it.

Paths are sequences of poses (cell and direction), with one action for each turn and each step forward. Of paths with
equal length, the one whose first different action comes first in forward, left, right is chosen. The choice therefore
depends only on the map.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA = range(10)
"""Object ids of MiniGrid."""
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
"""Colors in the order of MiniGrid's ids."""
OPEN, CLOSED, LOCKED = range(3)
"""States of a door."""
LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
"""Actions of MiniGrid."""
EAST, SOUTH, WEST, NORTH = range(4)
"""Directions; x increases to the east, y to the south."""

_NO_AGENT_DIRECTION = 4
_WALKABLE = bytes(i in (EMPTY, FLOOR, GOAL) for i in range(256))
_WALKABLE_AND_LAVA = bytes(i in (EMPTY, FLOOR, GOAL, LAVA) for i in range(256))


class GridGeometry:
    """Tables of neighbors in a grid of `width` x `height` cells.

    The index of a cell is x * height + y, that of a pose 4 * cell + direction; -1: outside the grid.

    Attributes:
        neighbors: the four neighbors of each cell, in the order of directions.
        ahead, behind: cell in front of and behind each pose.
        left, right: pose after a turn to the left or right, for each pose.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.neighbors: list[tuple[int, int, int, int]] = []
        for x in range(width):
            for y in range(height):
                steps = ((x + 1, y), (x, y + 1), (x - 1, y), (x, y - 1))
                cells = [i * height + j if 0 <= i < width and 0 <= j < height else -1 for i, j in steps]
                self.neighbors.append((cells[0], cells[1], cells[2], cells[3]))
        poses = range(4 * width * height)
        self.ahead = [self.neighbors[pose >> 2][pose & 3] for pose in poses]
        self.behind = [self.neighbors[pose >> 2][(pose + 2) & 3] for pose in poses]
        self.left = [(pose & ~3) | ((pose - 1) & 3) for pose in poses]
        self.right = [(pose & ~3) | ((pose + 1) & 3) for pose in poses]


get_geometry = functools.cache(GridGeometry)


class ObservedRoom:
    """Room as one agent has observed it.

    Args:
        grid: channel `grid` [width, height, 4] uint8, indexed (x, y): object id, color, state, agent's direction (4: no
            agent). The agent's cell contains the object that it carries.

    Attributes:
        object_ids, colors, states: object ids, colors and states of all cells, as bytes.
        cell, pose: cell and pose of the agent.
        carried: id and color of the carried object; None: nothing is carried.
        walkable: 1 for cells that the agent may enter without harm and for the agent's cell, else 0, as bytes.

    Raises:
        ValueError: the grid contains no agent.
    """

    def __init__(self, grid: np.ndarray) -> None:
        width, height, _ = grid.shape
        self.geometry = get_geometry(width, height)
        planes: np.ndarray = np.ascontiguousarray(np.moveaxis(grid, -1, 0))
        self.object_ids: bytes = planes[0].tobytes()
        self.colors: bytes = planes[1].tobytes()
        self.states: bytes = planes[2].tobytes()
        agent_map: bytes = planes[3].tobytes()
        direction = min(agent_map)
        if direction == _NO_AGENT_DIRECTION:
            raise ValueError("the grid contains no agent: its fourth plane must contain a direction (0 to 3)")
        self.cell = agent_map.index(direction)
        self.pose = 4 * self.cell + direction
        object_id = self.object_ids[self.cell]
        self.carried = (object_id, self.colors[self.cell]) if object_id in (KEY, BALL, BOX) else None
        self.walkable = self.compute_walkable(include_lava=False)

    @property
    def front_cell(self) -> int:
        """Cell in front of the agent; -1: outside the grid."""
        return self.geometry.ahead[self.pose]

    def find_cells(self, object_id: int) -> Iterator[int]:
        """Yield the cells with an object of this id, except the carried object, sorted by x, then y."""
        cell = self.object_ids.find(object_id)
        while cell >= 0:
            if cell != self.cell:
                yield cell
            cell = self.object_ids.find(object_id, cell + 1)

    def compute_walkable(self, include_lava: bool) -> bytes:
        """Return 1 for cells that the agent may enter and its cell, else 0; `include_lava`: whether lava is 1."""
        walkable = bytearray(self.object_ids.translate(_WALKABLE_AND_LAVA if include_lava else _WALKABLE))
        walkable[self.cell] = 1
        for door in self.find_cells(DOOR):
            walkable[door] = self.states[door] == OPEN
        return bytes(walkable)


class ShortestPaths:
    """Shortest paths from every pose to the poses that face the cell `target` from a neighboring cell.

    A breadth-first search runs backwards from the target, only as far as needed, and stores its results.

    Args:
        geometry: geometry of the grid.
        walkable: 1 for each cell that an agent may enter, as bytes.
        target: cell to face.
    """

    def __init__(self, geometry: GridGeometry, walkable: bytes, target: int) -> None:
        self.geometry, self.walkable = geometry, walkable
        self._distance_by_pose: dict[int, int] = {}
        for direction in range(4):
            cell = geometry.behind[4 * target + direction]
            if cell >= 0 and walkable[cell]:
                self._distance_by_pose[4 * cell + direction] = 0
        self._queue = deque(self._distance_by_pose)

    def distance(self, pose: int) -> int | None:
        """Return the number of actions of a shortest path from `pose`; None if there is no path."""
        distances, queue, geometry, walkable = self._distance_by_pose, self._queue, self.geometry, self.walkable
        while pose not in distances and queue:
            visited_pose = queue.popleft()
            next_distance = distances[visited_pose] + 1
            cell = geometry.behind[visited_pose]
            predecessor = 4 * cell + (visited_pose & 3) if cell >= 0 and walkable[cell] else -1
            for neighbor in (predecessor, geometry.right[visited_pose], geometry.left[visited_pose]):
                if neighbor >= 0 and neighbor not in distances:
                    distances[neighbor] = next_distance
                    queue.append(neighbor)
        return distances.get(pose)

    def action(self, pose: int) -> int | None:
        """Return the first action of a shortest path from `pose`; of equal paths, forward precedes left, left right.

        None: there is no path, or it has no actions.
        """
        distance = self.distance(pose)
        if not distance:
            return None
        geometry = self.geometry
        cell = geometry.ahead[pose]
        if cell >= 0 and self.walkable[cell] and self.distance(4 * cell + (pose & 3)) == distance - 1:
            return FORWARD
        return LEFT if self.distance(geometry.left[pose]) == distance - 1 else RIGHT


def choose_walk_action(room: ObservedRoom, utility: Callable[[int], int], max_detour: int = 0) -> int | None:
    """Return the first action of a walk of at least one action to a pose of positive `utility`; None: there is none.

    Among the walks with at most `max_detour` more actions than the shortest, it is that with the highest utility² per
    action, then the shortest, then one that starts forward. If the map does not change, later calls continue the same
    walk, because its utility per remaining action increases with every action.
    """
    geometry, walkable = room.geometry, room.walkable
    first_action_by_pose = {room.pose: -1}
    layer, steps, max_steps = [room.pose], 0, -1
    best_pose, max_rate = -1, 0.0
    while layer and steps != max_steps:
        steps += 1
        next_layer: list[int] = []
        for pose in layer:
            cell = geometry.ahead[pose]
            forward = 4 * cell + (pose & 3) if cell >= 0 and walkable[cell] else -1
            for neighbor, action in ((forward, FORWARD), (geometry.left[pose], LEFT), (geometry.right[pose], RIGHT)):
                if neighbor < 0 or neighbor in first_action_by_pose:
                    continue
                first_action_by_pose[neighbor] = action if pose == room.pose else first_action_by_pose[pose]
                next_layer.append(neighbor)
                pose_utility = utility(neighbor)
                if pose_utility and max_steps < 0:
                    max_steps = steps + max_detour
                if pose_utility**2 / steps > max_rate:
                    best_pose, max_rate = neighbor, pose_utility**2 / steps
        layer = next_layer
    return first_action_by_pose[best_pose] if max_rate else None


get_shortest_paths = functools.lru_cache(maxsize=4096)(ShortestPaths)
"""Function that returns `ShortestPaths` for given arguments, from a cache of recent ones."""
