"""The rules of Clean Up and Harvest, for one game, as loops, in the order of the events of a step.

These are plain functions; `compilation.build` compiles them. They change the arrays of `game_arrays.Games` in place,
only for game `b`. Temporary numbers of a step are stored in row `lane` of `Games.scratch`, which no other thread uses.
All numbers are integers; a random event happens if a random integer is below a threshold (`hashed_random.threshold`).

The order is that of the engine (docs/native_engine.md). Growth and spills depend on the state before the step. Then all
players turn, and they move one after another; all beams are fired at the same world; players return. Only then objects
that were hit or eaten are removed.
"""

from __future__ import annotations

import numpy as np

from llmrl.envs.native.game_arrays import Float32, Games, Inputs, Tables, Words
from llmrl.envs.native.hashed_random import (
    APPLE_GROWTH,
    MOVE_ORDER,
    RETURN_CELL,
    RETURN_HEADING,
    SCALE,
    SPILL,
    START_CELL,
    START_HEADING,
    WATER_PHASE,
    draw,
    hash_step,
)

NO_MOVE = 4
"""Direction of an action without a move."""
FRESH = 2
"""Value of `apple` for an apple that grew in this step."""
REWARD, CLEANED, ACTIVE = range(3)
"""Indices into the first axis of `Outputs.player_stats`."""


def start_game(b: int, inputs: Inputs, games: Games, tables: Tables) -> None:
    """Start an episode."""
    settings = tables.settings
    words = hash_step(inputs.keys, b, 0)
    for cell in range(games.occupied.shape[1]):
        games.occupied[b, cell] = 0
    i = 0
    for group in range(tables.groups.shape[0]):
        for _ in range(tables.groups[group, 2]):
            # Take the free cell with the smallest number.
            place, lowest = 0, 1 << 30
            for k in range(tables.groups[group, 0], tables.groups[group, 0] + tables.groups[group, 1]):
                if games.occupied[b, tables.places[k]] == 0:
                    number = draw(words, START_CELL, k)
                    if number < lowest:
                        place, lowest = tables.places[k], number
            games.occupied[b, place] = i + 1
            games.players[b, i].pos = place
            i += 1
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        player.heading = 0 if settings.facing_north else draw(words, START_HEADING, i) >> 22
        player.alive = 1
        player.out_for = 0
        player.zap_wait = 0
        player.clean_wait = 0
        player.cleaner = 0
    full = int(settings.full_orchard)
    for k in range(games.orchard.shape[1]):
        site = games.orchard[b, k]
        site.apple = full
        site.group = -1
        site.dry = 0
        site.near = tables.near[k, 0] * full
    dirt = 0
    for k in range(games.river.shape[1]):
        spot = games.river[b, k]
        spot.dirt = tables.dirty[k] if k < settings.n_dirt else 0
        dirt += spot.dirt
        spot.phase = draw(words, WATER_PHASE, k) >> 22
    world = games.world[b]
    world.t = 0
    world.apples = games.orchard.shape[1] * full
    world.dirt = dirt


def step_game(b: int, lane: int, inputs: Inputs, player_stats: Float32, games: Games, tables: Tables) -> None:
    """Advance a game by one step; write rewards, numbers of cleaned cells and who could act into `player_stats`."""
    settings = tables.settings
    n = games.players.shape[1]
    words = hash_step(inputs.keys, b, games.world[b].t + 1)
    n_regrown = 0
    if not settings.harvest:
        n_regrown = grow_apples(b, lane, words, games, tables)
        spill_dirt(b, words, games, tables)
    move_players(b, lane, words, inputs, games, tables)
    for i in range(n):
        player = games.players[b, i]
        player_stats[REWARD, b, i] = 0
        player_stats[ACTIVE, b, i] = player.alive
        games.player_events[b, i].place = player.pos * 4 + player.heading
    eat_apples(b, lane, inputs, player_stats, games, tables)
    if settings.zap >= 0:
        fire_zaps(b, lane, inputs, games, tables)
    n_beam_hits = 0
    if settings.clean >= 0:
        n_beam_hits = fire_cleaning_beams(b, lane, inputs, games, tables)
    for i in range(n):
        player = games.players[b, i]
        player_stats[CLEANED, b, i] = games.player_events[b, i].cleaned
        player.out_for = max(player.out_for - 1, 0)
    if settings.zap >= 0:
        return_players(b, lane, words, games, tables)
    if settings.harvest:
        n_regrown = regrow_apples(b, lane, words, player_stats, games, tables)
    remove_objects(b, lane, n_regrown, n_beam_hits, games, tables)
    games.world[b].t += 1


