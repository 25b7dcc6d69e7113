"""The rules of Clean Up and Harvest for one game, as loops, in the order of the events of a step.

These are plain functions; `compilation.build_functions` compiles them. They change the arrays of `game_arrays.Games`
in place, only for game `b`. Temporary lists of a step are stored in row `lane` of `Games.scratch`, which no other
thread uses. A random event happens if a random integer is below a threshold (see `hashed_random`).

The order is that of Melting Pot (docs/native_engine.md): apples and dirt of Clean Up appear; all players turn; they
move one after another; they eat; all beams are fired in the same state; players return; apples of Harvest regrow. Only
then objects that were hit or eaten are removed.
"""

from __future__ import annotations

import numpy as np

from llmrl.envs.native.game_arrays import Float32Array, Games, LoopInputs, RuleTables, StepHash
from llmrl.envs.native.hashed_random import (
    APPLE_GROWTH,
    MOVE_ORDER,
    RETURN_CELL,
    RETURN_HEADING,
    SPILL,
    START_CELL,
    START_HEADING,
    UNIT_SCALE,
    WATER_PHASE,
    hash_step,
    sample_integer,
)

NO_MOVE = 4
"""Direction of an action without a move."""
FRESH_APPLE = 2
"""Value of `apple_state` for an apple that grew in this step."""
REWARD, N_CLEANED, IS_ACTIVE = range(3)
"""Indices into the first axis of `LoopOutputs.player_stats`."""


def start_game(b: int, inputs: LoopInputs, games: Games, tables: RuleTables) -> None:
    """Start an episode of game `b`: place players, apples and dirt."""
    constants = tables.constants
    step_hash = hash_step(inputs.game_keys, b, 0)
    for cell in range(games.occupants.shape[1]):
        games.occupants[b, cell] = 0
    i = 0
    for group in range(tables.start_groups.shape[0]):
        for _ in range(tables.start_groups[group, 2]):
            # Choose the free cell with the smallest random number.
            chosen_cell, lowest_number = 0, 1 << 30
            for k in range(
                tables.start_groups[group, 0], tables.start_groups[group, 0] + tables.start_groups[group, 1]
            ):
                if games.occupants[b, tables.start_cells[k]] == 0:
                    number = sample_integer(step_hash, START_CELL, k)
                    if number < lowest_number:
                        chosen_cell, lowest_number = tables.start_cells[k], number
            games.occupants[b, chosen_cell] = i + 1
            games.players[b, i].cell = chosen_cell
            i += 1
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        player.heading = 0 if constants.starts_facing_north else sample_integer(step_hash, START_HEADING, i) >> 22
        player.alive = 1
        player.steps_until_return = player.steps_until_zap = player.steps_until_clean = player.has_cleaned = 0
    apple_state = int(constants.starts_with_apples)
    for k in range(games.apple_sites.shape[1]):
        site = games.apple_sites[b, k]
        site.apple_state = apple_state
        site.regrowth_class = -1
        site.is_withered = 0
        site.n_apples_nearby = tables.site_neighbors[k, 0] * apple_state
    n_dirty = 0
    for k in range(games.river_cells.shape[1]):
        river_cell = games.river_cells[b, k]
        river_cell.is_dirty = tables.initial_dirt[k] if k < constants.n_dirt_cells else 0
        n_dirty += river_cell.is_dirty
        river_cell.phase = sample_integer(step_hash, WATER_PHASE, k) >> 22
    world = games.world[b]
    world.n_steps = 0
    world.n_apples = games.apple_sites.shape[1] * apple_state
    world.n_dirty = n_dirty


def step_game(
    b: int, lane: int, inputs: LoopInputs, player_stats: Float32Array, games: Games, tables: RuleTables
) -> None:
    """Advance a game by one step; write `REWARD`, `N_CLEANED` and `IS_ACTIVE` of each player to `player_stats`."""
    constants = tables.constants
    n = games.players.shape[1]
    step_hash = hash_step(inputs.game_keys, b, games.world[b].n_steps + 1)
    n_grown = 0
    if not constants.is_harvest:
        n_grown = grow_apples(b, lane, step_hash, games, tables)
        spill_dirt(b, step_hash, games, tables)
    move_players(b, lane, step_hash, inputs, games, tables)
    for i in range(n):
        player = games.players[b, i]
        player_stats[REWARD, b, i] = 0
        player_stats[IS_ACTIVE, b, i] = player.alive
        games.player_events[b, i].pose_index = player.cell * 4 + player.heading
    eat_apples(b, lane, inputs, player_stats, games, tables)
    if constants.zap_action >= 0:
        fire_zaps(b, lane, inputs, games, tables)
    n_beam_hits = 0
    if constants.clean_action >= 0:
        n_beam_hits = fire_cleaning_beams(b, lane, inputs, games, tables)
    for i in range(n):
        player = games.players[b, i]
        player_stats[N_CLEANED, b, i] = games.player_events[b, i].n_cleaned
        player.steps_until_return = max(player.steps_until_return - 1, 0)
    if constants.zap_action >= 0:
        return_players(b, lane, step_hash, games, tables)
    if constants.is_harvest:
        n_grown = regrow_apples(b, lane, step_hash, player_stats, games, tables)
    remove_objects(b, lane, n_grown, n_beam_hits, games, tables)
    games.world[b].n_steps += 1


