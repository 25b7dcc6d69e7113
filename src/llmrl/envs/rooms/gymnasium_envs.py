"""The rooms as MiniGrid environments, one game at a time; importing this module registers them with Gymnasium."""

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
from llmrl.envs.rooms.registration import register
from llmrl.envs.rooms.tasks import ColoredDoorKey, LavaDoorKey, OneRoom, SimpleDoorKey, TwoDoor

_UNSEEN = (0, 0, 0)
_EMPTY = (1, 0, 0)


class RoomEnv(MiniGridEnv):
    """A task of `llmrl.envs.rooms.tasks` on MiniGrid: the base class of the four environments.

    Args:
        task: task that draws the layouts.
        observation: `map`: `image` contains all cells seen so far; `view`: MiniGrid's observation, the agent's view and
            its heading.
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
            raise ValueError(f"observation={observation!r} must be 'map' or 'view'")
        self._task, self._observes_map = task, observation == "map"
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
        if self._observes_map:
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
        """Return the agent's observation; add the cells in sight to the map."""
        if not self._observes_map:
            return dict(super().gen_obs())  # type: ignore[no-untyped-call]
        self.seen |= self._in_sight()
        image = np.zeros((self.width, self.height, 4), dtype=np.uint8)
        for x in range(self.width):
            for y in range(self.height):
                image[x, y] = (*(self._cell(x, y) if self.seen[x, y] else _UNSEEN), NOBODY)
        carried_object = self.carrying
        image[tuple(self.agent_pos)] = (*(carried_object.encode() if carried_object else _EMPTY), self.agent_dir)
        return {"image": image, "mission": self.mission}

    def step(  # type: ignore[override]
        self, action: Any
    ) -> tuple[dict[str, Any], SupportsFloat, bool, bool, dict[str, Any]]:
        front = self.grid.get(*self.front_pos)
        was_open = getattr(front, "is_open", True)
        observation, reward, terminated, truncated, info = super().step(action)
        # Among the actions on the cell in front, only a toggle opens a door.
        if not was_open and getattr(front, "is_open", False):
            reward, terminated = self._reward(), True
        return observation, reward, terminated, truncated, info

    def get_full_render(self, highlight: bool, tile_size: int = TILE_PIXELS) -> NDArray[np.uint8]:
        """Return a frame. If agents observe the map, cells that they have never seen are light gray."""
        if not self._observes_map:
            return np.asarray(super().get_full_render(highlight, tile_size))  # type: ignore[no-untyped-call]
        x, y = self.agent_pos
        return grid_rendering.draw(self.grid.encode(), (int(x), int(y)), self.agent_dir, self.seen, tile_size=tile_size)

    def _cell(self, x: int, y: int) -> tuple[int, int, int]:
        item = self.grid.get(x, y)
        return _EMPTY if item is None else item.encode()

    def _in_sight(self) -> NDArray[np.bool_]:
        """Return whether each cell of the grid is in MiniGrid's view now, [W, H] bool."""
        _, visible = self.gen_obs_grid()  # type: ignore[no-untyped-call]
        visible_cells = np.zeros((self.width, self.height), dtype=bool)
        for x in range(self.width):
            for y in range(self.height):
                place = self.relative_coords(x, y)  # type: ignore[no-untyped-call]
                visible_cells[x, y] = place is not None and visible[place]
        return visible_cells


def _mission() -> str:
    return OneRoom.mission


class SimpleDoorKeyEnv(RoomEnv):
    """## Description

    The agent is locked in a room of unknown size. It must find the key, which has the color of the door, and open the
    door with it. It remembers everything it has had in sight.

    ## Mission Space

    "open the door"

    ## Action Space

    | Num | Name         | Action                                |
    |-----|--------------|---------------------------------------|
    | 0   | left         | Turn left                             |
    | 1   | right        | Turn right                            |
    | 2   | forward      | Move forward                          |
    | 3   | pickup       | Pick up the object in front           |
    | 4   | drop         | Put the carried object down in front  |
    | 5   | toggle       | Open or close the door in front       |
    | 6   | done         | Unused                                |

    ## Observation Encoding

    - A dictionary of `image` and `mission`. `image` is the whole grid, indexed (x, y), with four numbers a cell:
      `(OBJECT_IDX, COLOR_IDX, STATE, AGENT)`.
    - `OBJECT_IDX` and `COLOR_IDX` are those of MiniGrid; cells that were never in sight are `(0, 0, 0)`, the agent's
      cell shows the object it carries.
    - `STATE` of a door: 0 open, 1 closed, 2 locked.
    - `AGENT` is 4, and on the agent's cell its heading: 0 east, 1 south, 2 west, 3 north.
    - With `observation="view"`: MiniGrid's own dictionary of `image` (the agent's view), `direction` and `mission`.

    ## Rewards

    A reward of '1 - 0.9 * (step_count / max_steps)' is given for success, and '0' for everything else.

    ## Termination

    The episode ends if any one of the following conditions is met:

    1. The agent opens the door.
    2. Timeout (see `max_steps`).

    ## Registered Configurations

    - `llmrl/SimpleDoorKey-v0`

    ## Options

    `min_size` and `max_size` of the room, walls included; those of `RoomEnv`.
    """

    def __init__(self, min_size: int = 5, max_size: int = 10, **kwargs: Any) -> None:
        super().__init__(SimpleDoorKey(min_size, max_size), **kwargs)


