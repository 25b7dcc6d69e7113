"""The rooms of the policy teacher (Zhou et al., 2023, arXiv 2311.13373): how they are laid out, and what solves them.

A task draws layouts and judges events. It knows neither games in lock step nor observations, so that the batched
environment and the one built on MiniGrid draw the same layouts from the same random numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.envs.rooms.world import BLUE, DOOR, EMPTY, GREY, KEY, LAVA, LOCKED, RED, WALL, Events, Layout

_COLOURS = 6
Cell = tuple[int, int]


class Task(ABC):
    """What a game is about.

    Attributes:
        name: option name of the environment, e.g. `simple_doorkey`.
        mission: the task in words.
        width, height: cells of the grid.
        horizon: steps after which a game is customarily cut.
        has_lava: whether a game can end in lava.
    """

    name: str
    mission: str
    width: int
    height: int
    horizon: int = 150
    has_lava: bool = False

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Layout:
        """A layout for a new game."""

    def success(self, events: Events) -> NDArray[np.bool_]:
        """In which games, [n], this step solved the task: a door was opened."""
        return events.opened


class OneRoom(Task):
    """A walled room in the top left corner of the grid, with locked doors in its outer wall and nothing behind them.

    Width and height of the room, walls included, are drawn independently and uniformly; the agent starts on any free
    cell, with any heading. What is outside the room is empty and never seen.

    Args:
        min_size, max_size: least and largest width and height of the room, walls included; the grid is `max_size` wide
            and high.

    Raises:
        ConfigError: sizes that are no range, or too small for what the room must hold.
    """

    mission = "open the door"

    def __init__(self, min_size: PositiveInt, max_size: PositiveInt, objects: int = 1) -> None:
        # Keys and lava, and a free cell for the agent.
        least = next(size for size in range(4, objects + 5) if (size - 2) ** 2 > objects)
        if min_size < least:
            raise ConfigError(f"{self.name}: min_size={min_size} has no space for the objects; {least} is the least")
        if max_size < min_size:
            raise ConfigError(f"{self.name}: max_size={max_size} is below min_size={min_size}")
        self._min_size, self._max_size = min_size, max_size
        self.width = self.height = max_size

    def draw(self, rng: np.random.Generator) -> Layout:
        width, height = (int(size) for size in rng.integers(self._min_size, self._max_size + 1, size=2))
        room = Room(rng, (self.width, self.height), width, height)
        self.furnish(room)
        return Layout(room.cells, room.free_cell(), int(rng.integers(4)))

    @abstractmethod
    def furnish(self, room: Room) -> None:
        """Put doors, keys and lava into an empty room."""


class SimpleDoorKey(OneRoom):
    """A door and the key to it, of any colour, anywhere."""

    name = "simple_doorkey"

    def __init__(self, min_size: PositiveInt = 5, max_size: PositiveInt = 10) -> None:
        super().__init__(min_size, max_size)

    def furnish(self, room: Room) -> None:
        colour = room.draw(_COLOURS)
        room.door(room.draw(4), colour)
        room.put(KEY, colour)


class LavaDoorKey(OneRoom):
    """As `SimpleDoorKey`, and one cell of lava, which is not the cell in front of the door."""

    name = "lava_doorkey"
    has_lava = True

    def __init__(self, min_size: PositiveInt = 5, max_size: PositiveInt = 10) -> None:
        super().__init__(min_size, max_size, objects=2)

    def furnish(self, room: Room) -> None:
        colour = room.draw(_COLOURS)
        front = room.door(room.draw(4), colour)
        # Lava first: it cannot be moved, and a key takes any cell that is left.
        room.put(LAVA, RED, but_not=[front])
        room.put(KEY, colour)


class ColoredDoorKey(OneRoom):
    """A blue door, one blue key, and red keys that open nothing; no key lies in front of the door.

    Args:
        n_keys: keys in the room, red ones and the blue one; as many as published: 2.
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
    """Two doors of one colour in opposite walls, either of which solves the task, and the key in the middle.

    The key lies on one of the four central cells (of an odd width or height: the middle one and the one before it).
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
    """A room being laid out.

    Attributes:
        cells: kind, colour and state, [W, H, 3] uint8.
    """

    def __init__(self, rng: np.random.Generator, grid: tuple[int, int], width: int, height: int) -> None:
        self._rng, self.width, self.height = rng, width, height
        self.cells = np.zeros((*grid, 3), dtype=np.uint8)
        self.cells[..., 0] = EMPTY
        self.cells[:width, :height] = (WALL, GREY, 0)
        self.cells[1 : width - 1, 1 : height - 1] = (EMPTY, 0, 0)

    def draw(self, n: int) -> int:
        """One of 0 .. n - 1."""
        return int(self._rng.integers(n))

    def free_cell(self, but_not: Iterable[Cell] = ()) -> Cell:
        """An empty cell of the room."""
        free = self.cells[: self.width, : self.height, 0] == EMPTY
        for cell in but_not:
            free[cell] = False
        x, y = np.divmod(np.flatnonzero(free), self.height)
        chosen = self.draw(len(x))
        return int(x[chosen]), int(y[chosen])

    def put(self, kind: int, colour: int, but_not: Iterable[Cell] = ()) -> None:
        self.cells[self.free_cell(but_not)] = (kind, colour, 0)

    def door(self, side: int, colour: int) -> Cell:
        """Put a locked door anywhere into the wall on `side` (0 east, 1 south, 2 west, 3 north); returns the cell in
        front of it."""
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
