"""Constant tables of a map: targets of steps, cells that a beam passes, cells in view."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.envs.substrate.maps import GameMap

VIEW = (11, 11)
"""Rows and columns of the cells that a player sees: 9 ahead, 1 behind, 5 to either side."""
STAY = 4
"""Direction of a player who does not move."""
MOVES: Mapping[str, int] = {"forward": 0, "step_right": 1, "backward": 2, "step_left": 3}
"""Directions relative to the heading."""
TURNS: Mapping[str, int] = {"turn_left": 3, "turn_right": 1}


def steps(game_map: GameMap) -> NDArray[np.int64]:
    """Return the neighbors of each cell: north, east, south, west, and the cell itself, [n_cells, 5].

    In place of a wall, it is the cell itself.
    """
    cells = np.arange(game_map.n_cells)
    table = np.tile(cells[:, None], (1, 5))
    free = np.flatnonzero(~game_map.wall)
    for direction, offset in enumerate(offsets(game_map)):
        target = free + offset
        table[free, direction] = np.where(game_map.wall[target], free, target)
    return table


def offsets(game_map: GameMap) -> tuple[int, int, int, int]:
    """Return what a step north, east, south and west adds to the number of a cell."""
    return -game_map.stride, 1, game_map.stride, -1


def beams(game_map: GameMap) -> NDArray[np.int64]:
    """Return the cells that a beam passes from each cell with each heading, [n_cells, 4, 9].

    They are three lines of three cells: ahead, and beginning to the left and to the right of the player; 0 from the
    first wall of a line on.
    """
    table = np.zeros((game_map.n_cells, 4, 3, 3), np.int64)
    free = np.flatnonzero(~game_map.wall)
    for heading in range(4):
        forward, right = offsets(game_map)[heading], offsets(game_map)[(heading + 1) % 4]
        for line, start_offset in enumerate((forward, -right, right)):
            open_ = np.ones(len(free), bool)
            for i in range(3):
                cell = free + start_offset + i * forward
                open_ &= ~game_map.wall[cell]
                table[free, heading, line, i] = np.where(open_, cell, 0)
    return table.reshape(game_map.n_cells, 4, 9)


def views(game_map: GameMap) -> NDArray[np.int64]:
    """Return the differences between a player's cell and the cells in view, by heading, [4, 121]."""
    rows, columns = np.divmod(np.arange(VIEW[0] * VIEW[1]), VIEW[1])
    table = np.zeros((4, rows.size), np.int64)
    for heading in range(4):
        forward, right = offsets(game_map)[heading], offsets(game_map)[(heading + 1) % 4]
        table[heading] = (9 - rows) * forward + (columns - 5) * right
    return table


def slots(game_map: GameMap, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each cell in `cells`, [n_cells]; `len(cells)` for cells that are not in it."""
    table = np.full(game_map.n_cells, len(cells), np.int64)
    table[cells] = np.arange(len(cells))
    return table


def neighbors(game_map: GameMap, cells: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return a matrix that is 1 where two different cells are at most 2 apart (Euclidean distance), [n, n]."""
    places = np.array([game_map.place(int(cell)) for cell in cells])
    distance = np.square(places[:, None] - places[None]).sum(-1)
    return np.asarray((distance <= 4) & (distance > 0), dtype=np.float32)


def tensor(table: NDArray[np.generic], device: str) -> torch.Tensor:
    """Return a table as a tensor on a device."""
    return torch.from_numpy(np.ascontiguousarray(table)).to(device)
