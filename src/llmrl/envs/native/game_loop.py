"""What is done with one game of a batch: begin it, take a step, look at it; and the numbers it reports."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrl.envs.native.rules import ALIVE, APPLES, DIRTY, ZAPS, start_game, step_game
from llmrl.envs.native.view_loops import lay, look, tell

WAIT, STEP, START, KEEP = range(4)
"""What is to be done with a game: nothing, because it is over; a step; a new episode; nothing but look at it."""
EATEN, ZAPPED_OUT, PRESENT, LIVE, REGROWN, CELLS, SHOTS, SOILED = range(8)
"""Rows of `info`, [n_games] each; their names are `METRICS`."""
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
    first: int, last: int, lane: int,
    todo: Any, action: Any, source: Any, pay: Any, info: Any, grid: Any, ids: Any, vector: Any,
    world: Any, players: Any, orchard: Any, river: Any, occupied: Any, deeds: Any, notes: Any, codes: Any,
    land: Any, beams: Any, near: Any, spawn: Any, groups: Any, places: Any, soiled: Any, chances: Any, acts: Any,
    facts: Any, base: Any, spots: Any, turns: Any, grid_of: Any, tile_of: Any,
) -> None:  # fmt: skip
    """Do with games `first` to `last` what `todo` [n_games] says, and write what is seen of them; `grid`, `ids` and
    `vector` may be empty: nobody looks."""
    # Unsigned, so that Numba need not look whether they count from the end.
    row: Any = np.uint32(lane)
    for game in range(first, last):
        b: Any = np.uint32(game)
        live = world[b, APPLES]
        if todo[b] == STEP:
            step_game(
                b, row, world, players, orchard, river, occupied, source, action, land, beams, near, spawn, chances,
                acts, facts, pay, deeds, notes,
            )  # fmt: skip
        elif todo[b] != KEEP:
            if todo[b] == START:
                start_game(
                    b, world, players, orchard, river, occupied, source, groups, places, soiled, near, facts
                )  # fmt: skip
            rest(b, pay, deeds)
        if info.shape[1] > 0:
            report(b, live, todo[b] == STEP, world, players, pay, deeds, info)
        if grid.shape[0] > 0 or ids.shape[0] > 0:
            lay(b, row, world, players, orchard, river, beams, facts, deeds, base, spots, codes)
            look(b, row, players, facts, turns, codes, grid_of, tile_of, grid, ids)
        if vector.shape[0] > 0:
            tell(b, players, facts, deeds, vector)


def rest(b: int, pay: Any, deeds: Any) -> None:
    """Nothing has happened."""
    for i in range(deeds.shape[1]):
        for k in range(pay.shape[0]):
            pay[k, b, i] = 0
        for k in range(deeds.shape[2]):
            deeds[b, i, k] = 0


def report(b: int, live: int, played: bool, world: Any, players: Any, pay: Any, deeds: Any, info: Any) -> None:
    """What a step came to; `live` are the apples before it. In a game that is over nobody is present."""
    for k in range(info.shape[0]):
        info[k, b] = 0
    for i in range(players.shape[1]):
        info[EATEN, b] += pay[0, b, i]
        info[ZAPPED_OUT, b] += deeds[b, i, ZAPS]
        if played:
            info[PRESENT, b] += players[b, i, ALIVE]
        info[CELLS, b] += pay[1, b, i]
        if pay[1, b, i] > 0:
            info[SHOTS, b] += 1
    info[LIVE, b] = world[b, APPLES]
    info[REGROWN, b] = world[b, APPLES] - live + info[EATEN, b]
    info[SOILED, b] = world[b, DIRTY]


def outside(action: Any, n_actions: int) -> bool:
    """Whether any of `action` [n_games, n_agents] is none of 0 to n_actions - 1."""
    for b in range(action.shape[0]):
        for i in range(action.shape[1]):
            if action[b, i] < 0 or action[b, i] >= n_actions:
                return True
    return False
