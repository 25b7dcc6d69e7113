"""The loop over a batch of games (parallel copies): start episodes, take steps, write observations and metrics.

In the loops that take most of the time, indices are unsigned. Numba then omits the check for negative indices, which
halves the time. Functions read and change only game `b` and row `lane` of the scratch memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.native.cell_codes import WATER_FRAMES
from llmrl.envs.native.game_arrays import (
    Games,
    Int32Array,
    LoopInputs,
    LoopOutputs,
    RuleConstants,
    RuleTables,
    ViewTables,
)
from llmrl.envs.native.rules import N_CLEANED, REWARD, start_game, step_game

WAIT, STEP, START, OBSERVE = range(4)
"""Commands for a game: write zeros, because its episode has ended; take a step; start an episode; only observe."""
APPLES_EATEN, PLAYERS_ZAPPED, PLAYERS_PRESENT, APPLES_LIVE = range(4)
APPLES_REGROWN, CELLS_CLEANED, CLEANING_SHOTS, DIRTY_CELLS = range(4, 8)
"""Indices of the metrics, in the order of `METRIC_NAMES`, into the first axis of `LoopOutputs.metrics`."""
METRIC_NAMES = (
    *("apples_eaten", "zaps", "players_present", "apples_live"),
    *("apples_regrown", "cells_cleaned", "cleaning_shots", "dirt"),
)
STEPS_PER_WATER_FRAME = 3
"""Number of steps between two frames of the water."""


def play_games(
    begin: int,
    end: int,
    lane: int,
    inputs: LoopInputs,
    outputs: LoopOutputs,
    games: Games,
    tables: RuleTables,
    view_tables: ViewTables,
) -> None:
    """Execute the commands of games `begin` to `end` - 1, and write their observations and metrics.

    `lane`: index of the thread (on a GPU: of the game), which selects its scratch memory.
    """
    scratch_row: Any = np.uint32(lane)
    for game in range(begin, end):
        b: Any = np.uint32(game)
        n_previous_apples = games.world[b].n_apples
        command = inputs.commands[b]
        if command == STEP:
            step_game(b, scratch_row, inputs, outputs.player_stats, games, tables)
        elif command != OBSERVE:
            if command == START:
                start_game(b, inputs, games, tables)
            write_idle_outputs(b, outputs, games)
        if outputs.metrics.shape[1] > 0:
            write_metrics(b, n_previous_apples, command == STEP, outputs, games)
        if outputs.grid.shape[0] > 0 or outputs.tile_ids.shape[0] > 0:
            write_codes(b, scratch_row, games, tables.constants, tables.beam_cells, view_tables)
            write_views(b, scratch_row, outputs, games, tables.constants, view_tables)
        if outputs.vector.shape[0] > 0:
            write_vectors(b, outputs, games, tables.constants)


def write_idle_outputs(b: int, outputs: LoopOutputs, games: Games) -> None:
    """Write zeros as rewards and events of a game that takes no step in this call."""
    for i in range(games.player_events.shape[1]):
        for k in range(outputs.player_stats.shape[0]):
            outputs.player_stats[k, b, i] = 0
        player_events = games.player_events[b, i]
        player_events.n_cleaned = player_events.n_zapped = player_events.n_other_cleaners = 0
        player_events.pose_index = player_events.zap_beam_mask = player_events.cleaning_beam_mask = 0


def write_metrics(b: int, n_previous_apples: int, has_stepped: bool, outputs: LoopOutputs, games: Games) -> None:
    """Write the metrics of a step; `n_previous_apples`: number of apples before the step.

    If the game took no step (`has_stepped` is false), the number of players present is 0.
    """
    player_stats, metrics = outputs.player_stats, outputs.metrics
    for k in range(metrics.shape[0]):
        metrics[k, b] = 0
    for i in range(games.players.shape[1]):
        metrics[APPLES_EATEN, b] += player_stats[REWARD, b, i]
        metrics[PLAYERS_ZAPPED, b] += games.player_events[b, i].n_zapped
        if has_stepped:
            metrics[PLAYERS_PRESENT, b] += games.players[b, i].alive
        metrics[CELLS_CLEANED, b] += player_stats[N_CLEANED, b, i]
        if player_stats[N_CLEANED, b, i] > 0:
            metrics[CLEANING_SHOTS, b] += 1
    metrics[APPLES_LIVE, b] = games.world[b].n_apples
    metrics[APPLES_REGROWN, b] = games.world[b].n_apples - n_previous_apples + metrics[APPLES_EATEN, b]
    metrics[DIRTY_CELLS, b] = games.world[b].n_dirty


def has_invalid_action(action: Any, n_actions: int) -> bool:
    """Return whether any of `action` [n_games, n_agents] is not in 0 .. n_actions - 1."""
    for b in range(action.shape[0]):
        for i in range(action.shape[1]):
            if action[b, i] < 0 or action[b, i] >= n_actions:
                return True
    return False


def write_codes(
    b: int, lane: int, games: Games, constants: RuleConstants, beam_cells: Int32Array, view_tables: ViewTables
) -> None:
    """Write the codes of all cells to row `lane` of `games.codes`; `beam_cells`: see `RuleTables`."""
    codes = games.codes
    for cell in range(view_tables.base_codes.shape[0]):
        codes[lane, cell] = view_tables.base_codes[cell]
    n_sites = games.apple_sites.shape[1]
    for k in range(n_sites):
        site = games.apple_sites[b, k]
        codes[lane, np.uint32(view_tables.variable_cells[k])] += site.apple_state + 2 * site.is_withered
    n_frames_passed = games.world[b].n_steps // STEPS_PER_WATER_FRAME
    for k in range(games.river_cells.shape[1]):
        river_cell = games.river_cells[b, k]
        frame = (river_cell.phase + n_frames_passed) & (WATER_FRAMES - 1)
        codes[lane, np.uint32(view_tables.variable_cells[n_sites + k])] += frame + WATER_FRAMES * river_cell.is_dirty
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        if player.alive == 1:
            codes[lane, player.cell] += constants.n_ground_codes * (1 + 4 * i + player.heading)
    # Zaps are written last, so a zap hides a cleaning beam on the same cell.
    beam_stride = constants.n_ground_codes * constants.n_avatar_codes
    for i in range(games.players.shape[1]):
        write_beam(b, lane, i, games.player_events[b, i].cleaning_beam_mask, 1, beam_stride, games, beam_cells)
    for i in range(games.players.shape[1]):
        write_beam(b, lane, i, games.player_events[b, i].zap_beam_mask, 2, beam_stride, games, beam_cells)
    codes[lane, 0] = 0


def write_beam(
    b: int, lane: int, i: int, beam_mask: int, beam_code: int, beam_stride: int, games: Games, beam_cells: Int32Array
) -> None:
    """Set the beam code (1: cleaning, 2: zap) of the cells in `beam_mask`, which a beam of player `i` passes."""
    if beam_mask != 0:
        for k in range(9):
            if beam_mask >> k & 1 == 1:
                cell = beam_cells[games.player_events[b, i].pose_index, k]
                games.codes[lane, cell] = games.codes[lane, cell] % beam_stride + beam_code * beam_stride


def write_views(
    b: int, lane: int, outputs: LoopOutputs, games: Games, constants: RuleConstants, view_tables: ViewTables
) -> None:
    """Write the 121 cells that each player sees, rotated so that the player faces up; zeros for removed players.

    `outputs.grid` gets the channel `grid`, with the four bytes of a cell as one int32, and `outputs.tile_ids` the tile
    indices. An empty output is not written.
    """
    codes, offsets = games.codes, view_tables.offsets
    grid, tile_ids = outputs.grid, outputs.tile_ids
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        if player.alive == 1:
            cell, heading = player.cell, player.heading
            direction = np.uint32(heading)
            # In the view of the player, its avatar code is the last one.
            code_without_viewer = codes[lane, cell]
            codes[lane, cell] = code_without_viewer + constants.n_ground_codes * (
                constants.n_avatar_codes - 2 - 4 * i - heading
            )
            if grid.shape[0] > 0:
                for k in range(offsets.shape[1]):
                    code = codes[lane, np.uint32(cell + offsets[direction, k])]
                    grid[b, i, k] = view_tables.grid_words[direction, np.uint32(code)]
            if tile_ids.shape[0] > 0:
                for k in range(offsets.shape[1]):
                    code = codes[lane, np.uint32(cell + offsets[direction, k])]
                    tile_ids[b, i, k] = view_tables.tile_ids[direction, np.uint32(code)]
            codes[lane, cell] = code_without_viewer
        else:
            if grid.shape[0] > 0:
                for k in range(offsets.shape[1]):
                    grid[b, i, k] = 0
            if tile_ids.shape[0] > 0:
                for k in range(offsets.shape[1]):
                    tile_ids[b, i, k] = 0


def copy_tiles(
    begin: int, end: int, lane: int, tile_ids: Int32Array, tile_rows: NDArray[np.int64], image_rows: NDArray[np.int64]
) -> None:
    """Copy the tiles of rows `begin` to `end` - 1 of `tile_ids` to an image.

    Args:
        begin, end: range of rows.
        lane: not used; `compilation.run_in_threads` passes it.
        tile_ids: tile index of each cell, [rows, columns].
        tile_rows: pixel rows of the tiles, three 64-bit integers each, [n_tiles, 8, 3].
        image_rows: pixel rows of the image, [rows, 8, columns, 3].
    """
    for row in range(begin, end):
        for y in range(tile_rows.shape[1]):
            for column in range(tile_ids.shape[1]):
                tile = np.uint32(tile_ids[row, column])
                for k in range(tile_rows.shape[2]):
                    image_rows[row, y, column, k] = tile_rows[tile, y, k]


def write_vectors(b: int, outputs: LoopOutputs, games: Games, constants: RuleConstants) -> None:
    """Write the channel `vector` to `outputs.vector`.

    Its elements are the readiness to zap in [0, 1] (1: ready) and, in Clean Up, the number of other players who cleaned
    in the previous step.
    """
    vector = outputs.vector
    for i in range(games.players.shape[1]):
        readiness = 0.0
        if games.players[b, i].alive == 1:
            readiness = 1.0 - games.players[b, i].steps_until_zap / constants.zap_cooldown
        vector[b, i, 0] = np.float32(readiness)
        if vector.shape[2] > 1:
            vector[b, i, 1] = games.player_events[b, i].n_other_cleaners