def grow_apples(b: int, lane: int, words: Words, games: Games, tables: Tables) -> int:
    """Let apples grow on empty sites of Clean Up, the faster the less dirt there is; return the number that grew."""
    chance = tables.chances[games.world[b].dirt]
    n_regrown = 0
    if chance > 0:
        for k in range(games.orchard.shape[1]):
            site = games.orchard[b, k]
            if site.apple == 0 and draw(words, APPLE_GROWTH, k) < chance:
                site.apple = FRESH
                games.scratch[lane, n_regrown].grown_site = k
                n_regrown += 1
    return n_regrown


def spill_dirt(b: int, words: Words, games: Games, tables: Tables) -> None:
    """Make one clean cell of the river dirty, in some steps of Clean Up."""
    settings, world = tables.settings, games.world[b]
    if world.t + 1 < settings.first_spill or draw(words, SPILL, 0) >= settings.spill_threshold:
        return
    remaining = settings.n_dirt - world.dirt
    # Rounded like the product of 32-bit floats in the published recordings.
    index = int(np.float32(draw(words, SPILL, 1)) * SCALE * np.float32(remaining))
    for k in range(settings.n_dirt):
        if games.river[b, k].dirt == 0:
            if index == 0:
                games.river[b, k].dirt = 1
                world.dirt += 1
                return
            index -= 1


def move_players(b: int, lane: int, words: Words, inputs: Inputs, games: Games, tables: Tables) -> None:
    """Turn the players; then let them move one after another, each if its target cell is free at that time.

    The order is random, or with `fixed_order` that of falling indices.
    """
    movers = 0
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        games.scratch[lane, i].old_cell = player.pos
        if player.alive == 1:
            action = tables.actions[inputs.action[b, i]]
            player.heading = (player.heading + action.turn) & 3
            if action.move != NO_MOVE:
                order_key = -i if tables.settings.fixed_order else draw(words, MOVE_ORDER, i)
                k = movers
                while k > 0 and games.scratch[lane, k - 1].order_key > order_key:
                    games.scratch[lane, k].order_key = games.scratch[lane, k - 1].order_key
                    games.scratch[lane, k].mover = games.scratch[lane, k - 1].mover
                    k -= 1
                games.scratch[lane, k].order_key = order_key
                games.scratch[lane, k].mover = i
                movers += 1
    for k in range(movers):
        i = games.scratch[lane, k].mover
        player = games.players[b, i]
        direction = tables.actions[inputs.action[b, i]].move
        target = tables.steps[player.pos, (player.heading + direction) & 3]
        if games.occupied[b, target] == 0:
            games.occupied[b, player.pos] = 0
            games.occupied[b, target] = i + 1
            player.pos = target


def eat_apples(b: int, lane: int, inputs: Inputs, player_stats: Float32, games: Games, tables: Tables) -> None:
    """Let players eat apples.

    A player that issued a move eats the apple on the cell where it ends up. An apple that has just grown under a player
    is eaten at once.
    """
    n_sites = games.orchard.shape[1]
    for i in range(games.players.shape[1]):
        player, scratch = games.players[b, i], games.scratch[lane, i]
        scratch.eaten_site = n_sites
        scratch.fresh_site = n_sites
        if player.alive == 1:
            site = tables.sites[player.pos]
            moves = tables.actions[inputs.action[b, i]].move != NO_MOVE
            if moves and site < n_sites and games.orchard[b, site].apple != 0:
                scratch.eaten_site = site
                player_stats[REWARD, b, i] += 1
            site = tables.sites[scratch.old_cell]
            if site < n_sites and games.orchard[b, site].apple == FRESH:
                scratch.fresh_site = site
                player_stats[REWARD, b, i] += 1