def grow_apples(b: int, lane: int, step_hash: StepHash, games: Games, tables: RuleTables) -> int:
    """Let apples of Clean Up grow on empty sites, less often with more dirt; return the number that grew."""
    threshold = tables.growth_thresholds[games.world[b].n_dirty]
    n_grown = 0
    if threshold > 0:
        for k in range(games.apple_sites.shape[1]):
            site = games.apple_sites[b, k]
            if site.apple_state == 0 and sample_integer(step_hash, APPLE_GROWTH, k) < threshold:
                site.apple_state = FRESH_APPLE
                games.scratch[lane, n_grown].grown_site = k
                n_grown += 1
    return n_grown


def spill_dirt(b: int, step_hash: StepHash, games: Games, tables: RuleTables) -> None:
    """Make one random clean river cell dirty with the probability of `RuleConstants.spill_threshold`."""
    constants, world = tables.constants, games.world[b]
    if world.n_steps + 1 < constants.first_spill_step:
        return
    if sample_integer(step_hash, SPILL, 0) >= constants.spill_threshold:
        return
    n_clean = constants.n_dirt_cells - world.n_dirty
    # A product of 32-bit floats, so that rounding is that of published recordings of episodes.
    clean_index = int(np.float32(sample_integer(step_hash, SPILL, 1)) * UNIT_SCALE * np.float32(n_clean))
    for k in range(constants.n_dirt_cells):
        if games.river_cells[b, k].is_dirty == 0:
            if clean_index == 0:
                games.river_cells[b, k].is_dirty = 1
                world.n_dirty += 1
                return
            clean_index -= 1


def move_players(b: int, lane: int, step_hash: StepHash, inputs: LoopInputs, games: Games, tables: RuleTables) -> None:
    """Turn the players; then move them one after another, each if its target cell is free at that time.

    The order is random or, with `has_fixed_move_order`, that of descending indices.
    """
    n_movers = 0
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        games.scratch[lane, i].previous_cell = player.cell
        if player.alive == 1:
            action = tables.actions[inputs.actions[b, i]]
            player.heading = (player.heading + action.quarter_turns) & 3
            if action.move_direction != NO_MOVE:
                move_order_key = (
                    -i if tables.constants.has_fixed_move_order else sample_integer(step_hash, MOVE_ORDER, i)
                )
                k = n_movers
                while k > 0 and games.scratch[lane, k - 1].move_order_key > move_order_key:
                    games.scratch[lane, k].move_order_key = games.scratch[lane, k - 1].move_order_key
                    games.scratch[lane, k].mover_index = games.scratch[lane, k - 1].mover_index
                    k -= 1
                games.scratch[lane, k].move_order_key = move_order_key
                games.scratch[lane, k].mover_index = i
                n_movers += 1
    for k in range(n_movers):
        i = games.scratch[lane, k].mover_index
        player = games.players[b, i]
        direction = tables.actions[inputs.actions[b, i]].move_direction
        target = tables.step_targets[player.cell, (player.heading + direction) & 3]
        if games.occupants[b, target] == 0:
            games.occupants[b, player.cell] = 0
            games.occupants[b, target] = i + 1
            player.cell = target


def eat_apples(
    b: int, lane: int, inputs: LoopInputs, player_stats: Float32Array, games: Games, tables: RuleTables
) -> None:
    """Let players eat apples; the apples are removed at the end of the step (`remove_objects`).

    A player whose action is a move eats the apple on its cell after the move. A player also eats an apple that grew in
    this step on its cell before the move.
    """
    n_sites = games.apple_sites.shape[1]
    for i in range(games.players.shape[1]):
        player, scratch = games.players[b, i], games.scratch[lane, i]
        scratch.eaten_site = scratch.fresh_site = n_sites
        if player.alive == 1:
            site_index = tables.site_indices[player.cell]
            is_move = tables.actions[inputs.actions[b, i]].move_direction != NO_MOVE
            if is_move and site_index < n_sites and games.apple_sites[b, site_index].apple_state != 0:
                scratch.eaten_site = site_index
                player_stats[REWARD, b, i] += 1
            site_index = tables.site_indices[scratch.previous_cell]
            if site_index < n_sites and games.apple_sites[b, site_index].apple_state == FRESH_APPLE:
                scratch.fresh_site = site_index
                player_stats[REWARD, b, i] += 1


