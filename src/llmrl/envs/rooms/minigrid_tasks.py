"""MiniGrid's own tasks, whose layouts MiniGrid draws."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.envs.rooms.grid_world import BOX, EMPTY, RoomEvents, RoomLayout
from llmrl.envs.rooms.tasks import RoomTask

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

_EMPTY_CELL = (EMPTY, 0, 0)


class MiniGridTask(RoomTask):
    """Base class of tasks whose layouts are those of a MiniGrid environment after `reset(seed)` with a random seed.

    The environment is made when the first layout is drawn, and then reused.
    """

    _env: MiniGridEnv | None = None

    @abstractmethod
    def make(self) -> MiniGridEnv:
        """Return MiniGrid's environment of the task."""

    def sample_layout(self, rng: np.random.Generator) -> RoomLayout:
        if self._env is None:
            self._env = self.make()
            # MiniGrid's observation is not used, and takes longer to compute than the layout.
            self._env.gen_obs = dict  # type: ignore[method-assign]
        self._env.reset(seed=int(rng.integers(2**31)))
        rows = [_EMPTY_CELL if item is None else item.encode() for item in self._env.grid.grid]
        cells = np.array(rows, dtype=np.uint8).reshape(self.height, self.width, 3).transpose(1, 0, 2)
        x, y = self._env.agent_pos
        return RoomLayout(cells, (int(x), int(y)), int(self._env.agent_dir))


class DoorKey(MiniGridTask):
    """MiniGrid-DoorKey: fetch the key, open the door in the wall across the room, and reach the goal behind it.

    Args:
        size: width and height of the grid, walls included, cells; >= 5.

    Raises:
        ConfigError: `size` leaves no space for two rooms.
    """

    name = "doorkey"

    def __init__(self, size: PositiveInt = 8) -> None:
        if size < 5:
            raise ConfigError(f"doorkey: size={size} has no space for two rooms; use at least 5")
        self.width = self.height = size
        self.horizon = 10 * size**2

    def make(self) -> MiniGridEnv:
        from minigrid.envs.doorkey import DoorKeyEnv

        return DoorKeyEnv(size=self.width)

    def success(self, events: RoomEvents) -> NDArray[np.bool_]:
        """Return whether the agent reached the goal, [n] bool."""
        return events.goal


class UnlockPickup(MiniGridTask):
    """MiniGrid-UnlockPickup: fetch the key, open the door to the other room, and pick up the box in it."""

    name = "unlock_pickup"

    def __init__(self) -> None:
        self.width, self.height, self.horizon = 11, 6, 288

    def make(self) -> MiniGridEnv:
        from minigrid.envs.unlockpickup import UnlockPickupEnv

        return UnlockPickupEnv()

    def success(self, events: RoomEvents) -> NDArray[np.bool_]:
        """Return whether the agent picked up the box, [n] bool."""
        has_box: NDArray[np.bool_] = events.picked == BOX
        return has_box
