"""Rooms of LLM4Teach as MiniGrid environments, the reference implementation for the batched rooms."""

from __future__ import annotations

from typing import Any, SupportsFloat

import numpy as np
from gymnasium import spaces
from minigrid.core.constants import TILE_PIXELS
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import WorldObj
from minigrid.minigrid_env import MiniGridEnv
from numpy.typing import NDArray

from llmrl.envs.rooms.grid_world import NO_AGENT
from llmrl.envs.rooms.tasks import OneRoom
from llmrl.envs.rooms.vec_env import draw_frame

_UNSEEN = (0, 0, 0)
_EMPTY = (1, 0, 0)


class RoomEnv(MiniGridEnv):
    """MiniGrid environment of a task whose observation `image` contains all cells seen so far.

    Args:
        task: task that samples the layouts.
        agent_view_size: width and height of the agent's view in cells, odd and at least 3.
        max_steps: number of steps after which an episode is truncated.
        kwargs: other arguments of `MiniGridEnv`, such as `render_mode`.
    """

    def __init__(self, task: OneRoom, agent_view_size: int = 3, max_steps: int = 150, **kwargs: Any) -> None:
        self._task = task
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
        image = spaces.Box(0, 255, (task.width, task.height, 4), np.uint8)
        self.observation_space = spaces.Dict({"image": image, "mission": missions})

    def _gen_grid(self, width: int, height: int) -> None:
        layout = self._task.sample_layout(self.np_random)
        self.grid = Grid(width, height)
        for x in range(width):
            for y in range(height):
                self.grid.set(x, y, WorldObj.decode(*layout.cells[x, y].tolist()))
        self.agent_pos, self.agent_dir = layout.position, layout.heading
        self.mission = _mission()
        self.seen[:] = False

    def gen_obs(self) -> dict[str, Any]:
        """Add the visible cells to the map and return the agent's observation."""
        self.seen |= self._in_sight()
        image = np.zeros((self.width, self.height, 4), dtype=np.uint8)
        for x in range(self.width):
            for y in range(self.height):
                image[x, y] = (*(self._cell(x, y) if self.seen[x, y] else _UNSEEN), NO_AGENT)
        carried_object = self.carrying
        image[tuple(self.agent_pos)] = (*(carried_object.encode() if carried_object else _EMPTY), self.agent_dir)
        return {"image": image, "mission": self.mission}

    def step(self, action: Any) -> tuple[dict[str, Any], SupportsFloat, bool, bool, dict[str, Any]]:
        front = self.grid.get(*self.front_pos)
        was_open = getattr(front, "is_open", True)
        observation, reward, terminated, truncated, info = super().step(action)
        # Only the action toggle opens a door.
        if not was_open and getattr(front, "is_open", False):
            reward, terminated = self._reward(), True
        return observation, reward, terminated, truncated, info

    def get_full_render(self, highlight: bool, tile_size: int = TILE_PIXELS) -> NDArray[np.uint8]:
        """Return a frame in which cells that the agent has never seen are light gray."""
        x, y = self.agent_pos
        return draw_frame(self.grid.encode(), (int(x), int(y)), self.agent_dir, self.seen)

    def _cell(self, x: int, y: int) -> tuple[int, int, int]:
        item = self.grid.get(x, y)
        return _EMPTY if item is None else item.encode()

    def _in_sight(self) -> NDArray[np.bool_]:
        """Return whether each cell of the grid is visible in MiniGrid's view, [W, H] bool."""
        _, visible = self.gen_obs_grid()
        visible_cells = np.zeros((self.width, self.height), dtype=bool)
        for x in range(self.width):
            for y in range(self.height):
                place = self.relative_coords(x, y)
                visible_cells[x, y] = place is not None and visible[place]
        return visible_cells


def _mission() -> str:
    return "open the door"
