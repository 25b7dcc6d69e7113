"""The content of every cell of one game, and the view of each player, as loops over one game like the rules.

In the loops that take most of the time, indices are unsigned. Numba then omits the check for negative indices, which
halves the time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.native.game_arrays import Games, Int32, Outputs, Settings, ViewTables

WATER_STEPS, WATER_FRAMES = 3, 4
"""Number of steps between two frames of the water, and number of frames."""


def write_codes(b: int, lane: int, games: Games, settings: Settings, beams: Int32, views: ViewTables) -> None:
    """Write the codes of all cells into row `lane` of `games.codes`; `beams` as in `Tables`."""
    codes = games.codes
    for cell in range(views.base.shape[0]):
        codes[lane, cell] = views.base[cell]
    n_sites = games.orchard.shape[1]
    for k in range(n_sites):
        site = games.orchard[b, k]
        codes[lane, np.uint32(views.places[k])] += site.apple + 2 * site.dry
    turned = games.world[b].t // WATER_STEPS
    for k in range(games.river.shape[1]):
        spot = games.river[b, k]
        frame = (spot.phase + turned) & (WATER_FRAMES - 1)
        codes[lane, np.uint32(views.places[n_sites + k])] += frame + WATER_FRAMES * spot.dirt
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        if player.alive == 1:
            codes[lane, player.pos] += settings.n_grounds * (1 + 4 * i + player.heading)
    # Where two beams cross, the zap is shown, so it is drawn last.
    beam = settings.n_grounds * settings.n_avatars
    for i in range(games.players.shape[1]):
        draw_beam(b, lane, i, games.player_events[b, i].washed, 1, beam, games, beams)
    for i in range(games.players.shape[1]):
        draw_beam(b, lane, i, games.player_events[b, i].zapped, 2, beam, games, beams)
    codes[lane, 0] = 0


def draw_beam(b: int, lane: int, i: int, passed: int, kind: int, beam: int, games: Games, beams: Int32) -> None:
    """Draw a beam of player `i` on the cells that it passes, given as the bits of `passed`."""
    if passed != 0:
        for k in range(9):
            if passed >> k & 1 == 1:
                cell = beams[games.player_events[b, i].place, k]
                games.codes[lane, cell] = games.codes[lane, cell] % beam + kind * beam


def write_views(b: int, lane: int, outputs: Outputs, games: Games, settings: Settings, views: ViewTables) -> None:
    """Write the 121 cells that each player sees, rotated so that the player faces up.

    Codes go to `outputs.grid`, four of them packed into 32 bits, and tiles to `outputs.ids`; either may be empty.
    """
    codes, offsets = games.codes, views.offsets
    grid, ids = outputs.grid, outputs.ids
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        if player.alive == 1:
            cell, heading = player.pos, player.heading
            turn = np.uint32(heading)
            # The viewing player has the last avatar code.
            previous = codes[lane, cell]
            codes[lane, cell] = previous + settings.n_grounds * (settings.n_avatars - 2 - 4 * i - heading)
            if grid.shape[0] > 0:
                for k in range(offsets.shape[1]):
                    code = codes[lane, np.uint32(cell + offsets[turn, k])]
                    grid[b, i, k] = views.grids[turn, np.uint32(code)]
            if ids.shape[0] > 0:
                for k in range(offsets.shape[1]):
                    code = codes[lane, np.uint32(cell + offsets[turn, k])]
                    ids[b, i, k] = views.tiles[turn, np.uint32(code)]
            codes[lane, cell] = previous
        else:
            if grid.shape[0] > 0:
                for k in range(offsets.shape[1]):
                    grid[b, i, k] = 0
            if ids.shape[0] > 0:
                for k in range(offsets.shape[1]):
                    ids[b, i, k] = 0


def copy_tiles(first: int, last: int, lane: int, ids: Int32, bank: NDArray[np.int64], lines: NDArray[np.int64]) -> None:
    """Copy the tiles of rows `first` to `last` of `ids` into an image.

    Args:
        first, last: rows of `ids`.
        lane: not used.
        ids: tile numbers of the cells, [rows, columns].
        bank: lines of the tiles, three integers each, [n_tiles, 8, 3].
        lines: lines of the image, [rows, 8, columns, 3].
    """
    for row in range(first, last):
        for line in range(bank.shape[1]):
            for column in range(ids.shape[1]):
                tile = np.uint32(ids[row, column])
                for k in range(bank.shape[2]):
                    lines[row, line, column, k] = bank[tile, line, k]


def write_vectors(b: int, outputs: Outputs, games: Games, settings: Settings) -> None:
    """Write the channel `vector` into `outputs.vector`.

    Its entries are the readiness to zap in [0, 1] and, in Clean Up, the number of others who cleaned in the step
    before.
    """
    vector = outputs.vector
    for i in range(games.players.shape[1]):
        ready = 0.0
        if games.players[b, i].alive == 1:
            ready = 1.0 - games.players[b, i].zap_wait / settings.zap_cooldown
        vector[b, i, 0] = np.float32(ready)
        if vector.shape[2] > 1:
            vector[b, i, 1] = games.player_events[b, i].others_cleaned
