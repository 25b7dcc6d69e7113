"""Shortest paths over poses (cell and direction), one for every turn and every step forward.

Ties between equally short paths are broken by the first action in which they differ: forward, then left, then right.
So the choice is a function of the map alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from llmrl.teachers.rooms.observed_room import FORWARD, LEFT, RIGHT, Geometry

KEPT = 4096
"""Searches remembered; the oldest is forgotten first."""


class PathsTo:
    """Actions to every pose that faces the cell `target` from beside it.

    A breadth-first search backwards from the target that goes on only as far as it is asked, and remembers.

    Args:
        geometry: of the array.
        walkable: of all cells, 1 where an agent may be.
        target: the cell to face.
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
        """Fewest actions; None: it cannot be reached."""
        found, queue, geometry, walkable = self._distance, self._queue, self.geometry, self.walkable
        while pose not in found and queue:
            here = queue.popleft()
            far = found[here] + 1
            cell = geometry.behind[here]
            before = 4 * cell + (here & 3) if cell >= 0 and walkable[cell] else -1
            for other in (before, geometry.right[here], geometry.left[here]):
                if other >= 0 and other not in found:
                    found[other] = far
                    queue.append(other)
        return found.get(pose)

    def action(self, pose: int) -> int | None:
        """The first action of a shortest path, of several forward before left before right.

        None if there is no path, or if it has no steps.
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
    geometry: Geometry, walkable: bytes, pose: int, worth: Callable[[int], int], detour: int = 0
) -> int | None:
    """The first action of a walk, of a step at least, to a pose for which `worth` is above 0; None: there is none.

    Of the walks at most `detour` steps longer than the shortest it is the one with the highest worth² per step, then
    the shortest, then one that starts forward. Until something changes, a walk is gone to its end: with every step its
    worth per step grows.
    """
    first = {pose: -1}
    layer, steps, last = [pose], 0, -1
    best, most = -1, 0.0
    while layer and steps != last:
        steps += 1
        following: list[int] = []
        for here in layer:
            cell = geometry.ahead[here]
            forward = 4 * cell + (here & 3) if cell >= 0 and walkable[cell] else -1
            for other, action in ((forward, FORWARD), (geometry.left[here], LEFT), (geometry.right[here], RIGHT)):
                if other < 0 or other in first:
                    continue
                first[other] = action if here == pose else first[here]
                following.append(other)
                value = worth(other)
                if value and last < 0:
                    last = steps + detour
                if value**2 / steps > most:
                    best, most = other, value**2 / steps
        layer = following
    return first[best] if most else None


_kept: OrderedDict[tuple[int, bytes, int], PathsTo] = OrderedDict()


def paths_to(geometry: Geometry, walkable: bytes, target: int) -> PathsTo:
    """The search for these arguments, the same object if it was asked for lately."""
    key = (geometry.height, walkable, target)
    found = _kept.get(key)
    if found is None:
        found = _kept[key] = PathsTo(geometry, walkable, target)
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    return found
