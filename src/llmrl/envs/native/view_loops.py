"""What lies on every cell of one game, and what each player sees of it, as loops over one game like the rules.

Where most of the time goes, places are made unsigned: Numba need not look whether they count from the end, which halves
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrl.envs.native.rules import (
    ALIVE,
    APPLE,
    DIRT,
    DRY,
    HEADING,
    OTHERS,
    PHASE,
    POS,
    SHOT_FROM,
    WASHED,
    ZAP_COOLDOWN,
    ZAP_WAIT,
    ZAPPED,
    T,
)

GROUNDS, AVATARS, CODES, WATER_STIRS = range(13, 17)
"""Places in `facts`, after those of the rules: how many codes there are of each kind and of all
(`cell_codes.CellCodes`); whether the frames of the water are shown, else always the first."""
WATER_STEPS, WATER_FRAMES = 3, 4
"""Steps between two frames of the water, and how many there are."""
OWN = 9 * 11 + 5
"""Where among the cells in view a player stands."""


def lay(
    b: int, lane: int, world: Any, players: Any, orchard: Any, river: Any, beams: Any, facts: Any, deeds: Any,
    base: Any, spots: Any, codes: Any,
) -> None:  # fmt: skip
    """Codes of all cells into row `lane` of `codes`. `base` [n_cells]: where nothing has happened; `spots`: cells of
    the orchard, then of the river."""
    for cell in range(base.shape[0]):
        codes[lane, cell] = base[cell]
    n_sites = orchard.shape[2]
    for site in range(n_sites):
        codes[lane, np.uint32(spots[site])] += orchard[b, APPLE, site] + 2 * orchard[b, DRY, site]
    turned = facts[WATER_STIRS] * (world[b, T] // WATER_STEPS)
    for spot in range(river.shape[2]):
        frame = (facts[WATER_STIRS] * river[b, PHASE, spot] + turned) & (WATER_FRAMES - 1)
        codes[lane, np.uint32(spots[n_sites + spot])] += frame + WATER_FRAMES * river[b, DIRT, spot]
    for i in range(players.shape[1]):
        if players[b, i, ALIVE] == 1:
            codes[lane, players[b, i, POS]] += facts[GROUNDS] * (1 + 4 * i + players[b, i, HEADING])
    # Where two beams cross, the zap is seen.
    beam = facts[GROUNDS] * facts[AVATARS]
    for i in range(players.shape[1]):
        shine(b, lane, i, deeds[b, i, WASHED], 1, beam, beams, deeds, codes)
    for i in range(players.shape[1]):
        shine(b, lane, i, deeds[b, i, ZAPPED], 2, beam, beams, deeds, codes)
    codes[lane, 0] = 0


def shine(b: int, lane: int, i: int, passed: int, kind: int, beam: int, beams: Any, deeds: Any, codes: Any) -> None:
    """Put a beam of player `i` over the cells it passes, by the bits of `passed`."""
    if passed != 0:
        for k in range(9):
            if passed >> k & 1 == 1:
                cell = beams[deeds[b, i, SHOT_FROM], k]
                codes[lane, cell] = codes[lane, cell] % beam + kind * beam


def look(
    b: int, lane: int, players: Any, facts: Any, turns: Any, codes: Any, grid_of: Any, tile_of: Any, grid: Any,
    ids: Any,
) -> None:  # fmt: skip
    """The 121 cells each player sees, turned so that it faces up: four codes each, packed in 32 bits, into `grid`;
    tiles into `ids`; either may be empty. `turns` [4, 121]: what to add to a player's cell, for each heading;
    `grid_of` and `tile_of` [4, n_codes]."""
    for i in range(players.shape[1]):
        if players[b, i, ALIVE] == 1:
            cell, heading = players[b, i, POS], players[b, i, HEADING]
            turn = np.uint32(heading)
            # The player who looks is the last of the avatars.
            own = codes[lane, cell]
            codes[lane, cell] = own + facts[GROUNDS] * (facts[AVATARS] - 2 - 4 * i - heading)
            if grid.shape[0] > 0:
                for k in range(turns.shape[1]):
                    code = codes[lane, np.uint32(cell + turns[turn, k])]
                    grid[b, i, k] = grid_of[turn, np.uint32(code)]
            if ids.shape[0] > 0:
                for k in range(turns.shape[1]):
                    code = codes[lane, np.uint32(cell + turns[turn, k])]
                    ids[b, i, k] = tile_of[turn, np.uint32(code)]
            codes[lane, cell] = own
        else:
            if grid.shape[0] > 0:
                for k in range(turns.shape[1]):
                    grid[b, i, k] = 0
            if ids.shape[0] > 0:
                for k in range(turns.shape[1]):
                    ids[b, i, k] = 0


def tell(b: int, players: Any, facts: Any, deeds: Any, vector: Any) -> None:
    """Readiness to zap in [0, 1], and in Clean Up how many others cleaned in the step before, into `vector`."""
    for i in range(players.shape[1]):
        ready = 0.0
        if players[b, i, ALIVE] == 1:
            ready = 1.0 - players[b, i, ZAP_WAIT] / facts[ZAP_COOLDOWN]
        vector[b, i, 0] = np.float32(ready)
        if vector.shape[2] > 1:
            vector[b, i, 1] = deeds[b, i, OTHERS]
