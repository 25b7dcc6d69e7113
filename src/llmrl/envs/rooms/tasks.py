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
from llmrl.envs.rooms.grid_world import BLUE, DOOR, EMPTY, GREY, KEY, LAVA, LOCKED, RED, WALL, RoomEvents, RoomLayout

_COLOURS = 6
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
        objects: number of keys and lava cells that the smallest room must hold beside the agent.

    Raises:
        ConfigError: `max_size` is below `min_size`, or the smallest room has no space for the objects.
    """

    mission = "open the door"

    def __init__(self, min_size: PositiveInt, max_size: PositiveInt, objects: int = 1) -> None:
        # Space for the objects and a free cell for the agent.
        least = next(size for size in range(4, objects + 5) if (size - 2) ** 2 > objects)
        if min_size < least:
            raise ConfigError(f"{self.name}: min_size={min_size} has no space for the objects; {least} is the least")
        if max_size < min_size:
            raise ConfigError(f"{self.name}: max_size={max_size} is below min_size={min_size}")
        self._min_size, self._max_size = min_size, max_size
        self.width = self.height = max_size

    def draw(self, rng: np.random.Generator) -> RoomLayout:
        width, height = (int(size) for size in rng.integers(self._min_size, self._max_size + 1, size=2))
        room = Room(rng, (self.width, self.height), width, height)
        self.furnish(room)
        return RoomLayout(room.cells, room.free_cell(), int(rng.integers(4)))

    @abstractmethod
    def furnish(self, room: Room) -> None:
        """Put doors, keys and lava into an empty room."""


class SimpleDoorKey(OneRoom):
    """A door and its key, of a random colour, at random places."""

    name = "simple_doorkey"

    def __init__(self, min_size: PositiveInt = 5, max_size: PositiveInt = 10) -> None:
        super().__init__(min_size, max_size)

    def furnish(self, room: Room) -> None:
        colour = room.draw(_COLOURS)
        room.door(room.draw(4), colour)
        room.put(KEY, colour)


class LavaDoorKey(OneRoom):
    """The layout of `SimpleDoorKey` with one cell of lava, which is not the cell in front of the door."""

    name = "lava_doorkey"
    has_lava = True

    def __init__(self, min_size: PositiveInt = 5, max_size: PositiveInt = 10) -> None:
        super().__init__(min_size, max_size, objects=2)

    def furnish(self, room: Room) -> None:
        colour = room.draw(_COLOURS)
        front = room.door(room.draw(4), colour)
        # Lava first, because its place is restricted; the key takes any cell that is left.
        room.put(LAVA, RED, but_not=[front])
        room.put(KEY, colour)


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

    def furnish(self, room: Room) -> None:
        front = room.door(room.draw(4), BLUE)
        for colour in [BLUE] + [RED] * (self._n_keys - 1):
            room.put(KEY, colour, but_not=[front])


class TwoDoor(OneRoom):
    """Two doors of one colour in opposite walls, and their key in the middle. Opening either door solves the task.

    The key lies on one of the four central cells (for an odd width or height, the middle cell and the one before it).
    """

    name = "two_door"

    def __init__(self, min_size: PositiveInt = 20, max_size: PositiveInt = 20) -> None:
        super().__init__(min_size, max_size)

    def furnish(self, room: Room) -> None:
        colour = room.draw(_COLOURS)
        side = room.draw(2)
        room.door(side, colour)
        room.door(side + 2, colour)
        x, y = room.width // 2 - room.draw(2), room.height // 2 - room.draw(2)
        room.cells[x, y] = (KEY, colour, 0)


class Room:
    """A room whose layout is being drawn.

    Attributes:
        cells: kind, colour and state of all cells of the grid, [W, H, 3] uint8.
    """

    def __init__(self, rng: np.random.Generator, grid: tuple[int, int], width: int, height: int) -> None:
        self._rng, self.width, self.height = rng, width, height
        self.cells = np.zeros((*grid, 3), dtype=np.uint8)
        self.cells[..., 0] = EMPTY
        self.cells[:width, :height] = (WALL, GREY, 0)
        self.cells[1 : width - 1, 1 : height - 1] = (EMPTY, 0, 0)

    def draw(self, n: int) -> int:
        """Return a uniform random integer in 0 .. n - 1."""
        return int(self._rng.integers(n))

    def free_cell(self, but_not: Iterable[Cell] = ()) -> Cell:
        """Return a uniformly drawn empty cell of the room that is not in `but_not`."""
        free = self.cells[: self.width, : self.height, 0] == EMPTY
        for cell in but_not:
            free[cell] = False
        x, y = np.divmod(np.flatnonzero(free), self.height)
        chosen = self.draw(len(x))
        return int(x[chosen]), int(y[chosen])

    def put(self, kind: int, colour: int, but_not: Iterable[Cell] = ()) -> None:
        self.cells[self.free_cell(but_not)] = (kind, colour, 0)

    def door(self, side: int, colour: int) -> Cell:
        """Put a locked door at a random place into the wall on `side` (0 east, 1 south, 2 west, 3 north); return the
        cell in front of it."""
        along = 1 + self.draw((self.height if side % 2 == 0 else self.width) - 2)
        far_x, far_y = self.width - 1, self.height - 1
        door, front = {
            0: ((far_x, along), (far_x - 1, along)),
            1: ((along, far_y), (along, far_y - 1)),
            2: ((0, along), (1, along)),
            3: ((along, 0), (along, 1)),
        }[side]
        self.cells[door] = (DOOR, colour, LOCKED)
        return front
