"""The rules of Clean Up and Harvest, for one game, as loops: what happens in a step, in the order in which it happens.

These are plain functions; `compilation.build` makes compiled ones of them. They change the arrays of `games.Games` in
place, of game `b` alone, and note what they have to remember within a step in row `lane` of `notes`, which no other
thread uses. All numbers are integers; what is left to chance is an integer below a threshold
(`hashed_random.threshold`).

The order is the engine's: what grows or spills reads the state before; then turns and moves, one player after the
other; beams, all of the same world; returns; and only then what was hit or eaten is gone (docs/native_engine.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrl.envs.native.hashed_random import (
    FACE,
    GROW,
    ORDER,
    PLACE,
    RETURN,
    RETURN_FACE,
    SCALE,
    SPILL,
    WATER,
    begin,
    draw,
)

T, APPLES, DIRTY = range(3)
"""Columns of `world`: steps taken; how many apples there are; how many dirty cells."""
POS, HEADING, ALIVE, OUT_FOR, ZAP_WAIT, CLEAN_WAIT, CLEANER = range(7)
"""Columns of `players`, see `state.State`."""
APPLE, GROUP, DRY, NEAR = range(4)
"""Rows of `orchard`: 1 where there is an apple; see `state.State`; live apples within a distance of 2."""
DIRT, PHASE = range(2)
"""Rows of `river`."""
CLEANED, ZAPS, OTHERS, SHOT_FROM, ZAPPED, WASHED = range(6)
"""Columns of `deeds`, what players did in a step, see `state.GameEvents`; the last two are bits, one for each cell."""
ITSELF, SITE, SPOT = 4, 5, 6
"""Columns of `land`: the cell a step north, east, south, west leads to; the cell itself; its number as a site of
apples, and of dirt: theirs is the number of all where it is none."""
MOVE, TURN = range(2)
"""Columns of `acts`: direction relative to the heading, `ITSELF` for none; quarters to the right."""
(
    HARVEST,
    ZAP,
    CLEAN,
    ZAP_COOLDOWN,
    CLEAN_COOLDOWN,
    AWAY,
    FIXED_ORDER,
    OWN_CELLS,
    NORTH,
    FULL,
    N_DIRT,
    SPILLS,
    FIRST_SPILL,
) = range(13)
"""Places in `facts`: whether it is Harvest; the actions that fire (-1: none); steps; whether the order of moves is
fixed, players come back on cells of their own, look north at the start, and all apples are there then; cells that can
be dirty; the chance that one more gets so in a step, and the first step in which it can."""
TURNS, LOTS, BEFORE, HIT, BACK, HERE, UNDER, STRUCK, GREW = range(9)
"""Rows of `notes`."""
FRESH = 2
"""Instead of 1: an apple that grew in this step."""


def start_game(
    b: int, world: Any, players: Any, orchard: Any, river: Any, occupied: Any, source: Any, groups: Any, places: Any,
    soiled: Any, near: Any, facts: Any,
) -> None:  # fmt: skip
    """Begin an episode. `groups` [n_groups, 3]: players who share cells to begin on: first of these in `places`, how
    many, how many players; `soiled` [n_dirt]: 1 where the river is dirty at the start."""
    words = begin(source, b, 0)
    for cell in range(occupied.shape[1]):
        occupied[b, cell] = 0
    i = 0
    for group in range(groups.shape[0]):
        for _ in range(groups[group, 2]):
            # Whose number is the smallest of the cells left.
            chosen, least = 0, 1 << 30
            for k in range(groups[group, 0], groups[group, 0] + groups[group, 1]):
                if occupied[b, places[k]] == 0:
                    number = draw(words, PLACE, k)
                    if number < least:
                        chosen, least = places[k], number
            occupied[b, chosen] = i + 1
            players[b, i, POS] = chosen
            i += 1
    for i in range(players.shape[1]):
        players[b, i, HEADING] = 0 if facts[NORTH] == 1 else draw(words, FACE, i) >> 22
        players[b, i, ALIVE] = 1
        players[b, i, OUT_FOR] = 0
        players[b, i, ZAP_WAIT] = 0
        players[b, i, CLEAN_WAIT] = 0
        players[b, i, CLEANER] = 0
    full = facts[FULL]
    for site in range(orchard.shape[2]):
        orchard[b, APPLE, site] = full
        orchard[b, GROUP, site] = -1
        orchard[b, DRY, site] = 0
        orchard[b, NEAR, site] = near[site, 0] * full
    dirty = 0
    for spot in range(river.shape[2]):
        river[b, DIRT, spot] = soiled[spot] if spot < facts[N_DIRT] else 0
        dirty += river[b, DIRT, spot]
        river[b, PHASE, spot] = draw(words, WATER, spot) >> 22
    world[b, T] = 0
    world[b, APPLES] = orchard.shape[2] * full
    world[b, DIRTY] = dirty


def step_game(
    b: int, lane: int, world: Any, players: Any, orchard: Any, river: Any, occupied: Any, source: Any, action: Any,
    land: Any, beams: Any, near: Any, spawn: Any, chances: Any, acts: Any, facts: Any, pay: Any, deeds: Any, notes: Any,
) -> None:  # fmt: skip
    """One step. `action` [n_games, n_agents]; `pay` [3, n_games, n_agents] gets rewards, cells cleaned, and who could
    act."""
    n = players.shape[1]
    words = begin(source, b, world[b, T] + 1)
    grown = 0
    if facts[HARVEST] == 0:
        grown = grow(b, lane, words, world, orchard, chances, notes)
        spill(b, words, world, river, facts)
    move(b, lane, words, players, occupied, action, land, acts, facts, notes)
    for i in range(n):
        pay[0, b, i] = 0
        pay[2, b, i] = players[b, i, ALIVE]
        deeds[b, i, SHOT_FROM] = players[b, i, POS] * 4 + players[b, i, HEADING]
    eat(b, lane, players, orchard, action, land, acts, pay, notes)
    if facts[ZAP] >= 0:
        zap(b, lane, players, occupied, action, beams, facts, deeds, notes)
    struck = 0
    if facts[CLEAN] >= 0:
        struck = clean(b, lane, players, river, action, land, beams, facts, deeds, notes)
    for i in range(n):
        pay[1, b, i] = deeds[b, i, CLEANED]
        players[b, i, OUT_FOR] = max(players[b, i, OUT_FOR] - 1, 0)
    if facts[ZAP] >= 0:
        come_back(b, lane, words, players, occupied, spawn, facts, notes)
    if facts[HARVEST] == 1:
        grown = regrow(b, lane, words, players, orchard, land, chances, pay, notes)
    clear(b, lane, grown, struck, world, players, orchard, river, occupied, near, facts, notes)
    world[b, T] += 1


def grow(b: int, lane: int, words: Any, world: Any, orchard: Any, chances: Any, notes: Any) -> int:
    """Clean Up: on bare sites apples grow, the faster the less dirt there is; `chances` by dirty cells. How many."""
    chance = chances[world[b, DIRTY]]
    grown = 0
    if chance > 0:
        for site in range(orchard.shape[2]):
            if orchard[b, APPLE, site] == 0 and draw(words, GROW, site) < chance:
                orchard[b, APPLE, site] = FRESH
                notes[lane, GREW, grown] = site
                grown += 1
    return grown


def spill(b: int, words: Any, world: Any, river: Any, facts: Any) -> None:
    """Clean Up: in some steps a clean cell of the river gets dirty."""
    if world[b, T] + 1 < facts[FIRST_SPILL] or draw(words, SPILL, 0) >= facts[SPILLS]:
        return
    left = facts[N_DIRT] - world[b, DIRTY]
    # Rounded as the product of 32-bit floats that it is on record as.
    chosen = int(np.float32(draw(words, SPILL, 1)) * SCALE * np.float32(left))
    for spot in range(facts[N_DIRT]):
        if river[b, DIRT, spot] == 0:
            if chosen == 0:
                river[b, DIRT, spot] = 1
                world[b, DIRTY] += 1
                return
            chosen -= 1


def move(
    b: int, lane: int, words: Any, players: Any, occupied: Any, action: Any, land: Any, acts: Any, facts: Any,
    notes: Any,
) -> None:  # fmt: skip
    """All turn; then, in a random order, each who moves enters its cell if nobody is there at its turn."""
    movers = 0
    for i in range(players.shape[1]):
        notes[lane, BEFORE, i] = players[b, i, POS]
        if players[b, i, ALIVE] == 1:
            players[b, i, HEADING] = (players[b, i, HEADING] + acts[action[b, i], TURN]) & 3
            if acts[action[b, i], MOVE] != ITSELF:
                lot = -i if facts[FIXED_ORDER] == 1 else draw(words, ORDER, i)
                k = movers
                while k > 0 and notes[lane, LOTS, k - 1] > lot:
                    notes[lane, LOTS, k] = notes[lane, LOTS, k - 1]
                    notes[lane, TURNS, k] = notes[lane, TURNS, k - 1]
                    k -= 1
                notes[lane, LOTS, k] = lot
                notes[lane, TURNS, k] = i
                movers += 1
    for k in range(movers):
        i = notes[lane, TURNS, k]
        way = acts[action[b, i], MOVE]
        target = land[players[b, i, POS], (players[b, i, HEADING] + way) & 3]
        if occupied[b, target] == 0:
            occupied[b, players[b, i, POS]] = 0
            occupied[b, target] = i + 1
            players[b, i, POS] = target


def eat(b: int, lane: int, players: Any, orchard: Any, action: Any, land: Any, acts: Any, pay: Any, notes: Any) -> None:
    """Who issued a move eats where it ends up; what has just grown under a player is eaten at once, too."""
    n_sites = orchard.shape[2]
    for i in range(players.shape[1]):
        notes[lane, HERE, i] = n_sites
        notes[lane, UNDER, i] = n_sites
        if players[b, i, ALIVE] == 1:
            site = land[players[b, i, POS], SITE]
            if acts[action[b, i], MOVE] != ITSELF and site < n_sites and orchard[b, APPLE, site] != 0:
                notes[lane, HERE, i] = site
                pay[0, b, i] += 1
            site = land[notes[lane, BEFORE, i], SITE]
            if site < n_sites and orchard[b, APPLE, site] == FRESH:
                notes[lane, UNDER, i] = site
                pay[0, b, i] += 1


def zap(
    b: int, lane: int, players: Any, occupied: Any, action: Any, beams: Any, facts: Any, deeds: Any, notes: Any
) -> None:
    """Three lines of three cells: each ends at the first wall or player, who is hit."""
    n = players.shape[1]
    for i in range(n):
        notes[lane, HIT, i] = 0
    for i in range(n):
        deeds[b, i, ZAPS] = 0
        deeds[b, i, ZAPPED] = 0
        if players[b, i, ALIVE] == 1:
            fires = action[b, i] == facts[ZAP] and players[b, i, ZAP_WAIT] == 0
            players[b, i, ZAP_WAIT] = max(players[b, i, ZAP_WAIT] - 1, 0)
            if fires:
                players[b, i, ZAP_WAIT] = facts[ZAP_COOLDOWN]
                for line in range(0, 9, 3):
                    for k in range(line, line + 3):
                        who = occupied[b, beams[deeds[b, i, SHOT_FROM], k]]
                        if who != 0:
                            notes[lane, HIT, who - 1] = 1
                            deeds[b, i, ZAPS] += 1
                            break
                        deeds[b, i, ZAPPED] |= 1 << k


def clean(
    b: int, lane: int, players: Any, river: Any, action: Any, land: Any, beams: Any, facts: Any, deeds: Any, notes: Any
) -> int:
    """The same lines end at the first wall or dirt, which is gone at the end of the step. How many are struck."""
    n = players.shape[1]
    cleaners = 0
    for i in range(n):
        cleaners += players[b, i, CLEANER]
    struck = 0
    for i in range(n):
        deeds[b, i, OTHERS] = cleaners - players[b, i, CLEANER]
        deeds[b, i, CLEANED] = 0
        deeds[b, i, WASHED] = 0
        if players[b, i, ALIVE] == 1:
            fires = action[b, i] == facts[CLEAN] and players[b, i, CLEAN_WAIT] == 0
            players[b, i, CLEAN_WAIT] = max(players[b, i, CLEAN_WAIT] - 1, 0)
            if fires:
                players[b, i, CLEAN_WAIT] = facts[CLEAN_COOLDOWN]
                for line in range(0, 9, 3):
                    for k in range(line, line + 3):
                        spot = land[beams[deeds[b, i, SHOT_FROM], k], SPOT]
                        if spot < facts[N_DIRT] and river[b, DIRT, spot] == 1:
                            notes[lane, STRUCK, struck] = spot
                            struck += 1
                            deeds[b, i, CLEANED] += 1
                            break
                        deeds[b, i, WASHED] |= 1 << k
    for i in range(n):
        players[b, i, CLEANER] = 1 if deeds[b, i, CLEANED] > 0 else 0
    return struck


def come_back(b: int, lane: int, words: Any, players: Any, occupied: Any, spawn: Any, facts: Any, notes: Any) -> None:
    """Who has been out for long enough comes back on a free cell; those who were hit are still there."""
    n = players.shape[1]
    due = 0
    for i in range(n):
        if players[b, i, ALIVE] == 0 and players[b, i, OUT_FOR] == 0:
            notes[lane, BACK, due] = i
            due += 1
    if due == 0:
        return
    if facts[OWN_CELLS] == 1:
        for k in range(due):
            i = notes[lane, BACK, k]
            if occupied[b, spawn[i]] == 0:
                enter(b, i, spawn[i], words, players, occupied)
        return
    free = 0
    for k in range(spawn.shape[0]):
        if occupied[b, spawn[k]] == 0:
            free += 1
    if due > free:
        draw_lots(lane, due, words, notes)
    for k in range(min(due, free)):
        enter(b, notes[lane, BACK, k], free_cell(b, words, occupied, spawn), words, players, occupied)


def free_cell(b: int, words: Any, occupied: Any, spawn: Any) -> int:
    """Return the free cell with the smallest drawn number."""
    chosen, least = 0, 1 << 30
    for place in range(spawn.shape[0]):
        if occupied[b, spawn[place]] == 0:
            number = draw(words, RETURN, place)
            if number < least:
                chosen, least = spawn[place], number
    return chosen


def draw_lots(lane: int, due: int, words: Any, notes: Any) -> None:
    """Where there is no room for all, chance decides who waits; what is left of a heading's number is chance, too."""
    for k in range(1, due):
        i = notes[lane, BACK, k]
        lot = draw(words, RETURN_FACE, i) & 0x3FFFFF
        at = k
        while at > 0 and draw(words, RETURN_FACE, notes[lane, BACK, at - 1]) & 0x3FFFFF > lot:
            notes[lane, BACK, at] = notes[lane, BACK, at - 1]
            at -= 1
        notes[lane, BACK, at] = i


