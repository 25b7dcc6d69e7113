"""Room tasks: generation of layouts and success criteria.

Most tasks come from LLM4Teach (Zhou et al. 2023, arXiv 2311.13373). `DoorKey` and `UnlockPickup` are environments of
MiniGrid, which generates their layouts. Tasks contain no code for steps or observations. The batched `RoomsEnv` and an
environment based on MiniGrid (in the tests) therefore get the same layouts from the same random numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.envs.rooms.grid_world import (
    BLUE,
    BOX,
    DOOR,
    EAST,
    EMPTY,
    GRAY,
    KEY,
    LAVA,
    LOCKED,
    NORTH,
    RED,
    SOUTH,
    WALL,
    WEST,
    RoomEvents,
    RoomLayout,
)

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

_N_COLORS = 6  # colors of MiniGrid
Position = tuple[int, int]
"""Coordinates (x, y) of a cell."""


class RoomTask(ABC):
    """Base class of tasks.

    Attributes:
        name: value of the option `env`, e.g. `simple_doorkey`.
        width, height: size of the grid, in cells.
        horizon: default step limit of an episode.
        has_lava: whether layouts can contain lava, which ends the episode.
    """

    name: str
    width: int
    height: int
    horizon: int = 150
    has_lava: bool = False

    @abstractmethod
    def sample_layout(self, rng: np.random.Generator) -> RoomLayout:
        """Return a random layout for a new episode."""

    def find_successes(self, events: RoomEvents) -> NDArray[np.bool_]:
        """Return whether a step with these events solved each of n games, [n] bool; by default, opening a door does."""
        return events.opened_door


class OneRoom(RoomTask):
    """A walled room in the top left corner of the grid, with locked doors in its outer wall and nothing behind them.

    Width and height of the room are sampled independently and uniformly. The agent starts on a random empty cell, with
    a random heading. Cells outside the room are empty, and agents never see them.

    Args:
        min_size, max_size: minimum and maximum of the room's width and of its height, in cells with the walls.
            `max_size` is also the width and height of the grid.

    Attributes:
        n_required_cells: number of cells inside the room that keys and lava occupy.

    Raises:
        ConfigError: `max_size` is below `min_size`, or a room of minimum size has no space for the objects.
    """

    n_required_cells: int = 1

    def __init__(self, min_size: PositiveInt = 5, max_size: PositiveInt = 10) -> None:
        # The inside, (size - 2) x (size - 2) cells, must contain the objects and an empty cell for the agent.
        n_cells = self.n_required_cells
        required_size = next(size for size in range(4, n_cells + 5) if (size - 2) ** 2 > n_cells)
        if min_size < required_size:
            raise ConfigError(
                f"{self.name}: min_size={min_size} has no space for the objects; use at least {required_size}"
            )
        if max_size < min_size:
            raise ConfigError(f"{self.name}: max_size={max_size} must be at least min_size={min_size}")
        self._min_size, self._max_size = min_size, max_size
        self.width = self.height = max_size

    def sample_layout(self, rng: np.random.Generator) -> RoomLayout:
        width, height = (int(size) for size in rng.integers(self._min_size, self._max_size + 1, size=2))
        room = RoomBuilder(rng, (self.width, self.height), width, height)
        self.place_objects(room)
        return RoomLayout(room.cells, room.sample_free_position(), int(rng.integers(4)))

    @abstractmethod
    def place_objects(self, room: RoomBuilder) -> None:
        """Add doors, keys and lava to an empty room."""


class SimpleDoorKey(OneRoom):
    """Task with a locked door and its key at random positions; both have the same random color."""

    name = "simple_doorkey"

    def place_objects(self, room: RoomBuilder) -> None:
        color = room.sample_integer(_N_COLORS)
        room.place_door(room.sample_integer(4), color)
        room.place_object(KEY, color)


class LavaDoorKey(OneRoom):
    """Task with the layout of `SimpleDoorKey` and one lava cell, which is not the cell in front of the door."""

    name = "lava_doorkey"
    has_lava = True
    n_required_cells = 2

    def place_objects(self, room: RoomBuilder) -> None:
        color = room.sample_integer(_N_COLORS)
        front_cell = room.place_door(room.sample_integer(4), color)
        # Lava comes first: it must not be in front of the door, whereas the key may lie on any remaining cell.
        room.place_object(LAVA, RED, excluded=[front_cell])
        room.place_object(KEY, color)


class ColoredDoorKey(OneRoom):
    """Task with a blue door, one blue key, and red keys that open nothing. No key lies in front of the door.

    Args:
        min_size, max_size: see `OneRoom`.
        n_keys: number of keys, including the blue one; LLM4Teach has 2.
    """

    name = "colored_doorkey"

    def __init__(self, min_size: PositiveInt = 5, max_size: PositiveInt = 10, n_keys: PositiveInt = 2) -> None:
        self.n_required_cells = n_keys
        super().__init__(min_size, max_size)

    def place_objects(self, room: RoomBuilder) -> None:
        front_cell = room.place_door(room.sample_integer(4), BLUE)
        for color in [BLUE] + [RED] * (self.n_required_cells - 1):
            room.place_object(KEY, color, excluded=[front_cell])


class TwoDoor(OneRoom):
    """Task with two doors of one color in opposite walls and their key in the middle; opening either door solves it.

    The key lies on one of four central cells. If a side has an odd number of cells, these are, along that side, the
    middle cell and the cell before it.
    """

    name = "two_door"

    def __init__(self, min_size: PositiveInt = 20, max_size: PositiveInt = 20) -> None:
        super().__init__(min_size, max_size)

    def place_objects(self, room: RoomBuilder) -> None:
        color = room.sample_integer(_N_COLORS)
        for side in ((EAST, WEST), (SOUTH, NORTH))[room.sample_integer(2)]:
            room.place_door(side, color)
        x, y = room.width // 2 - room.sample_integer(2), room.height // 2 - room.sample_integer(2)
        room.cells[x, y] = (KEY, color, 0)


class RoomBuilder:
    """Builder of the layout of one room, which has walls and no objects at first.

    Args:
        rng: random number generator.
        grid_size: width and height of the grid, in cells.
        width, height: width and height of the room, in cells with the walls.

    Attributes:
        cells: kind, color and state of all cells of the grid, [grid width, grid height, 3] uint8.
    """

    def __init__(self, rng: np.random.Generator, grid_size: tuple[int, int], width: int, height: int) -> None:
        self._rng, self.width, self.height = rng, width, height
        self.cells = np.zeros((*grid_size, 3), dtype=np.uint8)
        self.cells[..., 0] = EMPTY
        self.cells[:width, :height] = (WALL, GRAY, 0)
        self.cells[1 : width - 1, 1 : height - 1] = (EMPTY, 0, 0)

    def sample_integer(self, n: int) -> int:
        """Return a uniform random integer in 0 .. n - 1."""
        return int(self._rng.integers(n))

    def sample_free_position(self, excluded: Iterable[Position] = ()) -> Position:
        """Return the position of a uniformly random empty cell of the room that is not in `excluded`."""
        is_free = self.cells[: self.width, : self.height, 0] == EMPTY
        for position in excluded:
            is_free[position] = False
        x, y = np.divmod(np.flatnonzero(is_free), self.height)
        index = self.sample_integer(len(x))
        return int(x[index]), int(y[index])

    def place_object(self, kind: int, color: int, excluded: Iterable[Position] = ()) -> None:
        """Place an object on a random empty cell that is not in `excluded`."""
        self.cells[self.sample_free_position(excluded)] = (kind, color, 0)

    def place_door(self, side: int, color: int) -> Position:
        """Place a locked door at a random position in a wall, except its corners; return the cell in front of it.

        Args:
            side: the wall: `EAST`, `SOUTH`, `WEST` or `NORTH`.
            color: MiniGrid's index of the door's color, 0 to 5.
        """
        offset = 1 + self.sample_integer((self.height if side in (EAST, WEST) else self.width) - 2)
        max_x, max_y = self.width - 1, self.height - 1
        door_cell, front_cell = {
            EAST: ((max_x, offset), (max_x - 1, offset)),
            SOUTH: ((offset, max_y), (offset, max_y - 1)),
            WEST: ((0, offset), (1, offset)),
            NORTH: ((offset, 0), (offset, 1)),
        }[side]
        self.cells[door_cell] = (DOOR, color, LOCKED)
        return front_cell


class MiniGridTask(RoomTask):
    """Base class of tasks whose layouts a MiniGrid environment generates, by `reset(seed)` with a random seed.

    The environment is created for the first layout and then reused.
    """

    _env: MiniGridEnv | None = None

    @abstractmethod
    def make_env(self) -> MiniGridEnv:
        """Return a new MiniGrid environment of the task."""

    def sample_layout(self, rng: np.random.Generator) -> RoomLayout:
        if self._env is None:
            self._env = self.make_env()
            # `reset` would compute an observation, which is not used and takes longer than the layout.
            self._env.gen_obs = dict  # type: ignore[method-assign]
        self._env.reset(seed=int(rng.integers(2**31)))
        codes = [(EMPTY, 0, 0) if obj is None else obj.encode() for obj in self._env.grid.grid]
        cells = np.array(codes, dtype=np.uint8).reshape(self.height, self.width, 3).transpose(1, 0, 2)
        x, y = self._env.agent_pos
        return RoomLayout(cells, (int(x), int(y)), int(self._env.agent_dir))


class DoorKey(MiniGridTask):
    """MiniGrid-DoorKey: fetch the key, open the door in the wall that divides the grid, and reach the goal behind it.

    Args:
        size: width and height of the grid, in cells with the walls, >= 5.

    Raises:
        ConfigError: `size` leaves no space for two rooms.
    """

    name = "doorkey"

    def __init__(self, size: PositiveInt = 8) -> None:
        if size < 5:
            raise ConfigError(f"doorkey: size={size} has no space for two rooms; use at least 5")
        self.width = self.height = size
        self.horizon = 10 * size**2  # step limit of MiniGrid

    def make_env(self) -> MiniGridEnv:
        from minigrid.envs.doorkey import DoorKeyEnv

        return DoorKeyEnv(size=self.width)

    def find_successes(self, events: RoomEvents) -> NDArray[np.bool_]:
        """Return whether the agent reached the goal, [n] bool."""
        return events.reached_goal


class UnlockPickup(MiniGridTask):
    """MiniGrid-UnlockPickup: fetch the key, open the door to the other room, and pick up the box in it."""

    name = "unlock_pickup"
    width, height, horizon = 11, 6, 288  # step limit of MiniGrid: 8 * (room size of 6)²

    def make_env(self) -> MiniGridEnv:
        from minigrid.envs.unlockpickup import UnlockPickupEnv

        return UnlockPickupEnv()

    def find_successes(self, events: RoomEvents) -> NDArray[np.bool_]:
        """Return whether the agent picked up the box, [n] bool."""
        return np.equal(events.picked_up, BOX)
