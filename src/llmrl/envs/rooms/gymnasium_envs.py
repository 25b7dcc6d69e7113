"""The rooms as environments of MiniGrid, one game at a time; importing this module registers them with Gymnasium."""

from __future__ import annotations

from typing import Any

from llmrl.envs.rooms.registration import register
from llmrl.envs.rooms.room_env import RoomEnv
from llmrl.envs.rooms.tasks import ColoredDoorKey, LavaDoorKey, SimpleDoorKey, TwoDoor


class SimpleDoorKeyEnv(RoomEnv):
    """
    ## Description

    The agent is locked in a room of unknown size. It must find the key, which has the colour of the door, and open the
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
    """
    ## Description

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
    """
    ## Description

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
    """
    ## Description

    The agent is locked in a large room with two doors of one colour in opposite walls, and the key to both in the
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
