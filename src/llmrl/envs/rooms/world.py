"""MiniGrid's rules for many games at once, as array operations without a loop over games.

Object, colour and state numbers, actions and headings are those of MiniGrid 3 (Chevalier-Boisvert et al., 2023,
arXiv 2306.13831), and so is what every action does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llmrl.core.records import State

UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA = range(10)
RED, GREEN, BLUE, PURPLE, YELLOW, GREY = range(6)
OPEN, CLOSED, LOCKED = range(3)
EAST, SOUTH, WEST, NORTH = range(4)
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
ACTION_NAMES = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
NOBODY = 4
"""Fourth number of a cell the agent is not on; elsewhere it is the agent's heading."""

AHEAD = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])
"""Where a step leads, [4 headings, (x, y)]."""

Item = TypeVar("Item", bound=np.generic)

_KINDS = 10
_PICKABLE = np.isin(np.arange(_KINDS), (KEY, BALL, BOX))
_WALKABLE = np.isin(np.arange(_KINDS), (EMPTY, FLOOR, GOAL, LAVA))
_TURN = np.array([3, 1, 0, 0, 0, 0, 0])


def code(kind: int, colour: int = 0, state: int = 0) -> np.uint32:
    """A cell as one number whose bytes are (kind, colour, state, NOBODY), so that arrays of cells are pictures of the
    world as agents see it, and are copied and compared in one operation."""
    return np.uint32(np.array([kind, colour, state, NOBODY], dtype=np.uint8).view(np.uint32)[0])


NOTHING = code(EMPTY)


@dataclass(frozen=True)
class Layout:
    """How a game begins.

    Attributes:
        cells: kind, colour and state of every cell, [W, H, 3] uint8; no box holds anything.
        position: the agent's cell (x, y).
        heading: 0 east, 1 south, 2 west, 3 north.
    """

    cells: NDArray[np.uint8]
    position: tuple[int, int]
    heading: int


@dataclass(frozen=True)
class Events:
    """What one step did, each [n].

    Attributes:
        opened: a door that was not open is open now, bool.
        picked: kind of the object that was picked up, 0 where none was, uint8.
        goal: the agent stepped onto a goal, bool.
        lava: the agent stepped into lava, bool.
    """

    opened: NDArray[np.bool_]
    picked: NDArray[np.uint8]
    goal: NDArray[np.bool_]
    lava: NDArray[np.bool_]


class World:
    """`n` games on grids of `width` x `height` cells.

    What lies outside a grid is wall. Boxes are empty, as in all tasks here: toggled, they vanish.

    Args:
        n: games.
        width, height: cells of a grid along x and y.
        margin: cells of wall stored around each grid, so that a view never leaves the array. >= 1

    Attributes:
        cells: all cells with their margin, [n, width + 2 * margin, height + 2 * margin] uint32 (see `code`).
        at: index of each agent's cell in `cells.ravel()`, [n].
        heading: [n], 0 to 3.
        carrying: the object each agent holds, as a cell; `NOTHING` for none, 0 in a game that has not begun. [n] uint32
        time: steps since each game began, [n].
    """

    def __init__(self, n: int, width: int, height: int, margin: int) -> None:
        self.width, self.height, self.margin = width, height, margin
        self.cells = np.full((n, width + 2 * margin, height + 2 * margin), code(WALL, GREY))
        self.stride = self.cells.shape[2]
        self._first = np.arange(n) * (self.cells.shape[1] * self.stride)
        self._ahead = AHEAD @ (self.stride, 1)
        self.at = self._first + margin * self.stride + margin
        self.heading = np.zeros(n, dtype=np.int64)
        self.carrying = np.zeros(n, dtype=np.uint32)
        self.time = np.zeros(n, dtype=np.int64)

    @property
    def inside(self) -> NDArray[np.uint32]:
        """The cells of the grids, a view of [n, width, height] uint32."""
        return self.without_margin(self.cells)

    @property
    def grid(self) -> NDArray[np.uint8]:
        """Kind, colour and state of the cells, a copy of [n, width, height, 3] uint8."""
        return as_bytes(np.ascontiguousarray(self.inside))[..., :3].copy()

    @property
    def position(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The agents' x and y, each [n]."""
        x, y = np.divmod(self.at - self._first, self.stride)
        return x - self.margin, y - self.margin

    @property
    def begun(self) -> NDArray[np.bool_]:
        """In which games a layout was ever put, [n]."""
        begun: NDArray[np.bool_] = self.carrying != 0
        return begun

    def without_margin(self, cells: NDArray[Item]) -> NDArray[Item]:
        """The part of [n, W + 2 * margin, H + 2 * margin] that is the grids, a view of [n, W, H]."""
        m = self.margin
        return cells[:, m : m + self.width, m : m + self.height]

    def begin(self, games: Sequence[int], layouts: Sequence[Layout]) -> None:
        """Start `games` from `layouts`, in their order."""
        for game, layout in zip(games, layouts, strict=True):
            as_bytes(self.cells)[game, self.margin : -self.margin, self.margin : -self.margin, :3] = layout.cells
            self.carrying[game] = NOTHING
            self.time[game] = 0
        if len(games):
            places = np.array([layout.position for layout in layouts])
            self.place(np.array(games), places, np.array([layout.heading for layout in layouts]))

    def place(self, games: NDArray[np.int64], at: NDArray[np.int64], heading: NDArray[np.int64]) -> None:
        """Let the agents of `games` [k] stand on cells `at` [k, (x, y)] and look towards `heading` [k]."""
        self.at[games] = self._first[games] + (at + self.margin) @ (self.stride, 1)
        self.heading[games] = heading

    def step(self, action: NDArray[np.int64], active: NDArray[np.bool_]) -> Events:
        """Let the agents do `action` [n] in the games where `active` [n] is true; nothing happens in the others."""
        action = np.where(active, action, DONE)
        self.time += active
        flat = self.cells.reshape(-1)
        front = self.at + self._ahead[self.heading]
        cell = flat[front]
        kind, colour, state, _ = as_bytes(cell).T

        forward = action == FORWARD
        door = kind == DOOR
        self.at = np.where(forward & (_WALKABLE[kind] | (door & (state == OPEN))), front, self.at)
        self.heading = (self.heading + _TURN[action]) % 4

        free_hands = self.carrying == NOTHING
        taken = (action == PICKUP) & free_hands & _PICKABLE[kind]
        dropped = (action == DROP) & ~free_hands & (cell == NOTHING)

        toggled = action == TOGGLE
        worked = toggled & door
        opened = worked & ((state == CLOSED) | ((state == LOCKED) & (self.carrying == _KEYS[colour])))
        closed = worked & (state == OPEN)

        after = np.where(taken | dropped, self.carrying, cell)
        self.carrying = np.where(taken | dropped, cell, self.carrying)
        after[toggled & (kind == BOX)] = NOTHING
        states = as_bytes(after)[:, 2]
        states[opened] = OPEN
        states[closed] = CLOSED
        flat[front] = after
        return Events(opened, np.where(taken, kind, UNSEEN), forward & (kind == GOAL), forward & (kind == LAVA))

    def state_dict(self) -> State:
        names = ("cells", "at", "heading", "carrying", "time")
        return {name: getattr(self, name).copy() for name in names}

    def load_state_dict(self, state: State) -> None:
        for name, value in state.items():
            setattr(self, name, value.copy())


def as_bytes(cells: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Cells [...] as [..., 4] uint8: kind, colour, state, agent; memory is shared."""
    return cells[..., None].view(np.uint8)


_KEYS = np.array([code(KEY, colour) for colour in range(6)])
