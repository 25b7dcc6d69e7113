"""Maps of Clean Up and Harvest, and their parser, whose errors state the cause and, for a symbol, row and column."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.envs.substrate import install
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, SiteCounts, SubstrateName

logger = logging.getLogger(__name__)

MAP_MARGIN = 9
"""Width of the empty margin around a map, in cells. Players see 9 cells ahead, so no view exceeds the margin."""

SPRITES_BY_SYMBOL: Mapping[SubstrateName, Mapping[str, tuple[str, ...]]] = {
    "cleanup": {
        "W": ("wall",),
        " ": ("sand",),
        "P": ("sand",),
        "B": ("grass",),
        "s": ("grass", "shadow_n"),
        "+": ("sand", "shadow_e", "shadow_n"),
        "f": ("sand", "shadow_w", "shadow_n"),
        ";": ("sand", "grass_edge", "shadow_e"),
        ",": ("sand", "grass_edge", "shadow_w"),
        "^": ("sand", "grass_edge"),
        "=": ("sand", "shadow_n"),
        ">": ("sand", "shadow_w"),
        "<": ("sand", "shadow_e"),
        "~": ("river", "shadow_w"),
        "T": ("sand", "grass_edge"),
        "S": ("river",),
        "H": ("river",),
        "F": ("river",),
    },
    "harvest": {"W": ("wall",), " ": ("floor",), "P": ("floor",), "Q": ("floor",), "A": ("grass",)},
}
"""Symbol in a map -> names of its sprites (`SpriteSet.sprites`), bottom to top."""

APPLE_SYMBOLS: Mapping[SubstrateName, str] = {"cleanup": "BT", "harvest": "A"}
"""Symbols of cells where apples grow."""
DIRT_SYMBOLS = "HF"
"""Symbols of river cells that can be dirty: clean (H) and dirty (F) at the start."""


@dataclass(frozen=True)
class GameMap:
    """A map. The cells, including those of the margin, are numbered row by row; arrays of cells contain these indices.

    Attributes:
        substrate: substrate that defines the symbols.
        text: the map, one row per line.
        width, height: size without the margin, in cells.
        is_wall: whether a cell is impassable, [n_cells] bool; true in the margin.
        spawn_cells: cells with the symbol `P`.
        inner_spawn_cells: cells with the symbol `Q`, where the first two players start.
        apple_cells: cells where apples grow.
        dirt_cells: river cells that can be dirty.
        is_dirty: whether each cell of `dirt_cells` is dirty at the start, [n_dirt] bool.
        clean_river_cells: river cells that are always clean.
        sprite_stack_indices: index into `sprite_stacks` of each cell, [n_cells]; 0 (no sprite) outside the map.
        sprite_stacks: the different stacks of sprites of cells; a stack consists of names, bottom to top.
    """

    substrate: SubstrateName
    text: str
    width: int
    height: int
    is_wall: NDArray[np.bool_]
    spawn_cells: NDArray[np.int64]
    inner_spawn_cells: NDArray[np.int64]
    apple_cells: NDArray[np.int64]
    dirt_cells: NDArray[np.int64]
    is_dirty: NDArray[np.bool_]
    clean_river_cells: NDArray[np.int64]
    sprite_stack_indices: NDArray[np.int64]
    sprite_stacks: tuple[tuple[str, ...], ...]

    @property
    def stride(self) -> int:
        """Number of cells in a row with the margin, by which the cell index changes in a step south."""
        return self.width + 2 * MAP_MARGIN

    @property
    def n_cells(self) -> int:
        return self.stride * (self.height + 2 * MAP_MARGIN)

    @property
    def site_counts(self) -> SiteCounts:
        return SiteCounts(len(self.apple_cells), len(self.dirt_cells), int(self.is_dirty.sum()))

    def find_cell(self, x: int, y: int) -> int:
        """Return the index of the cell in column `x` and row `y` of the map, both from 0."""
        return (y + MAP_MARGIN) * self.stride + x + MAP_MARGIN

    def find_position(self, index: int) -> tuple[int, int]:
        """Return column and row of the cell `index`."""
        return index % self.stride - MAP_MARGIN, index // self.stride - MAP_MARGIN

    def list_start_cells(self, n_agents: int) -> list[NDArray[np.int64]]:
        """Return each player's possible start cells; players with the same array object start on different cells of it.

        Raises:
            ConfigError: there are fewer spawn cells than players.
        """
        n_inner = min(2, n_agents) if len(self.inner_spawn_cells) else 0
        if n_inner > len(self.inner_spawn_cells) or n_agents - n_inner > len(self.spawn_cells):
            n_marked = len(self.inner_spawn_cells)
            inner_text = f" and {n_marked} marked Q for the first two players" if n_marked else ""
            raise ConfigError(
                f"env.n_agents={n_agents} is too large for the map, which has {len(self.spawn_cells)} spawn cells "
                f"marked P{inner_text}; use fewer players, or mark more cells"
            )
        return [self.inner_spawn_cells] * n_inner + [self.spawn_cells] * (n_agents - n_inner)


def parse_map(substrate: SubstrateName, text: str) -> GameMap:
    """Return the map in `text`, which has one symbol per cell. Empty lines before and after it are ignored.

    Raises:
        ConfigError: there are no rows, rows have different lengths, a symbol is unknown, or there is no spawn cell, no
            apple site or (Clean Up) no river cell that can be dirty.
    """
    rows = text.strip("\n").splitlines()
    symbols = SPRITES_BY_SYMBOL[substrate]
    if not rows or not rows[0]:
        raise ConfigError("env.map is empty; use a map with one row per line, or env.map=auto")
    for y, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ConfigError(
                f"env.map: row {y + 1} has {len(row)} cells and row 1 has {len(rows[0])}; all rows must have equal "
                "lengths"
            )
        for x, symbol in enumerate(row):
            if symbol not in symbols:
                raise ConfigError(
                    f"env.map: unknown symbol {symbol!r} in row {y + 1}, column {x + 1}; symbols of {substrate} are "
                    f"{' '.join(repr(map_symbol) for map_symbol in symbols)}"
                )
    height, width = len(rows), len(rows[0])
    grid = np.full((height + 2 * MAP_MARGIN, width + 2 * MAP_MARGIN), "", dtype="<U1")
    grid[MAP_MARGIN : MAP_MARGIN + height, MAP_MARGIN : MAP_MARGIN + width] = [list(row) for row in rows]
    symbol_by_cell = grid.reshape(-1)

    def find_marked_cells(marks: str) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(symbol_by_cell, [mark for mark in marks if mark in symbols]))

    sprite_stacks: list[tuple[str, ...]] = [(), *dict.fromkeys(symbols.values())]
    sprite_stack_indices = np.zeros(symbol_by_cell.size, np.int64)
    for symbol, stack in symbols.items():
        sprite_stack_indices[symbol_by_cell == symbol] = sprite_stacks.index(stack)
    spawn_cells, apple_cells, dirt_cells = map(find_marked_cells, ("P", APPLE_SYMBOLS[substrate], DIRT_SYMBOLS))
    if not len(spawn_cells):
        raise ConfigError(
            "env.map has no spawn cell; mark with P at least one cell in which players start and return after a zap"
        )
    if not len(apple_cells):
        symbols_text = " or ".join(APPLE_SYMBOLS[substrate])
        raise ConfigError(f"env.map has no cell where apples grow; mark at least one with {symbols_text}")
    if SUBSTRATES[substrate].has_dirt and not len(dirt_cells):
        raise ConfigError(
            "env.map has no river cell that can get dirty, on which the growth of apples depends; mark cells with H "
            "(clean at the start) or F (dirty at the start)"
        )
    return GameMap(
        substrate=substrate,
        text="\n".join(rows),
        width=width,
        height=height,
        is_wall=np.isin(symbol_by_cell, ["", "W"]),
        spawn_cells=spawn_cells,
        inner_spawn_cells=find_marked_cells("Q"),
        apple_cells=apple_cells,
        dirt_cells=dirt_cells,
        is_dirty=symbol_by_cell[dirt_cells] == DIRT_SYMBOLS[1],
        clean_river_cells=find_marked_cells("~S"),
        sprite_stack_indices=sprite_stack_indices,
        sprite_stacks=tuple(sprite_stacks),
    )


def load_map(substrate: SubstrateName, choice: str) -> GameMap:
    """Return the map for a value of `env.map`: `auto`, `melting_pot`, `own`, the path of a text file, or a map as text.

    `auto` is Melting Pot's map if Melting Pot is installed, else the map of this package (with a warning).

    Raises:
        ConfigError: the file cannot be read, or does not contain a map (see `parse_map`).
        EngineError: the choice is `melting_pot`, which is not installed.
    """
    if choice == "melting_pot" or (choice == "auto" and install.is_available()):
        return parse_map(substrate, _load_melting_pot_map(substrate))
    if choice == "auto":
        logger.warning(
            "Melting Pot is not installed: %s uses this package's map (env.map=own), and its results cannot be "
            "compared with those on Melting Pot's map; %s",
            substrate,
            install.INSTALL_HINT,
        )
    if choice in ("auto", "own"):
        return parse_map(substrate, PACKAGE_MAPS[substrate])
    if "\n" in choice:
        return parse_map(substrate, choice)
    try:
        return parse_map(substrate, Path(choice).expanduser().read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"env.map={choice[:80]} cannot be read ({reason}); use auto, melting_pot, own, a text file or the map "
            "itself"
        ) from error


@functools.cache
def _load_melting_pot_map(substrate: SubstrateName) -> str:
    return install.import_substrate(SUBSTRATES[substrate].module_name)[1].ASCII_MAP


PACKAGE_MAPS: Mapping[SubstrateName, str] = {
    "cleanup": """
WWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
WFHFHFHFHFHFHFHFHFHFHFHFHFHFHW
WHFHFHFHFHFHFHFHFHFHFHFHFHFHFW
WFHFFFHFFFHFFFHFFFHFFFHFFFHFFW
WHFHFHFHFHFHFHFHFHFHFHFHFHFHFW
WFFFHFFFHFFFHFFFHFFFHFFFHFFFHW
WHFHFHFHFHFHFHFHFHFHFHFHFHFHFW
W==================SS========W
W                  SS        W
W   P   P   P   P  SS   P    W
W                  SS        W
W   P   P   P   P  SS   P    W
W                  SS        W
W   P   P   P   P  SS   P    W
W                  SS        W
W^T^T^T^T^T^T^T^T^TSST^T^T^T^W
WBBBBBBBBBBBBBBBBBBBBBBBBBBBBW
WBBBBBBBBBBBBBBBBBBBBBBBBBBBBW
WBBBBBBBBBBBBBBBBBBBBBBBBBBBBW
WBBBBBBBBBBBBBBBBBBBBBBBBBBBBW
WWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
""",
    "harvest": """
WWWWWWWWWWWWWWWWWWWWWWWW
W  A       AA       A  W
W AAA     AAAA     AAA W
WAAAAA   AAAAAA   AAAAAW
W AAA     AAAA     AAA W
W  A       AA       A  W
W                      W
W       Q      Q       W
W   A              A   W
W  AAA            AAA  W
W   A              A   W
W                      W
W                      W
W                      W
W  PPPPPPPPPPPPPPPPPP  W
W PPPPPPPPPPPPPPPPPPPP W
WPPPPPPPPPPPPPPPPPPPPPPW
WWWWWWWWWWWWWWWWWWWWWWWW
""",
}
"""Maps for machines without Melting Pot, with the size and symbols of its maps, in another layout. No cell in
`Substrate.spawn_cells` (for legislative rules) is a wall."""