def fire_zaps(b: int, lane: int, inputs: LoopInputs, games: Games, tables: RuleTables) -> None:
    """Fire the zap beams: three lines of three cells; each ends at the first wall or the first player, who is hit."""
    n, constants = games.players.shape[1], tables.constants
    for i in range(n):
        games.scratch[lane, i].is_hit = 0
    for i in range(n):
        player, player_events = games.players[b, i], games.player_events[b, i]
        player_events.n_zapped = player_events.zap_beam_mask = 0
        if player.alive == 1:
            fires = inputs.actions[b, i] == constants.zap_action and player.steps_until_zap == 0
            player.steps_until_zap = max(player.steps_until_zap - 1, 0)
            if fires:
                player.steps_until_zap = constants.zap_cooldown
                for beam_line in range(0, 9, 3):
                    for k in range(beam_line, beam_line + 3):
                        target = games.occupants[b, tables.beam_cells[player_events.pose_index, k]]
                        if target != 0:
                            games.scratch[lane, target - 1].is_hit = 1
                            player_events.n_zapped += 1
                            break
                        player_events.zap_beam_mask |= 1 << k


def fire_cleaning_beams(b: int, lane: int, inputs: LoopInputs, games: Games, tables: RuleTables) -> int:
    """Fire the cleaning beams; return the number of hits of dirty cells.

    Each of the three lines of three cells ends at the first wall or dirty cell, which is hit. The dirt is removed at
    the end of the step (`remove_objects`).
    """
    n, constants = games.players.shape[1], tables.constants
    n_cleaners = 0
    for i in range(n):
        n_cleaners += games.players[b, i].has_cleaned
    n_beam_hits = 0
    for i in range(n):
        player, player_events = games.players[b, i], games.player_events[b, i]
        player_events.n_other_cleaners = n_cleaners - player.has_cleaned
        player_events.n_cleaned = player_events.cleaning_beam_mask = 0
        if player.alive == 1:
            fires = inputs.actions[b, i] == constants.clean_action and player.steps_until_clean == 0
            player.steps_until_clean = max(player.steps_until_clean - 1, 0)
            if fires:
                player.steps_until_clean = constants.clean_cooldown
                for beam_line in range(0, 9, 3):
                    for k in range(beam_line, beam_line + 3):
                        dirt_index = tables.dirt_indices[tables.beam_cells[player_events.pose_index, k]]
                        if dirt_index < constants.n_dirt_cells and games.river_cells[b, dirt_index].is_dirty == 1:
                            games.scratch[lane, n_beam_hits].cleaned_cell_index = dirt_index
                            n_beam_hits += 1
                            player_events.n_cleaned += 1
                            break
                        player_events.cleaning_beam_mask |= 1 << k
    for i in range(n):
        games.players[b, i].has_cleaned = 1 if games.player_events[b, i].n_cleaned > 0 else 0
    return n_beam_hits


def return_players(b: int, lane: int, step_hash: StepHash, games: Games, tables: RuleTables) -> None:
    """Put players whose removal time is over on free spawn cells. Cells of players hit in this step are not free."""
    spawn_cells = tables.spawn_cells
    n_returning = 0
    for i in range(games.players.shape[1]):
        player = games.players[b, i]
        if player.alive == 0 and player.steps_until_return == 0:
            games.scratch[lane, n_returning].returning_index = i
            n_returning += 1
    if n_returning == 0:
        return
    if tables.constants.has_assigned_cells:
        for k in range(n_returning):
            i = games.scratch[lane, k].returning_index
            if games.occupants[b, spawn_cells[i]] == 0:
                place_player(b, i, spawn_cells[i], step_hash, games)
        return
    n_free = 0
    for k in range(spawn_cells.shape[0]):
        if games.occupants[b, spawn_cells[k]] == 0:
            n_free += 1
    if n_returning > n_free:
        sort_returning_players(lane, n_returning, step_hash, games)
    for k in range(min(n_returning, n_free)):
        place_player(
            b, games.scratch[lane, k].returning_index, choose_free_cell(b, step_hash, games, tables), step_hash, games
        )


def choose_free_cell(b: int, step_hash: StepHash, games: Games, tables: RuleTables) -> int:
    """Return the free spawn cell with the smallest random number, i.e. a uniformly random one."""
    chosen_cell, lowest_number = 0, 1 << 30
    for k in range(tables.spawn_cells.shape[0]):
        cell = tables.spawn_cells[k]
        if games.occupants[b, cell] == 0:
            number = sample_integer(step_hash, RETURN_CELL, k)
            if number < lowest_number:
                chosen_cell, lowest_number = cell, number
    return chosen_cell


