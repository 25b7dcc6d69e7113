"""Shortest paths over poses (cell and direction), with one action for every turn and every step forward.

Ties between equally short paths are broken by the first action in which they differ: forward, then left, then right.
The choice therefore depends on the map only.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable

from llmrl.teachers.rooms.observed_room import FORWARD, LEFT, RIGHT, Geometry


class PathsTo:
    """Shortest paths from every pose to the poses that face the cell `target` from a neighboring cell.

    A breadth-first search runs backwards from the target, only as far as requested, and its results are stored.

    Args:
        geometry: geometry of the grid.
        walkable: 1 for each cell that an agent may enter, as bytes.
        target: cell to face.
    """

    def __init__(self, geometry: Geometry, walkable: bytes, target: int) -> None:
        self.geometry, self.walkable = geometry, walkable
        self._distance: dict[int, int] = {}
        for direction in range(4):
            cell = geometry.behind[4 * target + direction]
            if cell >= 0 and walkable[cell]:
                self._distance[4 * cell + direction] = 0
        self._queue = deque(self._distance)

    def distance(self, pose: int) -> int | None:
        """Return the smallest number of actions; None if the target cannot be reached."""
        distances, queue, geometry, walkable = self._distance, self._queue, self.geometry, self.walkable
        while pose not in distances and queue:
            node = queue.popleft()
            next_distance = distances[node] + 1
            cell = geometry.behind[node]
            predecessor = 4 * cell + (node & 3) if cell >= 0 and walkable[cell] else -1
            for neighbor in (predecessor, geometry.right[node], geometry.left[node]):
                if neighbor >= 0 and neighbor not in distances:
                    distances[neighbor] = next_distance
                    queue.append(neighbor)
        return distances.get(pose)

    def action(self, pose: int) -> int | None:
        """Return the first action of a shortest path; ties prefer forward, then left, then right.

        It is None if there is no path, or if it has no steps.
        """
        distance = self.distance(pose)
        if not distance:
            return None
        geometry = self.geometry
        cell = geometry.ahead[pose]
        if cell >= 0 and self.walkable[cell] and self.distance(4 * cell + (pose & 3)) == distance - 1:
            return FORWARD
        return LEFT if self.distance(geometry.left[pose]) == distance - 1 else RIGHT


def walk_until(
    geometry: Geometry, walkable: bytes, pose: int, utility: Callable[[int], int], detour: int = 0
) -> int | None:
    """Return the first action of a walk, of at least one step, to a pose with `utility` above 0; None if there is none.

    Among the walks at most `detour` steps longer than the shortest, it is the one with the highest utility² per step,
    then the shortest, then one that starts forward. While the map stays the same, a walk is completed, since its
    utility per step grows with every step.
    """
    first_actions = {pose: -1}
    layer, steps, max_steps = [pose], 0, -1
    best, max_rate = -1, 0.0
    while layer and steps != max_steps:
        steps += 1
        next_layer: list[int] = []
        for node in layer:
            cell = geometry.ahead[node]
            forward = 4 * cell + (node & 3) if cell >= 0 and walkable[cell] else -1
            for neighbor, action in ((forward, FORWARD), (geometry.left[node], LEFT), (geometry.right[node], RIGHT)):
                if neighbor < 0 or neighbor in first_actions:
                    continue
                first_actions[neighbor] = action if node == pose else first_actions[node]
                next_layer.append(neighbor)
                value = utility(neighbor)
                if value and max_steps < 0:
                    max_steps = steps + detour
                if value**2 / steps > max_rate:
                    best, max_rate = neighbor, value**2 / steps
        layer = next_layer
    return first_actions[best] if max_rate else None


paths_to = functools.lru_cache(maxsize=4096)(PathsTo)
"""Search for given arguments, from a cache of recent ones."""
