"""The loop over the games of a batch: start an episode, take a step, write observations and metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrl.envs.native.game_arrays import Games, Inputs, Outputs, Tables, ViewTables
from llmrl.envs.native.rules import CLEANED, REWARD, start_game, step_game
from llmrl.envs.native.view_loops import write_codes, write_vectors, write_views

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
    # Unsigned indices, so that Numba omits the check for negative ones.
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
