"""Parsed observation of a room: positions of objects, the carried object, and walkable cells."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA = range(10)
"""Object ids of MiniGrid."""
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
"""Colors in the order of MiniGrid's ids."""
OPEN, CLOSED, LOCKED = range(3)
"""States of a door."""
LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
"""Actions."""
EAST, SOUTH, WEST, NORTH = range(4)
"""Directions; x grows eastwards, y southwards."""

_NO_AGENT = 4
_WALKABLE = bytes(i in (EMPTY, FLOOR, GOAL) for i in range(256))
_WALKABLE_AND_LAVA = bytes(i in (EMPTY, FLOOR, GOAL, LAVA) for i in range(256))


class Geometry:
    """Tables of neighbors in a grid of `width` x `height` cells.

    A cell is x * height + y; a pose is 4 * cell + direction. A neighbor outside the grid is -1.

    Attributes:
        neighbors: four neighbors of each cell in the order of directions.
        ahead, behind: cell in front of and behind each pose.
        left, right: pose after a left or right turn, for each pose.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.neighbors: list[tuple[int, int, int, int]] = []
        for x in range(width):
            for y in range(height):
                steps = ((x + 1, y), (x, y + 1), (x - 1, y), (x, y - 1))
                inside = [i * height + j if 0 <= i < width and 0 <= j < height else -1 for i, j in steps]
                self.neighbors.append((inside[0], inside[1], inside[2], inside[3]))
        poses = range(4 * width * height)
        self.ahead = [self.neighbors[pose >> 2][pose & 3] for pose in poses]
        self.behind = [self.neighbors[pose >> 2][(pose + 2) & 3] for pose in poses]
        self.left = [(pose & ~3) | ((pose - 1) & 3) for pose in poses]
        self.right = [(pose & ~3) | ((pose + 1) & 3) for pose in poses]


geometry = functools.cache(Geometry)


class ObservedRoom:
    """Room as one agent has observed it.

    Args:
        grid: channel `grid` [width, height, 4] uint8 indexed (x, y): object, color, state, agent map. The agent's own
            cell
            shows the object that it carries.

    Attributes:
        ids, colors, states: object ids, colors and states of all cells, as bytes.
        cell, pose: cell and pose of the agent.
        carried: id and color of the carried object; None: nothing is carried.
        walkable: 1 for cells that the agent may enter without harm and for its own cell, as bytes.

    Raises:
        ValueError: the grid shows no agent.
    """

    def __init__(self, grid: np.ndarray) -> None:
        width, height, _ = grid.shape
        self.geometry = geometry(width, height)
        planes: np.ndarray = np.ascontiguousarray(np.moveaxis(grid, -1, 0))
        self.ids: bytes = planes[0].tobytes()
        self.colors: bytes = planes[1].tobytes()
        self.states: bytes = planes[2].tobytes()
        agent_map: bytes = planes[3].tobytes()
        direction = min(agent_map)
        if direction == _NO_AGENT:
            raise ValueError("the grid shows no agent: its fourth plane must hold a direction (0 to 3)")
        self.cell = agent_map.index(direction)
        self.pose = 4 * self.cell + direction
        kind = self.ids[self.cell]
        self.carried = (kind, self.colors[self.cell]) if kind in (KEY, BALL, BOX) else None
        self.walkable = self._walkable(_WALKABLE)

    @property
    def front(self) -> int:
        """Cell in front of the agent; -1: outside the grid."""
        return self.geometry.ahead[self.pose]

    def cells(self, kind: int) -> Iterator[int]:
        """Yield the cells with an object of `kind`, by x, then y, without the carried object."""
        cell = self.ids.find(kind)
        while cell >= 0:
            if cell != self.cell:
                yield cell
            cell = self.ids.find(kind, cell + 1)

    def walkable_with_lava(self) -> bytes:
        """Return `walkable` with lava treated as floor."""
        return self._walkable(_WALKABLE_AND_LAVA)

    def _walkable(self, is_walkable: bytes) -> bytes:
        walkable = bytearray(self.ids.translate(is_walkable))
        walkable[self.cell] = 1
        for door in self.cells(DOOR):
            walkable[door] = self.states[door] == OPEN
        return bytes(walkable)
