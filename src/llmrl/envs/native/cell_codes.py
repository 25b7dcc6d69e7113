"""Codes of a cell's contents: ground, avatar and beam as one number. All observations are made from codes.

    code = ground + n_grounds * (avatar + n_avatars * beam)

A player's view is 121 codes, which tables convert to tiles of a frame or to the channel `grid`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.substrate.grid_text import BEAMS
from llmrl.envs.substrate.maps import GameMap

WATERS = 4
"""Number of frames of the water's animation."""

_CODE_OF_SPRITE = {"sand": 1, "floor": 1, "grass": 2, "grass_edge": 2, "dirt": 4, "wall": 5, "apple": 6}


@dataclass(frozen=True)
class CellCodes:
    """The codes of one map with `n_agents` players.

    Attributes:
        n_agents: number of players.
        grounds: sprites of each ground, bottom to top; ground 0 has none.
        base: default ground of each cell, [n_cells]: clean river in frame 0, no apple, grass not withered. The current
            ground is `base` + frame of the water + `WATERS` if dirty + 1 with an apple + 2 if the grass has withered.
    """

    n_agents: int
    grounds: tuple[tuple[str, ...], ...]
    base: NDArray[np.int32]

    @property
    def n_grounds(self) -> int:
        return len(self.grounds)

    @property
    def n_avatars(self) -> int:
        """Number of avatar codes. 0: nobody; 1 + 4 * slot + heading: a player; the last: the viewing player."""
        return 2 + 4 * self.n_agents

    @property
    def oneself(self) -> int:
        """Avatar code of the viewing player."""
        return self.n_avatars - 1

    @property
    def n_codes(self) -> int:
        return self.n_grounds * self.n_avatars * len(BEAMS)

    def parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return ground, avatar and beam of every code, each [n_codes]."""
        code = np.arange(self.n_codes)
        return code % self.n_grounds, code // self.n_grounds % self.n_avatars, code // self.n_grounds // self.n_avatars

    def grid(self) -> NDArray[np.uint8]:
        """Return the entries of the channel `grid` for each heading of the viewing player and every code.

        The shape is [4, n_codes, 4] uint8; entries are described in `grid_text.grid_codes`.
        """
        ground, avatar, beam = self.parts()
        table = np.zeros((4, self.n_codes, 4), np.uint8)
        kinds = np.array([content_of(stack) for stack in self.grounds], np.uint8)
        somebody = (avatar > 0) & (avatar < self.oneself)
        slot, heading = (avatar - 1) // 4, (avatar - 1) % 4
        for viewer in range(4):
            table[viewer, :, 0] = kinds[ground]
            table[viewer, :, 1] = np.where(somebody, 2 + slot, avatar == self.oneself)
            table[viewer, :, 2] = np.where(somebody, 1 + (heading - viewer) % 4, avatar == self.oneself)
            table[viewer, :, 3] = beam
        table[:, ground == 0] = 0  # players do not see avatars or beams outside the map
        return table


def content_of(stack: tuple[str, ...]) -> int:
    """Return the index into `grid_text.CONTENTS` of the most important sprite of a stack."""
    return max((3 if sprite.startswith("water") else _CODE_OF_SPRITE.get(sprite, 0) for sprite in stack), default=0)


def assign_codes(game_map: GameMap, n_agents: int) -> CellCodes:
    """Return the codes for a map: one for each static ground, and one for each state of river cells and apple sites."""
    grounds: list[tuple[str, ...]] = [()]
    indices: dict[tuple[int, str], int] = {}
    base = np.zeros(game_map.n_cells, np.int32)
    site_kinds = np.full(game_map.n_cells, "", dtype="<U5")
    site_kinds[game_map.apples] = "apple"
    site_kinds[game_map.river] = "river"
    site_kinds[game_map.dirt] = "dirt"
    for cell in np.flatnonzero(game_map.stack_indices):
        key = (int(game_map.stack_indices[cell]), str(site_kinds[cell]))
        if key not in indices:
            indices[key] = len(grounds)
            grounds += _sprite_stacks(game_map.stacks[key[0]], key[1], withers=game_map.substrate == "harvest")
        base[cell] = indices[key]
    return CellCodes(n_agents, tuple(grounds), base)


def _sprite_stacks(stack: tuple[str, ...], kind: str, withers: bool) -> list[tuple[str, ...]]:
    """Return the possible stacks of sprites of a cell of a kind, in the order of the offsets in `CellCodes.base`."""
    if kind in ("river", "dirt"):
        waters = [tuple(f"water_{i + 1}" if sprite == "river" else sprite for sprite in stack) for i in range(WATERS)]
        return waters if kind == "river" else waters + [(*water, "dirt") for water in waters]
    if kind == "apple" and not withers:
        return [stack, (*stack, "apple")]
    if kind == "apple":
        withered = tuple("floor" if sprite == "grass" else sprite for sprite in stack)
        return [stack, (*stack, "apple"), withered, (*withered, "apple")]
    return [stack]
