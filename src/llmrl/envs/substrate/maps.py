"""Maps of Clean Up and Harvest, and their parser, whose errors contain row, column and cause."""

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
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, Sites, SubstrateName

logger = logging.getLogger(__name__)

MARGIN = 9
"""Width of the empty margin around a map, in cells. Players see 9 cells ahead, so no view exceeds the margin."""

SYMBOLS: Mapping[SubstrateName, Mapping[str, tuple[str, ...]]] = {
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

APPLES: Mapping[SubstrateName, str] = {"cleanup": "BT", "harvest": "A"}
"""Symbols of cells where apples grow."""
DIRT = "HF"
"""Symbols of river cells that can be dirty: clean (H) and dirty (F) at the start."""


@dataclass(frozen=True)
class GameMap:
    """A map. The cells, including those of the margin, are numbered row by row; arrays of cells contain these indices.

    Attributes:
        substrate: substrate that defines the symbols.
        text: the map, one row per line.
        width, height: size without the margin, in cells.
        wall: whether a cell is impassable, [n_cells] bool; true in the margin.
        spawn: cells with the symbol `P`.
        inner_spawn: cells with the symbol `Q`, where the first two players start.
        apples: cells where apples grow.
        dirt: river cells that can be dirty.
        dirty: whether each cell of `dirt` is dirty at the start, [n_dirt] bool.
        river: other river cells.
        stack_indices: index into `stacks` of each cell, [n_cells]; 0 (no sprite) outside the map.
        stacks: names of sprites, bottom to top.
    """

    substrate: SubstrateName
    text: str
    width: int
    height: int
    wall: NDArray[np.bool_]
    spawn: NDArray[np.int64]
    inner_spawn: NDArray[np.int64]
    apples: NDArray[np.int64]
    dirt: NDArray[np.int64]
    dirty: NDArray[np.bool_]
    river: NDArray[np.int64]
    stack_indices: NDArray[np.int64]
    stacks: tuple[tuple[str, ...], ...]

    @property
    def stride(self) -> int:
        """Number of cells in a row with the margin, by which the cell index changes in a step south."""
        return self.width + 2 * MARGIN

    @property
    def n_cells(self) -> int:
        return self.stride * (self.height + 2 * MARGIN)

    @property
    def sites(self) -> Sites:
        return Sites(len(self.apples), len(self.dirt), int(self.dirty.sum()))

    def index_of(self, x: int, y: int) -> int:
        """Return the index of the cell in column `x` and row `y` of the map, both from 0."""
        return (y + MARGIN) * self.stride + x + MARGIN

    def position_of(self, index: int) -> tuple[int, int]:
        """Return column and row of the cell `index`."""
        return index % self.stride - MARGIN, index // self.stride - MARGIN

    def start_cells(self, n_agents: int) -> list[NDArray[np.int64]]:
        """Return the possible start cells of each player; players with the same array object start on different cells.

        Raises:
            ConfigError: there are fewer spawn cells than players.
        """
        n_inner = min(2, n_agents) if len(self.inner_spawn) else 0
        if n_inner > len(self.inner_spawn) or n_agents - n_inner > len(self.spawn):
            n_marked = len(self.inner_spawn)
            inner_text = f" and {n_marked} marked Q for the first two players" if n_marked else ""
            raise ConfigError(
                f"env.n_agents={n_agents} is too large for the map, which has {len(self.spawn)} spawn cells marked "
                f"P{inner_text}; use fewer players, or mark more cells"
            )
        return [self.inner_spawn] * n_inner + [self.spawn] * (n_agents - n_inner)


def parse_map(substrate: SubstrateName, text: str) -> GameMap:
    """Return the map in `text`, which has one symbol per cell. Empty lines before and after it are ignored.

    Raises:
        ConfigError: there are no rows, rows have different lengths, a symbol is unknown, or there is no spawn cell, no
            apple site or (Clean Up) no river cell that can be dirty.
    """
    rows = text.strip("\n").splitlines()
    symbols = SYMBOLS[substrate]
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
    grid = np.full((height + 2 * MARGIN, width + 2 * MARGIN), "", dtype="<U1")
    grid[MARGIN : MARGIN + height, MARGIN : MARGIN + width] = [list(row) for row in rows]
    symbol_by_cell = grid.reshape(-1)

    def cells_of(marks: str) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(symbol_by_cell, [mark for mark in marks if mark in symbols]))

    stacks: list[tuple[str, ...]] = [(), *dict.fromkeys(symbols.values())]
    stack_indices = np.zeros(symbol_by_cell.size, np.int64)
    for symbol, stack in symbols.items():
        stack_indices[symbol_by_cell == symbol] = stacks.index(stack)
    spawn, apples, dirt = cells_of("P"), cells_of(APPLES[substrate]), cells_of(DIRT)
    if not len(spawn):
        raise ConfigError(
            "env.map has no spawn cell; mark with P at least one cell in which players start and return after a zap"
        )
    if not len(apples):
        symbols_text = " or ".join(APPLES[substrate])
        raise ConfigError(f"env.map has no cell where apples grow; mark at least one with {symbols_text}")
    if SUBSTRATES[substrate].has_dirt and not len(dirt):
        raise ConfigError(
            "env.map has no river cell that can get dirty, on which the growth of apples depends; mark cells with H "
            "(clean at the start) or F (dirty at the start)"
        )
    return GameMap(
        substrate=substrate,
        text="\n".join(rows),
        width=width,
        height=height,
        wall=np.isin(symbol_by_cell, ["", "W"]),
        spawn=spawn,
        inner_spawn=cells_of("Q"),
        apples=apples,
        dirt=dirt,
        dirty=symbol_by_cell[dirt] == DIRT[1],
        river=cells_of("~S"),
        stack_indices=stack_indices,
        stacks=tuple(stacks),
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
        return parse_map(substrate, OWN_MAPS[substrate])
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
    return install.import_substrate(SUBSTRATES[substrate].module)[1].ASCII_MAP


OWN_MAPS: Mapping[SubstrateName, str] = {
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
"""Maps for machines without Melting Pot, with the size and symbols of its maps, in another layout. The cells in
`Substrate.spawn_cells` (for legislative rules) have no wall."""
