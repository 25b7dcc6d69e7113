"""MiniGrid's rules for n parallel copies (games), as array operations without a loop over games.

MiniGrid 3 (Chevalier-Boisvert et al., 2023, arXiv 2306.13831) defines the codes of objects, colors, states and
headings, and the actions and their effects.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from llmrl.core.state_fields import StateFields

UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA = range(10)
RED, GREEN, BLUE, PURPLE, YELLOW, GRAY = range(6)
OPEN, CLOSED, LOCKED = range(3)
EAST, SOUTH, WEST, NORTH = range(4)
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
ACTION_NAMES = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
NO_AGENT = 4
"""Value of a cell's fourth code if the agent is elsewhere; in the agent's cell, this code is the heading."""

STEP_OFFSETS = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])
"""Offset (x, y) of a step forward for each heading, [4, 2]."""

Scalar = TypeVar("Scalar", bound=np.generic)

_IS_PORTABLE = np.isin(np.arange(10), (KEY, BALL, BOX))
_IS_WALKABLE = np.isin(np.arange(10), (EMPTY, FLOOR, GOAL, LAVA))
_QUARTER_TURNS_BY_ACTION = np.array([3, 1, 0, 0, 0, 0, 0])


@functools.cache
def encode_cell(kind: int, color: int = 0, state: int = 0) -> np.uint32:
    """Return a cell as one number with the bytes (kind, color, state, NO_AGENT).

    The bytes of an array of cells are then an observation, and a cell is copied and compared in one operation.
    """
    return np.uint32(np.array([kind, color, state, NO_AGENT], dtype=np.uint8).view(np.uint32)[0])


EMPTY_CELL = encode_cell(EMPTY)


@dataclass(frozen=True)
class RoomLayout:
    """The initial state of an episode.

    Attributes:
        cells: kind, color and state of every cell, [W, H, 3] uint8; boxes are empty.
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
        opened_door: whether the agent opened a door, [n] bool.
        picked_up: kind of the object that the agent picked up, 0 if none, [n] uint8.
        reached_goal: whether the agent stepped onto a goal, [n] bool.
        entered_lava: whether the agent stepped into lava, [n] bool.
    """

    opened_door: NDArray[np.bool_]
    picked_up: NDArray[np.uint8]
    reached_goal: NDArray[np.bool_]
    entered_lava: NDArray[np.bool_]


class GridWorld(StateFields):
    """`n` games on grids of `width` x `height` cells, each with one agent.

    Boxes are empty, as in all tasks here, so a toggled box vanishes.

    Args:
        n: number of games.
        width, height: size of a grid along x and y, in cells.
        margin: number of wall cells stored on each side of a grid, >= 1; views beyond the edge stay in the array.

    Attributes:
        cells: all cells with the margin, [n, width + 2 * margin, height + 2 * margin] uint32 (see `encode_cell`).
        at: index of each agent's cell in `cells.ravel()`, [n].
        heading: heading of each agent, 0 to 3, [n].
        carrying: object that each agent carries (see `encode_cell`), [n] uint32; `EMPTY_CELL`: none; 0: never reset.
        time: number of steps of each game's episode so far, [n].
    """

    _state_fields = ("cells", "at", "heading", "carrying", "time")

    def __init__(self, n: int, width: int, height: int, margin: int) -> None:
        self.width, self.height, self.margin = width, height, margin
        self.cells = np.full((n, width + 2 * margin, height + 2 * margin), encode_cell(WALL, GRAY))
        self.stride = self.cells.shape[2]
        self._grid_offsets = np.arange(n) * (self.cells.shape[1] * self.stride)
        self._step_offsets = STEP_OFFSETS @ (self.stride, 1)
        self.at = self._grid_offsets + margin * self.stride + margin
        self.heading = np.zeros(n, dtype=np.int64)
        self.carrying = np.zeros(n, dtype=np.uint32)
        self.time = np.zeros(n, dtype=np.int64)

    @property
    def inner_cells(self) -> NDArray[np.uint32]:
        """The cells without the margin, a view [n, width, height] uint32 of `cells`."""
        return self.strip_margin(self.cells)

    @property
    def grid(self) -> NDArray[np.uint8]:
        """Kind, color and state of the cells without the margin, a copy [n, width, height, 3] uint8."""
        return view_as_bytes(np.ascontiguousarray(self.inner_cells))[..., :3].copy()

    @property
    def position(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The agents' coordinates x and y, each [n]."""
        x, y = np.divmod(self.at - self._grid_offsets, self.stride)
        return x - self.margin, y - self.margin

    @property
    def is_started(self) -> NDArray[np.bool_]:
        """Mask of the games that have been started, [n] bool."""
        return np.not_equal(self.carrying, 0)

    def strip_margin(self, cells: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return a view [n, W, H] of an array [n, W + 2 * margin, H + 2 * margin]."""
        margin = self.margin
        return cells[:, margin : margin + self.width, margin : margin + self.height]

    def start_episodes(self, games: Sequence[int], layouts: Sequence[RoomLayout]) -> None:
        """Start an episode in each of `games`, with the layout at the same index of `layouts`."""
        for game, layout in zip(games, layouts, strict=True):
            view_as_bytes(self.cells)[game, self.margin : -self.margin, self.margin : -self.margin, :3] = layout.cells
            self.carrying[game] = EMPTY_CELL
            self.time[game] = 0
        if len(games):
            positions = np.array([layout.position for layout in layouts])
            self.place_agents(np.array(games), positions, np.array([layout.heading for layout in layouts]))

    def place_agents(self, games: NDArray[np.int64], positions: NDArray[np.int64], headings: NDArray[np.int64]) -> None:
        """Put the agents of `games` [k] on the cells `positions` [k, (x, y)] with `headings` [k]."""
        self.at[games] = self._grid_offsets[games] + (positions + self.margin) @ (self.stride, 1)
        self.heading[games] = headings

    def step(self, action: NDArray[np.int64], active: NDArray[np.bool_]) -> RoomEvents:
        """Advance the games where `active` [n] is true by `action` [n]; the others do not change. Return the events."""
        action = np.where(active, action, DONE)
        self.time += active
        all_cells = self.cells.reshape(-1)
        front_index = self.at + self._step_offsets[self.heading]
        front_cell = all_cells[front_index]
        kind, color, state, _ = view_as_bytes(front_cell).T

        is_forward = action == FORWARD
        is_door = kind == DOOR
        self.at = np.where(is_forward & (_IS_WALKABLE[kind] | (is_door & (state == OPEN))), front_index, self.at)
        self.heading = (self.heading + _QUARTER_TURNS_BY_ACTION[action]) % 4

        has_free_hands = self.carrying == EMPTY_CELL
        picks_up_object = (action == PICKUP) & has_free_hands & _IS_PORTABLE[kind]
        drops_object = (action == DROP) & ~has_free_hands & (front_cell == EMPTY_CELL)

        is_toggle = action == TOGGLE
        toggles_door = is_toggle & is_door
        opens_door = toggles_door & ((state == CLOSED) | ((state == LOCKED) & (self.carrying == _KEY_CELLS[color])))

        new_cells = np.where(picks_up_object | drops_object, self.carrying, front_cell)
        self.carrying = np.where(picks_up_object | drops_object, front_cell, self.carrying)
        new_cells[is_toggle & (kind == BOX)] = EMPTY_CELL
        states = view_as_bytes(new_cells)[:, 2]
        states[opens_door] = OPEN
        states[toggles_door & (state == OPEN)] = CLOSED
        all_cells[front_index] = new_cells
        picked_up = np.where(picks_up_object, kind, UNSEEN)
        return RoomEvents(opens_door, picked_up, is_forward & (kind == GOAL), is_forward & (kind == LAVA))


def view_as_bytes(cells: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return cells [...] as a view [..., 4] uint8: kind, color, state, agent."""
    return cells[..., None].view(np.uint8)


_KEY_CELLS = np.array([encode_cell(KEY, color) for color in range(6)])
