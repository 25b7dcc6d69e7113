"""Tasks of MiniGrid itself; MiniGrid draws their layouts."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.envs.rooms.tasks import Task
from llmrl.envs.rooms.world import BOX, EMPTY, Events, Layout

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

_EMPTY_CELL = (EMPTY, 0, 0)


class StockTask(Task):
    """A task whose layouts are those of a MiniGrid environment after `reset(seed)`, with a seed drawn for each.

    The environment is made when the first layout is drawn, and then reused.
    """

    _env: MiniGridEnv | None = None

    @abstractmethod
    def make(self) -> MiniGridEnv:
        """MiniGrid's own environment."""

    def draw(self, rng: np.random.Generator) -> Layout:
        if self._env is None:
            self._env = self.make()
            # What MiniGrid would observe is computed by nobody's wish, and takes longer than drawing the layout.
            self._env.gen_obs = dict  # type: ignore[method-assign]
        self._env.reset(seed=int(rng.integers(2**31)))
        return layout_of(self._env)


class DoorKey(StockTask):
    """MiniGrid-DoorKey: fetch the key, open the door in the wall across the room, and reach the goal behind it.

    Args:
        size: cells of the grid along either axis, walls included. >= 5

    Raises:
        ConfigError: a size that leaves no space for two rooms.
    """

    name = "doorkey"
    mission = "use the key to open the door and then get to the goal"

    def __init__(self, size: PositiveInt = 8) -> None:
        if size < 5:
            raise ConfigError(f"doorkey: size={size} leaves no space for two rooms; 5 is the least")
        self.width = self.height = size
        self.horizon = 10 * size**2

    def make(self) -> MiniGridEnv:
        from minigrid.envs.doorkey import DoorKeyEnv

        return DoorKeyEnv(size=self.width)

    def success(self, events: Events) -> NDArray[np.bool_]:
        """The goal was reached."""
        return events.goal


class UnlockPickup(StockTask):
    """MiniGrid-UnlockPickup: fetch the key, open the door to the other room, and pick up the box in it."""

    name = "unlock_pickup"
    mission = "pick up the box"

    def __init__(self) -> None:
        self.width, self.height, self.horizon = 11, 6, 288

    def make(self) -> MiniGridEnv:
        from minigrid.envs.unlockpickup import UnlockPickupEnv

        return UnlockPickupEnv()

    def success(self, events: Events) -> NDArray[np.bool_]:
        """The box was picked up."""
        picked: NDArray[np.bool_] = events.picked == BOX
        return picked


def layout_of(env: MiniGridEnv) -> Layout:
    """How a game of MiniGrid stands, as a beginning for `World`.

    Raises:
        ConfigError: a box with something in it, which `World` cannot hold.
    """
    objects = env.grid.grid
    if any(item is not None and item.contains is not None for item in objects):
        raise ConfigError("rooms know empty boxes only, and this layout has a box with something in it")
    rows = [_EMPTY_CELL if item is None else item.encode() for item in objects]
    cells = np.array(rows, dtype=np.uint8).reshape(env.height, env.width, 3).transpose(1, 0, 2)
    x, y = env.agent_pos
    return Layout(cells, (int(x), int(y)), int(env.agent_dir))
