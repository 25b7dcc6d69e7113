"""Room observations from ASCII drawings."""

import numpy as np

from llmrl.teachers.rooms.observed_room import (
    BOX,
    COLORS,
    DOOR,
    EAST,
    EMPTY,
    KEY,
    LAVA,
    LOCKED,
    NORTH,
    SOUTH,
    UNSEEN,
    WALL,
    WEST,
)

NO_AGENT = 4


def draw(*rows, size=None):
    """Return the `grid` channel of a room, shape [width, height, 4].

    Args:
        rows: characters of each row: `#` wall, `.` floor, `?` unseen, `~` lava, `K` key, `D` locked door, `B` box, and
            `<`, `>`, `^`, `v` for the agent. All objects are gray.
        size: (width, height) of the array; None for the size of the drawing.
    """
    kinds = {"#": WALL, ".": EMPTY, "?": UNSEEN, "~": LAVA, "K": KEY, "D": DOOR, "B": BOX}
    width, height = size or (len(rows[0]), len(rows))
    grid = np.zeros((width, height, 4), dtype=np.uint8)
    grid[..., 3] = NO_AGENT
    for y, row in enumerate(rows):
        for x, sign in enumerate(row):
            grid[x, y, 0] = kinds.get(sign, EMPTY)
            grid[x, y, 1] = COLORS.index("grey") if sign in "#KDB" else 0
            grid[x, y, 2] = LOCKED if sign == "D" else 0
            if sign in "><^v":
                grid[x, y, 3] = {">": EAST, "v": SOUTH, "<": WEST, "^": NORTH}[sign]
    return grid
