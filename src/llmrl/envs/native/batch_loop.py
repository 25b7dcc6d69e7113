"""The loop over the games of a batch: start an episode, take a step, write observations and metrics.

In the loops that take most of the time, indices are unsigned. Numba then omits the check for negative indices, which
halves the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.native.cell_codes import WATER_FRAMES
from llmrl.envs.native.game_arrays import Games, Inputs, Int32, Outputs, Settings, Tables, ViewTables
from llmrl.envs.native.rules import CLEANED, REWARD, start_game, step_game

WAIT, STEP, START, KEEP = range(4)
"""Commands for a game: nothing (it is over); a step; a new episode; observations only."""
EATEN, ZAPPED_OUT, PRESENT, LIVE, REGROWN, CLEANED_CELLS, SHOTS, DIRTY_CELLS = range(8)
"""Indices into `Outputs.info`, [n_games] each; their names are `METRICS`."""
METRICS = (
    "apples_eaten",
    "zaps",
    "players_present",
    "apples_live",
    "apples_regrown",
    "cells_cleaned",
    "cleaning_shots",
    "dirt",
)
WATER_STEPS = 3
"""Number of steps between two frames of the water."""


def play(
    first: int,
    last: int,
    lane: int,
    inputs: Inputs,
    outputs: Outputs,
    games: Games,
    tables: Tables,
    views: ViewTables,
) -> None:
    """Execute the command `inputs.commands` in games `first` to `last`, and write their observations and metrics."""
    row: Any = np.uint32(lane)
    for game in range(first, last):
        b: Any = np.uint32(game)
        previous_apples = games.world[b].apples
        command = inputs.commands[b]
        if command == STEP:
            step_game(b, row, inputs, outputs.player_stats, games, tables)
        elif command != KEEP:
            if command == START:
                start_game(b, inputs, games, tables)
            write_idle_outputs(b, outputs, games)
        if outputs.info.shape[1] > 0:
            write_metrics(b, previous_apples, command == STEP, outputs, games)
        if outputs.grid.shape[0] > 0 or outputs.ids.shape[0] > 0:
            write_codes(b, row, games, tables.settings, tables.beams, views)
            write_views(b, row, outputs, games, tables.settings, views)
        if outputs.vector.shape[0] > 0:
            write_vectors(b, outputs, games, tables.settings)


def write_idle_outputs(b: int, outputs: Outputs, games: Games) -> None:
    """Write zeros as rewards and events of a game that takes no step."""
    for i in range(games.player_events.shape[1]):
        for k in range(outputs.player_stats.shape[0]):
            outputs.player_stats[k, b, i] = 0
        player_events = games.player_events[b, i]
        player_events.cleaned = 0
        player_events.zaps = 0
        player_events.others_cleaned = 0
        player_events.place = 0
        player_events.zapped = 0
        player_events.washed = 0


def write_metrics(b: int, previous_apples: int, played: bool, outputs: Outputs, games: Games) -> None:
    """Write the metrics of a step; `previous_apples` is the number of apples before it.

    In a game that is over nobody is present.
    """
    player_stats, info = outputs.player_stats, outputs.info
    for k in range(info.shape[0]):
        info[k, b] = 0
    for i in range(games.players.shape[1]):
        info[EATEN, b] += player_stats[REWARD, b, i]
        info[ZAPPED_OUT, b] += games.player_events[b, i].zaps
        if played:
            info[PRESENT, b] += games.players[b, i].alive
        info[CLEANED_CELLS, b] += player_stats[CLEANED, b, i]
        if player_stats[CLEANED, b, i] > 0:
            info[SHOTS, b] += 1
    info[LIVE, b] = games.world[b].apples
    info[REGROWN, b] = games.world[b].apples - previous_apples + info[EATEN, b]
    info[DIRTY_CELLS, b] = games.world[b].dirt


def any_invalid(action: Any, n_actions: int) -> bool:
    """Return whether any of `action` [n_games, n_agents] is not in 0 .. n_actions - 1."""
    for b in range(action.shape[0]):
        for i in range(action.shape[1]):
            if action[b, i] < 0 or action[b, i] >= n_actions:
                return True
    return False


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