def enter(b: int, i: int, cell: int, words: Any, players: Any, occupied: Any) -> None:
    """A player is back on a cell, facing anywhere."""
    players[b, i, POS] = cell
    players[b, i, HEADING] = draw(words, RETURN_FACE, i) >> 22
    players[b, i, ALIVE] = 1
    occupied[b, cell] = i + 1


def regrow(
    b: int, lane: int, words: Any, players: Any, orchard: Any, land: Any, chances: Any, pay: Any, notes: Any
) -> int:
    """Harvest: bare sites sprout by how many apples were near two steps before (`chances`), and count anew. What
    sprouts under a player is eaten at once. How many are left."""
    n_sites = orchard.shape[2]
    grown = 0
    for site in range(n_sites):
        if orchard[b, APPLE, site] == 1:
            orchard[b, GROUP, site] = -1
        else:
            group = orchard[b, GROUP, site]
            around = min(orchard[b, NEAR, site], 3)
            orchard[b, GROUP, site] = around
            orchard[b, DRY, site] = 1 if around == 0 else 0
            if group > 0 and draw(words, GROW, site) < chances[group]:
                orchard[b, GROUP, site] = -1
                orchard[b, APPLE, site] = FRESH
                notes[lane, GREW, grown] = site
                grown += 1
    if grown > 0:
        # Two are never on one cell, so what is eaten first here is nobody else's.
        for i in range(players.shape[1]):
            site = land[players[b, i, POS], SITE]
            if players[b, i, ALIVE] == 1 and site < n_sites and orchard[b, APPLE, site] == FRESH:
                orchard[b, APPLE, site] = 0
                pay[0, b, i] += 1
    return grown


