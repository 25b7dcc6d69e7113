"""Observations of agents in rooms: MiniGrid's view, and the map of all cells seen so far.

Both use one computation of the visible cells. A row of a view is encoded as an integer with one bit per cell. Tables
contain, for each pair of such integers (cells of a row seen from the previous row, and transparent cells), the visible
cells of the row and the cells of the next row that are seen from it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.core.state_fields import StateFields
from llmrl.envs.rooms.grid_world import DOOR, OPEN, STEP_OFFSETS, WALL, GridWorld, encode_cell, view_as_bytes

MAX_VIEW_SIZE = 31
_MAX_TABLE_WIDTH = 9  # maximum view width with tables, which then have 2 * 4**9 numbers of 8 bytes: 4 MiB
_UNSEEN_CELL = encode_cell(0)

CellBits = NDArray[np.int64]  # an integer for a row of cells, with one bit per cell


@dataclass(frozen=True)
class FieldOfView:
    """The v x v cells in the view of each of n agents.

    Cells are indexed (i, j) as in MiniGrid: the agent is at (v // 2, v - 1) and looks toward j = 0; i increases to its
    right.

    Attributes:
        cell_indices: index of each cell in `GridWorld.cells.ravel()`, [n, v, v].
        cells: contents of the cells, [n, v, v] uint32.
        is_visible: whether the agent sees each cell, [n, v, v] bool.
    """

    cell_indices: NDArray[np.int64]
    cells: NDArray[np.uint32]
    is_visible: NDArray[np.bool_]


class Viewer:
    """Viewer that computes the views of agents in a `GridWorld`; walls and closed doors hide the cells behind them.

    Args:
        world: the games; its margin is at least `view_size` - 1.
        view_size: width and height of a view, in cells; odd, 3 to 31.
    """

    def __init__(self, world: GridWorld, view_size: int) -> None:
        self._world, self._view_size = world, view_size
        right = np.stack([-STEP_OFFSETS[:, 1], STEP_OFFSETS[:, 0]], axis=1)
        i, j = np.meshgrid(np.arange(view_size), np.arange(view_size), indexing="ij")
        forward = STEP_OFFSETS[:, None, None] * (view_size - 1 - j)[None, :, :, None]
        sideways = right[:, None, None] * (i - view_size // 2)[None, :, :, None]
        self._index_offsets = (forward + sideways) @ (world.stride, 1)
        self._bit_by_column = 1 << np.arange(view_size)

    def compute_field_of_view(self) -> FieldOfView:
        """Return the cells that all agents see now."""
        cell_indices = self._world.at[:, None, None] + self._index_offsets[self._world.heading]
        cells = self._world.cells.reshape(-1)[cell_indices]
        content = view_as_bytes(cells)
        kind, state = content[..., 0], content[..., 2]
        is_opaque = (kind == WALL) | ((kind == DOOR) & (state != OPEN))
        return FieldOfView(cell_indices, cells, self._find_visible_cells(self._bit_by_column @ ~is_opaque))

    def build_image(self, field_of_view: FieldOfView) -> NDArray[np.uint8]:
        """Return MiniGrid's `image`: kind, color and state of the visible cells, [n, v, v, 3] uint8.

        The agent's own cell shows the object that it carries.
        """
        visible_cells = np.where(field_of_view.is_visible, field_of_view.cells, 0)
        visible_cells[:, self._view_size // 2, self._view_size - 1] = self._world.carrying
        return view_as_bytes(visible_cells)[..., :3].copy()

    def _find_visible_cells(self, transparent_bits: CellBits) -> NDArray[np.bool_]:
        """Return whether each cell is visible, [n, v, v] bool, given the bits of transparent cells in each row, [n, v].

        The rule is `Grid.process_vis` of MiniGrid. It starts in the agent's row. In a row, visibility spreads through
        transparent cells. Each visible transparent cell makes the three nearest cells of the next row visible.
        """
        n, v = transparent_bits.shape
        visible_bits = np.empty((n, v), dtype=np.int64)
        source_bits: CellBits = np.full(n, 1 << (v // 2), dtype=np.int64)
        for j in range(v - 1, -1, -1):
            visible_bits[:, j], source_bits = _spread_sight(source_bits, transparent_bits[:, j], v)
        return (visible_bits[:, None, :] & self._bit_by_column[None, :, None]) != 0


class ExploredMap(StateFields):
    """The cells that each agent has seen since its episode began, with their current content.

    Args:
        world: the games.

    Attributes:
        seen: whether each cell was seen, [n, W + 2 * margin, H + 2 * margin] bool.
    """

    _state_fields = ("seen",)

    def __init__(self, world: GridWorld) -> None:
        self._world = world
        self.seen = np.zeros(world.cells.shape, dtype=bool)

    def clear(self, games: NDArray[np.int64]) -> None:
        """Clear the maps of `games`, whose next episodes begin."""
        self.seen[games] = False

    def add(self, field_of_view: FieldOfView) -> None:
        """Add the visible cells to the maps."""
        self.seen.reshape(-1)[field_of_view.cell_indices[field_of_view.is_visible]] = True

    def build_image(self) -> NDArray[np.uint8]:
        """Return kind, color, state and agent of every cell, [n, W, H, 4] uint8.

        Cells that were seen show their current content; others are (0, 0, 0). The agent's cell shows the object that it
        carries, or an empty cell. The fourth number is the heading in the agent's cell and 4 elsewhere.
        """
        world = self._world
        cells = np.where(world.strip_margin(self.seen), world.inner_cells, _UNSEEN_CELL)
        x, y = world.position
        games = np.arange(len(x))
        cells[games, x, y] = world.carrying
        image = view_as_bytes(cells)
        image[games, x, y, 3] = world.heading
        return image


def _spread_sight(source_bits: CellBits, transparent_bits: CellBits, width: int) -> tuple[CellBits, CellBits]:
    """Return the bits of a row's visible cells, and of the cells in the next row that are visible from it.

    `source_bits`: cells of the row that are visible from the previous row; `transparent_bits`: its transparent cells.
    """
    if width > _MAX_TABLE_WIDTH:
        return _compute_sight(source_bits, transparent_bits, width)
    visible_table, next_source_table = _build_sight_tables(width)
    table_indices = (source_bits << width) | transparent_bits
    return visible_table[table_indices], next_source_table[table_indices]


@functools.cache
def _build_sight_tables(width: int) -> tuple[CellBits, CellBits]:
    """Return `_compute_sight` of all source bits (upper half of the index) and transparent bits (lower half)."""
    source_bits, transparent_bits = np.divmod(np.arange(4**width), 2**width)
    return _compute_sight(source_bits, transparent_bits, width)


def _compute_sight(source_bits: CellBits, transparent_bits: CellBits, width: int) -> tuple[CellBits, CellBits]:
    """Return the result of `_spread_sight` without tables."""
    row_mask = (1 << width) - 1
    visible_bits = source_bits
    for _ in range(width - 1):
        passing_bits = visible_bits & transparent_bits  # cells through which the agent sees their neighbors
        visible_bits = (visible_bits | (passing_bits << 1) | (passing_bits >> 1)) & row_mask
    passing_bits = visible_bits & transparent_bits
    return visible_bits, (passing_bits | (passing_bits << 1) | (passing_bits >> 1)) & row_mask
