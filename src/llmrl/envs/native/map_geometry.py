"""What never changes on a map, as tables to index: where a step leads, what a beam meets, which cells are in view."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.envs.native.maps import GameMap

VIEW = (11, 11)
"""Rows and columns of cells a player sees: 9 ahead, 1 behind, 5 to either side."""
OWN_CELL = 9 * 11 + 5
"""Where among them it stands."""
STAY = 4
"""Direction of a player who does not move."""
MOVES: Mapping[str, int] = {"forward": 0, "step_right": 1, "backward": 2, "step_left": 3}
"""Directions relative to the heading."""
TURNS: Mapping[str, int] = {"turn_left": 3, "turn_right": 1}


def steps(game_map: GameMap) -> NDArray[np.int64]:
    """[n_cells, 5]: the cell that lies north, east, south, west, and the cell itself; itself where a wall is."""
    cells = np.arange(game_map.n_cells)
    table = np.tile(cells[:, None], (1, 5))
    inside = np.flatnonzero(~game_map.wall)
    for direction, offset in enumerate(offsets(game_map)):
        ahead = inside + offset
        table[inside, direction] = np.where(game_map.wall[ahead], inside, ahead)
    return table


def offsets(game_map: GameMap) -> tuple[int, int, int, int]:
    """What a step north, east, south, west adds to a cell number."""
    return -game_map.stride, 1, game_map.stride, -1


def beams(game_map: GameMap) -> NDArray[np.int64]:
    """[n_cells, 4, 9]: the cells a beam passes from each cell with each heading, as three lines of three: ahead, and
    beginning to the left and to the right of the player; 0 from the first wall of a line on."""
    table = np.zeros((game_map.n_cells, 4, 3, 3), np.int64)
    inside = np.flatnonzero(~game_map.wall)
    for heading in range(4):
        ahead, right = offsets(game_map)[heading], offsets(game_map)[(heading + 1) % 4]
        for line, first in enumerate((ahead, -right, right)):
            open_ = np.ones(len(inside), bool)
            for i in range(3):
                cell = inside + first + i * ahead
                open_ &= ~game_map.wall[cell]
                table[inside, heading, line, i] = np.where(open_, cell, 0)
    return table.reshape(game_map.n_cells, 4, 9)


def views(game_map: GameMap) -> NDArray[np.int64]:
    """[4, 121]: what to add to a player's cell to get the cells it sees, with each heading."""
    rows, columns = np.divmod(np.arange(VIEW[0] * VIEW[1]), VIEW[1])
    table = np.zeros((4, rows.size), np.int64)
    for heading in range(4):
        ahead, right = offsets(game_map)[heading], offsets(game_map)[(heading + 1) % 4]
        table[heading] = (9 - rows) * ahead + (columns - 5) * right
    return table


def slots(game_map: GameMap, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n_cells]: place of each cell in `cells`; their number elsewhere."""
    table = np.full(game_map.n_cells, len(cells), np.int64)
    table[cells] = np.arange(len(cells))
    return table


def neighbours(game_map: GameMap, cells: NDArray[np.int64]) -> NDArray[np.float32]:
    """[n, n]: 1 where two different cells are at most a (Euclidean) distance of 2 apart."""
    places = np.array([game_map.place(int(cell)) for cell in cells])
    distance = np.square(places[:, None] - places[None]).sum(-1)
    return np.asarray((distance <= 4) & (distance > 0), dtype=np.float32)


def tensor(table: NDArray[np.generic], device: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(table)).to(device)