def fire_zaps(b: int, lane: int, inputs: Inputs, games: Games, tables: Tables) -> None:
    """Fire the zap beams.

    A beam consists of three lines of three cells; each ends at the first wall, or at the first player, who is hit.
    """
    n, settings = games.players.shape[1], tables.settings
    for i in range(n):
        games.scratch[lane, i].hit = 0
    for i in range(n):
        player, player_events = games.players[b, i], games.player_events[b, i]
        player_events.zaps = 0
        player_events.zapped = 0
        if player.alive == 1:
            fires = inputs.action[b, i] == settings.zap and player.zap_wait == 0
            player.zap_wait = max(player.zap_wait - 1, 0)
            if fires:
                player.zap_wait = settings.zap_cooldown
                for line in range(0, 9, 3):
                    for k in range(line, line + 3):
                        target = games.occupied[b, tables.beams[player_events.place, k]]
                        if target != 0:
                            games.scratch[lane, target - 1].hit = 1
                            player_events.zaps += 1
                            break
                        player_events.zapped |= 1 << k


def fire_cleaning_beams(b: int, lane: int, inputs: Inputs, games: Games, tables: Tables) -> int:
    """Fire the cleaning beams; return the number of cells that are cleaned.

    Each of the three lines of three cells ends at the first wall or dirty cell. The dirt is removed at the end of the
    step (`remove_objects`).
    """
    n, settings = games.players.shape[1], tables.settings
    cleaners = 0
    for i in range(n):
        cleaners += games.players[b, i].cleaner
    n_beam_hits = 0
    for i in range(n):
        player, player_events = games.players[b, i], games.player_events[b, i]
        player_events.others_cleaned = cleaners - player.cleaner
        player_events.cleaned = 0
        player_events.washed = 0
        if player.alive == 1:
            fires = inputs.action[b, i] == settings.clean and player.clean_wait == 0
            player.clean_wait = max(player.clean_wait - 1, 0)
            if fires:
                player.clean_wait = settings.clean_cooldown
                for line in range(0, 9, 3):
                    for k in range(line, line + 3):
                        spot = tables.spots[tables.beams[player_events.place, k]]
                        if spot < settings.n_dirt and games.river[b, spot].dirt == 1:
                            games.scratch[lane, n_beam_hits].cleaned_spot = spot
                            n_beam_hits += 1
                            player_events.cleaned += 1
                            break
                        player_events.washed |= 1 << k
    for i in range(n):
        games.players[b, i].cleaner = 1 if games.player_events[b, i].cleaned > 0 else 0
    return n_beam_hits


def return_players(b: int, lane: int, words: Words, games: Games, tables: Tables) -> None:
    """Put players whose time-out is over back on free cells. Players who were hit in this step still occupy theirs."""
    spawn = tables.spawn
    due = 0
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        if player.alive == 0 and player.out_for == 0:
            games.scratch[lane, due].returning = i
            due += 1
    if due == 0:
        return
    if tables.settings.has_assigned_cells:
        for k in range(due):
            i = games.scratch[lane, k].returning
            if games.occupied[b, spawn[i]] == 0:
                place_player(b, i, spawn[i], words, games)
        return
    free = 0
    for k in range(spawn.shape[0]):
        if games.occupied[b, spawn[k]] == 0:
            free += 1
    if due > free:
        order_returns(lane, due, words, games)
    for k in range(min(due, free)):
        place_player(b, games.scratch[lane, k].returning, free_cell(b, words, games, tables), words, games)


def free_cell(b: int, words: Words, games: Games, tables: Tables) -> int:
    """Return the free cell with the smallest drawn number."""
    spot, lowest = 0, 1 << 30
    for place in range(tables.spawn.shape[0]):
        cell = tables.spawn[place]
        if games.occupied[b, cell] == 0:
            number = draw(words, RETURN_CELL, place)
            if number < lowest:
                spot, lowest = cell, number
    return spot