def clear(
    b: int, lane: int, grown: int, struck: int, world: Any, players: Any, orchard: Any, river: Any, occupied: Any,
    near: Any, facts: Any, notes: Any,
) -> None:  # fmt: skip
    """What was eaten or hit is gone, and what has grown is there."""
    n_sites = orchard.shape[2]
    for k in range(grown):
        site = notes[lane, GREW, k]
        if orchard[b, APPLE, site] == FRESH:
            orchard[b, APPLE, site] = 1
            count(b, site, 1, world, orchard, near)
    for i in range(players.shape[1]):
        for kind in range(HERE, UNDER + 1):
            site = notes[lane, kind, i]
            if site < n_sites and orchard[b, APPLE, site] == 1:
                orchard[b, APPLE, site] = 0
                count(b, site, -1, world, orchard, near)
        if facts[ZAP] >= 0 and notes[lane, HIT, i] == 1:
            occupied[b, players[b, i, POS]] = 0
            players[b, i, POS] = 0
            players[b, i, ALIVE] = 0
            players[b, i, OUT_FOR] = facts[AWAY] + 1
    for k in range(struck):
        if river[b, DIRT, notes[lane, STRUCK, k]] == 1:
            river[b, DIRT, notes[lane, STRUCK, k]] = 0
            world[b, DIRTY] -= 1


def count(b: int, site: int, change: int, world: Any, orchard: Any, near: Any) -> None:
    """An apple more or less, in the world and around its neighbours (`near`: how many each site has, and which)."""
    world[b, APPLES] += change
    for k in range(1, 1 + near[site, 0]):
        orchard[b, NEAR, near[site, k]] += change
