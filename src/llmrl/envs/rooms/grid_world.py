"""MiniGrid's rules for many games at once, as array operations without a loop over games.

Codes of objects, colours and states, actions and their effects, and headings are those of MiniGrid 3
(Chevalier-Boisvert et al., 2023, arXiv 2306.13831).
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
"""Fourth number of a cell without the agent; on the agent's cell, it is the heading."""

AHEAD = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])
"""Offset of a step forward, [4 headings, (x, y)]."""

Item = TypeVar("Item", bound=np.generic)

_KINDS = 10
_PICKABLE = np.isin(np.arange(_KINDS), (KEY, BALL, BOX))
_WALKABLE = np.isin(np.arange(_KINDS), (EMPTY, FLOOR, GOAL, LAVA))
_TURN = np.array([3, 1, 0, 0, 0, 0, 0])


def code(kind: int, colour: int = 0, state: int = 0) -> np.uint32:
    """Return a cell as one number with the bytes (kind, colour, state, NOBODY).

    The bytes of an array of cells are then an observation, and a cell is copied and compared in one operation."""
    return np.uint32(np.array([kind, colour, state, NOBODY], dtype=np.uint8).view(np.uint32)[0])


NOTHING = code(EMPTY)


@dataclass(frozen=True)
class RoomLayout:
    """The initial state of a game.

    Attributes:
        cells: kind, colour and state of every cell, [W, H, 3] uint8; boxes are empty.
        position: the agent's cell (x, y).
        heading: the agent's heading: 0 east, 1 south, 2 west, 3 north.
    """

    cells: NDArray[np.uint8]
    position: tuple[int, int]
    heading: int


@dataclass(frozen=True)
class RoomEvents:
    """Events of one step of n games.

    Attributes:
        opened: whether the agent opened a door, [n] bool.
        picked: kind of the object that the agent picked up, 0 if none, [n] uint8.
        goal: whether the agent stepped onto a goal, [n] bool.
        lava: whether the agent stepped into lava, [n] bool.
    """

    opened: NDArray[np.bool_]
    picked: NDArray[np.uint8]
    goal: NDArray[np.bool_]
    lava: NDArray[np.bool_]


class GridWorld:
    """`n` games on grids of `width` x `height` cells.

    A grid is surrounded by walls. Boxes are empty, as in all tasks here, so a toggled box vanishes.

    Args:
        n: number of games.
        width, height: size of a grid along x and y, cells.
        margin: width of the wall stored around each grid, so that a view never leaves the array, cells; >= 1.

    Attributes:
        cells: all cells with their margin, [n, width + 2 * margin, height + 2 * margin] uint32 (see `code`).
        at: index of each agent's cell in `cells.ravel()`, [n].
        heading: heading of each agent, 0 to 3, [n].
        carrying: object that each agent carries, as a cell; `NOTHING` if none, 0 if the game has not begun; [n] uint32.
        time: number of steps since each game began, [n].
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
        """The cells of the grids, a view [n, width, height] uint32 of `cells`."""
        return self.without_margin(self.cells)

    @property
    def grid(self) -> NDArray[np.uint8]:
        """Kind, colour and state of the cells, a copy [n, width, height, 3] uint8."""
        return as_bytes(np.ascontiguousarray(self.inside))[..., :3].copy()

    @property
    def position(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The agents' coordinates x and y, each [n]."""
        x, y = np.divmod(self.at - self._first, self.stride)
        return x - self.margin, y - self.margin

    @property
    def begun(self) -> NDArray[np.bool_]:
        """Whether each game has ever been started, [n] bool."""
        begun: NDArray[np.bool_] = self.carrying != 0
        return begun

    def without_margin(self, cells: NDArray[Item]) -> NDArray[Item]:
        """Return the grids in an array [n, W + 2 * margin, H + 2 * margin], a view [n, W, H]."""
        m = self.margin
        return cells[:, m : m + self.width, m : m + self.height]

    def begin(self, games: Sequence[int], layouts: Sequence[RoomLayout]) -> None:
        """Start `games` from `layouts`, in their order."""
        for game, layout in zip(games, layouts, strict=True):
            as_bytes(self.cells)[game, self.margin : -self.margin, self.margin : -self.margin, :3] = layout.cells
            self.carrying[game] = NOTHING
            self.time[game] = 0
        if len(games):
            places = np.array([layout.position for layout in layouts])
            self.place(np.array(games), places, np.array([layout.heading for layout in layouts]))

    def place(self, games: NDArray[np.int64], at: NDArray[np.int64], heading: NDArray[np.int64]) -> None:
        """Put the agents of `games` [k] on cells `at` [k, (x, y)] with headings `heading` [k]."""
        self.at[games] = self._first[games] + (at + self.margin) @ (self.stride, 1)
        self.heading[games] = heading

    def step(self, action: NDArray[np.int64], active: NDArray[np.bool_]) -> RoomEvents:
        """Advance the games where `active` [n] is true by `action` [n]; the others do not change. Return the events."""
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
        return RoomEvents(opened, np.where(taken, kind, UNSEEN), forward & (kind == GOAL), forward & (kind == LAVA))

    def state_dict(self) -> State:
        names = ("cells", "at", "heading", "carrying", "time")
        return {name: getattr(self, name).copy() for name in names}

    def load_state_dict(self, state: State) -> None:
        for name, value in state.items():
            setattr(self, name, value.copy())


def as_bytes(cells: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return cells [...] as a view [..., 4] uint8: kind, colour, state, agent."""
    return cells[..., None].view(np.uint8)


_KEYS = np.array([code(KEY, colour) for colour in range(6)])
