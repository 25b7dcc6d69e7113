"""A room as an environment of MiniGrid, one game at a time.

It is built on MiniGrid's own engine, shares the layouts of the batched environment (`RoomsEnv`) and nothing else, and
is what that one is tested against.
"""

from __future__ import annotations

from typing import Any, Literal, SupportsFloat

import numpy as np
from gymnasium import spaces
from minigrid.core.constants import TILE_PIXELS
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import WorldObj
from minigrid.minigrid_env import MiniGridEnv
from numpy.typing import NDArray

from llmrl.envs.rooms import grid_rendering
from llmrl.envs.rooms.grid_world import NOBODY
from llmrl.envs.rooms.tasks import OneRoom

_UNSEEN = (0, 0, 0)
_EMPTY = (1, 0, 0)


class RoomEnv(MiniGridEnv):
    """A task of `llmrl.envs.rooms.tasks` on MiniGrid: what its four environments share.

    Args:
        task: what is laid out.
        observation: `map`: `image` is everything seen so far; `view`: what MiniGrid shows, the agent's view and its
            heading.
        agent_view_size: cells of the agent's view along either axis, odd and at least 3.
        max_steps: steps after which an episode is truncated.
        kwargs: whatever else `MiniGridEnv` takes, e.g. `render_mode`.
    """

    def __init__(
        self,
        task: OneRoom,
        observation: Literal["map", "view"] = "map",
        agent_view_size: int = 3,
        max_steps: int = 150,
        **kwargs: Any,
    ) -> None:
        if observation not in ("map", "view"):
            raise ValueError(f"observation={observation!r} is neither 'map' nor 'view'")
        self._task, self._mapped = task, observation == "map"
        self.seen: NDArray[np.bool_] = np.zeros((task.width, task.height), dtype=bool)
        missions = MissionSpace(mission_func=_mission)
        super().__init__(
            missions,
            width=task.width,
            height=task.height,
            max_steps=max_steps,
            agent_view_size=agent_view_size,
            **kwargs,
        )
        if self._mapped:
            image = spaces.Box(0, 255, (task.width, task.height, 4), np.uint8)
            self.observation_space = spaces.Dict({"image": image, "mission": missions})

    def _gen_grid(self, width: int, height: int) -> None:
        layout = self._task.draw(self.np_random)
        self.grid = Grid(width, height)
        for x in range(width):
            for y in range(height):
                self.grid.set(x, y, WorldObj.decode(*layout.cells[x, y].tolist()))
        self.agent_pos, self.agent_dir = layout.position, layout.heading
        self.mission = _mission()
        self.seen[:] = False

    def gen_obs(self) -> dict[str, Any]:
        """What the agent sees; adds what is in sight to the map."""
        if not self._mapped:
            return dict(super().gen_obs())  # type: ignore[no-untyped-call]
        self.seen |= self._in_sight()
        image = np.zeros((self.width, self.height, 4), dtype=np.uint8)
        for x in range(self.width):
            for y in range(self.height):
                image[x, y] = (*(self._cell(x, y) if self.seen[x, y] else _UNSEEN), NOBODY)
        held = self.carrying
        image[tuple(self.agent_pos)] = (*(held.encode() if held else _EMPTY), self.agent_dir)
        return {"image": image, "mission": self.mission}

    def step(  # type: ignore[override]
        self, action: Any
    ) -> tuple[dict[str, Any], SupportsFloat, bool, bool, dict[str, Any]]:
        front = self.grid.get(*self.front_pos)
        was_open = getattr(front, "is_open", True)
        observation, reward, terminated, truncated, info = super().step(action)
        # Of what an action can do to the cell in front, only a toggle opens a door.
        if not was_open and getattr(front, "is_open", False):
            reward, terminated = self._reward(), True
        return observation, reward, terminated, truncated, info

    def get_full_render(self, highlight: bool, tile_size: int = TILE_PIXELS) -> NDArray[np.uint8]:
        """Agents that see the map are shown with it: cells they have never seen are light grey."""
        if not self._mapped:
            return np.asarray(super().get_full_render(highlight, tile_size))  # type: ignore[no-untyped-call]
        x, y = self.agent_pos
        return grid_rendering.draw(self.grid.encode(), (int(x), int(y)), self.agent_dir, self.seen, tile_size=tile_size)

    def _cell(self, x: int, y: int) -> tuple[int, int, int]:
        item = self.grid.get(x, y)
        return _EMPTY if item is None else item.encode()

    def _in_sight(self) -> NDArray[np.bool_]:
        """Which cells of the grid MiniGrid's view shows now, [W, H]."""
        _, visible = self.gen_obs_grid()  # type: ignore[no-untyped-call]
        shown = np.zeros((self.width, self.height), dtype=bool)
        for x in range(self.width):
            for y in range(self.height):
                place = self.relative_coords(x, y)  # type: ignore[no-untyped-call]
                shown[x, y] = place is not None and visible[place]
        return shown


def _mission() -> str:
    return OneRoom.mission