def sort_returning_players(lane: int, n_returning: int, step_hash: StepHash, games: Games) -> None:
    """Sort the `n_returning` returning players by random numbers, so that the first ones get the free cells.

    A player's number is the lower 22 bits of the random integer whose upper 2 bits are its heading.
    """
    for k in range(1, n_returning):
        i = games.scratch[lane, k].returning_index
        order_key = sample_integer(step_hash, RETURN_HEADING, i) & 0x3FFFFF
        index = k
        while (
            index > 0
            and sample_integer(step_hash, RETURN_HEADING, games.scratch[lane, index - 1].returning_index) & 0x3FFFFF
            > order_key
        ):
            games.scratch[lane, index].returning_index = games.scratch[lane, index - 1].returning_index
            index -= 1
        games.scratch[lane, index].returning_index = i


def place_player(b: int, i: int, cell: int, step_hash: StepHash, games: Games) -> None:
    """Put a player on a cell, with a random heading."""
    player = games.players[b, i]
    player.cell = cell
    player.heading = sample_integer(step_hash, RETURN_HEADING, i) >> 22
    player.alive = 1
    games.occupants[b, cell] = i + 1


def regrow_apples(
    b: int, lane: int, step_hash: StepHash, player_stats: Float32Array, games: Games, tables: RuleTables
) -> int:
    """Let apples of Harvest regrow; return the number that grew.

    The probability for an empty site depends on the number of apples nearby two steps before. A player on the site eats
    the apple in the same step.
    """
    n_sites = games.apple_sites.shape[1]
    n_grown = 0
    for k in range(n_sites):
        site = games.apple_sites[b, k]
        if site.apple_state == 1:
            site.regrowth_class = -1
        else:
            regrowth_class = site.regrowth_class
            next_class = min(site.n_apples_nearby, 3)
            site.regrowth_class = next_class
            site.is_withered = 1 if next_class == 0 else 0
            if (
                regrowth_class > 0
                and sample_integer(step_hash, APPLE_GROWTH, k) < tables.growth_thresholds[regrowth_class]
            ):
                site.regrowth_class = -1
                site.apple_state = FRESH_APPLE
                games.scratch[lane, n_grown].grown_site = k
                n_grown += 1
    if n_grown > 0:
        # At most one player is on a cell, so each of these apples gives at most one reward.
        for i in range(games.players.shape[1]):
            player = games.players[b, i]
            k = tables.site_indices[player.cell]
            if player.alive == 1 and k < n_sites and games.apple_sites[b, k].apple_state == FRESH_APPLE:
                games.apple_sites[b, k].apple_state = 0
                player_stats[REWARD, b, i] += 1
    return n_grown


def remove_objects(b: int, lane: int, n_grown: int, n_beam_hits: int, games: Games, tables: RuleTables) -> None:
    """Remove eaten apples, cleaned dirt and zapped players; set the state of apples that grew in this step to 1."""
    constants, n_sites = tables.constants, games.apple_sites.shape[1]
    for k in range(n_grown):
        site_index = games.scratch[lane, k].grown_site
        if games.apple_sites[b, site_index].apple_state == FRESH_APPLE:
            games.apple_sites[b, site_index].apple_state = 1
            update_apple_counts(b, site_index, 1, games, tables)
    for i in range(games.players.shape[1]):
        player, scratch = games.players[b, i], games.scratch[lane, i]
        for site_index in (scratch.eaten_site, scratch.fresh_site):
            if site_index < n_sites and games.apple_sites[b, site_index].apple_state == 1:
                games.apple_sites[b, site_index].apple_state = 0
                update_apple_counts(b, site_index, -1, games, tables)
        if constants.zap_action >= 0 and scratch.is_hit == 1:
            games.occupants[b, player.cell] = 0
            player.cell = 0
            player.alive = 0
            player.steps_until_return = constants.removal_steps + 1
    for k in range(n_beam_hits):
        river_cell = games.river_cells[b, games.scratch[lane, k].cleaned_cell_index]
        if river_cell.is_dirty == 1:
            river_cell.is_dirty = 0
            games.world[b].n_dirty -= 1


def update_apple_counts(b: int, site_index: int, change: int, games: Games, tables: RuleTables) -> None:
    """Add `change` to the number of apples in the game and to `n_apples_nearby` of neighboring sites."""
    games.world[b].n_apples += change
    for k in range(1, 1 + tables.site_neighbors[site_index, 0]):
        games.apple_sites[b, tables.site_neighbors[site_index, k]].n_apples_nearby += change