def order_returns(lane: int, due: int, words: Words, games: Games) -> None:
    """Order the players due to return by random numbers, as there are fewer free cells than players.

    These are the lower 22 bits of the numbers whose upper bits give the headings.
    """
    for k in range(1, due):
        i = games.scratch[lane, k].returning
        order_key = draw(words, RETURN_HEADING, i) & 0x3FFFFF
        index = k
        while (
            index > 0 and draw(words, RETURN_HEADING, games.scratch[lane, index - 1].returning) & 0x3FFFFF > order_key
        ):
            games.scratch[lane, index].returning = games.scratch[lane, index - 1].returning
            index -= 1
        games.scratch[lane, index].returning = i


def place_player(b: int, i: int, cell: int, words: Words, games: Games) -> None:
    """Put a player on a cell, with a random heading."""
    player = games.players[b, i]
    player.pos = cell
    player.heading = draw(words, RETURN_HEADING, i) >> 22
    player.alive = 1
    games.occupied[b, cell] = i + 1


def regrow_apples(b: int, lane: int, words: Words, player_stats: Float32, games: Games, tables: Tables) -> int:
    """Let apples of Harvest regrow; return the number that grew.

    A bare site regrows with a probability that depends on the number of apples nearby two steps before. A player on
    such a site eats the apple at once.
    """
    n_sites = games.orchard.shape[1]
    n_regrown = 0
    for k in range(n_sites):
        site = games.orchard[b, k]
        if site.apple == 1:
            site.group = -1
        else:
            group = site.group
            n_near = min(site.near, 3)
            site.group = n_near
            site.dry = 1 if n_near == 0 else 0
            if group > 0 and draw(words, APPLE_GROWTH, k) < tables.chances[group]:
                site.group = -1
                site.apple = FRESH
                games.scratch[lane, n_regrown].grown_site = k
                n_regrown += 1
    if n_regrown > 0:
        # No two players share a cell, so each of these apples is eaten by one player only.
        for i in range(games.players.shape[1]):
            player = games.players[b, i]
            k = tables.sites[player.pos]
            if player.alive == 1 and k < n_sites and games.orchard[b, k].apple == FRESH:
                games.orchard[b, k].apple = 0
                player_stats[REWARD, b, i] += 1
    return n_regrown


def remove_objects(b: int, lane: int, n_grown: int, n_cleaned: int, games: Games, tables: Tables) -> None:
    """Remove eaten apples, cleaned dirt and zapped players; turn apples that grew in this step into ordinary ones."""
    settings, n_sites = tables.settings, games.orchard.shape[1]
    for k in range(n_grown):
        site = games.scratch[lane, k].grown_site
        if games.orchard[b, site].apple == FRESH:
            games.orchard[b, site].apple = 1
            update_counts(b, site, 1, games, tables)
    for i in range(games.players.shape[1]):
        player, scratch = games.players[b, i], games.scratch[lane, i]
        for site in (scratch.eaten_site, scratch.fresh_site):
            if site < n_sites and games.orchard[b, site].apple == 1:
                games.orchard[b, site].apple = 0
                update_counts(b, site, -1, games, tables)
        if settings.zap >= 0 and scratch.hit == 1:
            games.occupied[b, player.pos] = 0
            player.pos = 0
            player.alive = 0
            player.out_for = settings.removal_steps + 1
    for k in range(n_cleaned):
        spot = games.river[b, games.scratch[lane, k].cleaned_spot]
        if spot.dirt == 1:
            spot.dirt = 0
            games.world[b].dirt -= 1


def update_counts(b: int, site: int, change: int, games: Games, tables: Tables) -> None:
    """Add `change` to the number of apples in the world and near each neighboring site."""
    games.world[b].apples += change
    for k in range(1, 1 + tables.near[site, 0]):
        games.orchard[b, tables.near[site, k]].near += change