class LavaDoorKeyEnv(RoomEnv):
    """## Description

    As SimpleDoorKey, with one cell of lava in the room, which is not in front of the door. Stepping into it ends the
    episode without a reward.

    ## Mission Space

    "open the door"

    ## Action Space

    | Num | Name         | Action                                |
    |-----|--------------|---------------------------------------|
    | 0   | left         | Turn left                             |
    | 1   | right        | Turn right                            |
    | 2   | forward      | Move forward                          |
    | 3   | pickup       | Pick up the object in front           |
    | 4   | drop         | Put the carried object down in front  |
    | 5   | toggle       | Open or close the door in front       |
    | 6   | done         | Unused                                |

    ## Observation Encoding

    - A dictionary of `image` and `mission`. `image` is the whole grid, indexed (x, y), with four numbers a cell:
      `(OBJECT_IDX, COLOR_IDX, STATE, AGENT)`.
    - `OBJECT_IDX` and `COLOR_IDX` are those of MiniGrid; cells that were never in sight are `(0, 0, 0)`, the agent's
      cell shows the object it carries.
    - `STATE` of a door: 0 open, 1 closed, 2 locked.
    - `AGENT` is 4, and on the agent's cell its heading: 0 east, 1 south, 2 west, 3 north.
    - With `observation="view"`: MiniGrid's own dictionary of `image` (the agent's view), `direction` and `mission`.

    ## Rewards

    A reward of '1 - 0.9 * (step_count / max_steps)' is given for success, and '0' for everything else.

    ## Termination

    The episode ends if any one of the following conditions is met:

    1. The agent opens the door.
    2. The agent steps into lava.
    3. Timeout (see `max_steps`).

    ## Registered Configurations

    - `llmrl/LavaDoorKey-v0`

    ## Options

    `min_size` and `max_size` of the room, walls included; those of `RoomEnv`.
    """

    def __init__(self, min_size: int = 5, max_size: int = 10, **kwargs: Any) -> None:
        super().__init__(LavaDoorKey(min_size, max_size), **kwargs)


class ColoredDoorKeyEnv(RoomEnv):
    """## Description

    The agent is locked in a room with a blue door, a blue key, and red keys that open nothing. It can carry one key at
    a time. No key lies in front of the door at the beginning.

    ## Mission Space

    "open the door"

    ## Action Space

    | Num | Name         | Action                                |
    |-----|--------------|---------------------------------------|
    | 0   | left         | Turn left                             |
    | 1   | right        | Turn right                            |
    | 2   | forward      | Move forward                          |
    | 3   | pickup       | Pick up the object in front           |
    | 4   | drop         | Put the carried object down in front  |
    | 5   | toggle       | Open or close the door in front       |
    | 6   | done         | Unused                                |

    ## Observation Encoding

    - A dictionary of `image` and `mission`. `image` is the whole grid, indexed (x, y), with four numbers a cell:
      `(OBJECT_IDX, COLOR_IDX, STATE, AGENT)`.
    - `OBJECT_IDX` and `COLOR_IDX` are those of MiniGrid; cells that were never in sight are `(0, 0, 0)`, the agent's
      cell shows the object it carries.
    - `STATE` of a door: 0 open, 1 closed, 2 locked.
    - `AGENT` is 4, and on the agent's cell its heading: 0 east, 1 south, 2 west, 3 north.
    - With `observation="view"`: MiniGrid's own dictionary of `image` (the agent's view), `direction` and `mission`.

    ## Rewards

    A reward of '1 - 0.9 * (step_count / max_steps)' is given for success, and '0' for everything else.

    ## Termination

    The episode ends if any one of the following conditions is met:

    1. The agent opens the door.
    2. Timeout (see `max_steps`).

    ## Registered Configurations

    - `llmrl/ColoredDoorKey-v0`

    ## Options

    `min_size` and `max_size` of the room, walls included, `n_keys` in it; those of `RoomEnv`.
    """

    def __init__(self, min_size: int = 5, max_size: int = 10, n_keys: int = 2, **kwargs: Any) -> None:
        super().__init__(ColoredDoorKey(min_size, max_size, n_keys), **kwargs)


class TwoDoorEnv(RoomEnv):
    """## Description

    The agent is locked in a large room with two doors of one color in opposite walls, and the key to both in the
    middle. Opening either is enough.

    ## Mission Space

    "open the door"

    ## Action Space

    | Num | Name         | Action                                |
    |-----|--------------|---------------------------------------|
    | 0   | left         | Turn left                             |
    | 1   | right        | Turn right                            |
    | 2   | forward      | Move forward                          |
    | 3   | pickup       | Pick up the object in front           |
    | 4   | drop         | Put the carried object down in front  |
    | 5   | toggle       | Open or close the door in front       |
    | 6   | done         | Unused                                |

    ## Observation Encoding

    - A dictionary of `image` and `mission`. `image` is the whole grid, indexed (x, y), with four numbers a cell:
      `(OBJECT_IDX, COLOR_IDX, STATE, AGENT)`.
    - `OBJECT_IDX` and `COLOR_IDX` are those of MiniGrid; cells that were never in sight are `(0, 0, 0)`, the agent's
      cell shows the object it carries.
    - `STATE` of a door: 0 open, 1 closed, 2 locked.
    - `AGENT` is 4, and on the agent's cell its heading: 0 east, 1 south, 2 west, 3 north.
    - With `observation="view"`: MiniGrid's own dictionary of `image` (the agent's view), `direction` and `mission`.

    ## Rewards

    A reward of '1 - 0.9 * (step_count / max_steps)' is given for success, and '0' for everything else.

    ## Termination

    The episode ends if any one of the following conditions is met:

    1. The agent opens a door.
    2. Timeout (see `max_steps`).

    ## Registered Configurations

    - `llmrl/TwoDoor-v0`

    ## Options

    `min_size` and `max_size` of the room, walls included; those of `RoomEnv`.
    """

    def __init__(self, min_size: int = 20, max_size: int = 20, **kwargs: Any) -> None:
        super().__init__(TwoDoor(min_size, max_size), **kwargs)


register()
