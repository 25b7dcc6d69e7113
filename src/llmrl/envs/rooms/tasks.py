"""Tasks in rooms of the policy teacher (Zhou et al., 2023, arXiv 2311.13373): their layouts and success criteria.

A task draws layouts and judges events, independently of games in lock step and of observations. The batched environment
and the one built on MiniGrid therefore draw the same layouts from the same random numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.envs.rooms.grid_world import BLUE, DOOR, EMPTY, GRAY, KEY, LAVA, LOCKED, RED, WALL, RoomEvents, RoomLayout

_N_COLORS = 6
Cell = tuple[int, int]


class RoomTask(ABC):
    """Base class of tasks.

    Attributes:
        name: option name of the environment, e.g. `simple_doorkey`.
        mission: the task in words.
        width, height: size of the grid, cells.
        horizon: default number of steps after which a game is truncated.
        has_lava: whether a game can end in lava.
    """

    name: str
    mission: str
    width: int
    height: int
    horizon: int = 150
    has_lava: bool = False

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> RoomLayout:
        """Return a layout for a new game."""

    def success(self, events: RoomEvents) -> NDArray[np.bool_]:
        """Return whether the step solved the task, [n] bool; by default, whether a door was opened."""
        return events.opened


class OneRoom(RoomTask):
    """A walled room in the top left corner of the grid, with locked doors in its outer wall and nothing behind them.

    Width and height of the room, walls included, are drawn independently and uniformly. The agent starts on a random
    free cell, with a random heading. Cells outside the room are empty and never seen.

    Args:
        min_size, max_size: minimum and maximum width and height of the room, walls included, cells. `max_size` is also
            the width and height of the grid.
        objects: number of keys and lava cells for which the smallest room must have space.

    Raises:
        ConfigError: `max_size` is below `min_size`, or the smallest room has no space for the objects.
    """

    mission = "open the door"

    def __init__(self, min_size: PositiveInt, max_size: PositiveInt, objects: int = 1) -> None:
        # Space for the objects and a free cell for the agent.
        smallest = next(size for size in range(4, objects + 5) if (size - 2) ** 2 > objects)
        if min_size < smallest:
            raise ConfigError(f"{self.name}: min_size={min_size} has no space for the objects; use at least {smallest}")
        if max_size < min_size:
            raise ConfigError(f"{self.name}: max_size={max_size} must be at least min_size={min_size}")
        self._min_size, self._max_size = min_size, max_size
        self.width = self.height = max_size

    def draw(self, rng: np.random.Generator) -> RoomLayout:
        width, height = (int(size) for size in rng.integers(self._min_size, self._max_size + 1, size=2))
        room = Room(rng, (self.width, self.height), width, height)
        self.place_objects(room)
        return RoomLayout(room.cells, room.free_cell(), int(rng.integers(4)))

    @abstractmethod
    def place_objects(self, room: Room) -> None:
        """Put doors, keys and lava into an empty room."""


class SimpleDoorKey(OneRoom):
    """A door and its key, of a random color, at random places."""

    name = "simple_doorkey"

    def __init__(self, min_size: PositiveInt = 5, max_size: PositiveInt = 10) -> None:
        super().__init__(min_size, max_size)

    def place_objects(self, room: Room) -> None:
        color = room.draw(_N_COLORS)
        room.door(room.draw(4), color)
        room.put(KEY, color)


class LavaDoorKey(OneRoom):
    """The layout of `SimpleDoorKey` with one cell of lava, which is not the cell in front of the door."""

    name = "lava_doorkey"
    has_lava = True

    def __init__(self, min_size: PositiveInt = 5, max_size: PositiveInt = 10) -> None:
        super().__init__(min_size, max_size, objects=2)

    def place_objects(self, room: Room) -> None:
        color = room.draw(_N_COLORS)
        front = room.door(room.draw(4), color)
        # Lava first, because its place is restricted; the key takes any cell that is left.
        room.put(LAVA, RED, excluded=[front])
        room.put(KEY, color)


class ColoredDoorKey(OneRoom):
    """A blue door, one blue key, and red keys that open nothing. No key lies in front of the door.

    Args:
        min_size, max_size: as in `OneRoom`.
        n_keys: number of keys, the blue one included; 2 in the paper.
    """

    name = "colored_doorkey"

    def __init__(self, min_size: PositiveInt = 5, max_size: PositiveInt = 10, n_keys: PositiveInt = 2) -> None:
        super().__init__(min_size, max_size, objects=n_keys)
        self._n_keys = n_keys

    def place_objects(self, room: Room) -> None:
        front = room.door(room.draw(4), BLUE)
        for color in [BLUE] + [RED] * (self._n_keys - 1):
            room.put(KEY, color, excluded=[front])


class TwoDoor(OneRoom):
    """Two doors of one color in opposite walls, and their key in the middle. Opening either door solves the task.

    The key lies on one of the four central cells (for an odd width or height, the middle cell and the one before it).
    """

    name = "two_door"

    def __init__(self, min_size: PositiveInt = 20, max_size: PositiveInt = 20) -> None:
        super().__init__(min_size, max_size)

    def place_objects(self, room: Room) -> None:
        color = room.draw(_N_COLORS)
        side = room.draw(2)
        room.door(side, color)
        room.door(side + 2, color)
        x, y = room.width // 2 - room.draw(2), room.height // 2 - room.draw(2)
        room.cells[x, y] = (KEY, color, 0)


class Room:
    """A room whose layout is being drawn.

    Attributes:
        cells: kind, color and state of all cells of the grid, [W, H, 3] uint8.
    """

    def __init__(self, rng: np.random.Generator, grid: tuple[int, int], width: int, height: int) -> None:
        self._rng, self.width, self.height = rng, width, height
        self.cells = np.zeros((*grid, 3), dtype=np.uint8)
        self.cells[..., 0] = EMPTY
        self.cells[:width, :height] = (WALL, GRAY, 0)
        self.cells[1 : width - 1, 1 : height - 1] = (EMPTY, 0, 0)

    def draw(self, n: int) -> int:
        """Return a uniform random integer in 0 .. n - 1."""
        return int(self._rng.integers(n))

    def free_cell(self, excluded: Iterable[Cell] = ()) -> Cell:
        """Return a uniformly drawn empty cell of the room that is not in `excluded`."""
        free = self.cells[: self.width, : self.height, 0] == EMPTY
        for cell in excluded:
            free[cell] = False
        x, y = np.divmod(np.flatnonzero(free), self.height)
        index = self.draw(len(x))
        return int(x[index]), int(y[index])

    def put(self, kind: int, color: int, excluded: Iterable[Cell] = ()) -> None:
        self.cells[self.free_cell(excluded)] = (kind, color, 0)

    def door(self, side: int, color: int) -> Cell:
        """Put a locked door at a random place into a wall; return the cell in front of it.

        `side` is the wall: 0 east, 1 south, 2 west, 3 north.
        """
        offset = 1 + self.draw((self.height if side % 2 == 0 else self.width) - 2)
        max_x, max_y = self.width - 1, self.height - 1
        door, front = {
            0: ((max_x, offset), (max_x - 1, offset)),
            1: ((offset, max_y), (offset, max_y - 1)),
            2: ((0, offset), (1, offset)),
            3: ((offset, 0), (offset, 1)),
        }[side]
        self.cells[door] = (DOOR, color, LOCKED)
        return front
