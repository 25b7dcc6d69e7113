"""Engine of Clean Up and Harvest for one map and number of players, with the tables that the compiled rules read."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.envs.native.cell_codes import assign_cell_codes
from llmrl.envs.native.compilation import CpuLoop, GpuLoop, is_simulated
from llmrl.envs.native.game_arrays import ACTION_DTYPE, GameBatch, RuleConstants, RuleTables, ViewTables, to_loop_array
from llmrl.envs.native.hashed_random import compute_probability_threshold
from llmrl.envs.native.rules import NO_MOVE
from llmrl.envs.substrate.maps import GameMap
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, Rules, find_rule_changes, list_action_names

VIEW_SHAPE = (11, 11)
"""Number of rows and columns that a player sees: 9 cells ahead, 1 behind, 5 to either side."""
MOVE_DIRECTIONS: Mapping[str, int] = {"forward": 0, "step_right": 1, "backward": 2, "step_left": 3}
"""Action -> direction of the move relative to the heading, in quarter turns to the right."""
QUARTER_TURNS: Mapping[str, int] = {"turn_left": 3, "turn_right": 1}
"""Action -> number of quarter turns to the right."""
# The following numbers are those of Melting Pot.
REGROWTH_PROBABILITIES = (0.0, 0.0025, 0.005, 0.025)
"""Harvest: probability per step that an apple regrows, by the number of apples (0, 1, 2, 3 or more) within a distance
of 2."""
SPILL_PROBABILITY, FIRST_SPILL_STEP = 0.5, 51
"""Clean Up: probability per step that one more cell gets dirty, and the first step in which this can happen."""
MAX_GROWTH_PROBABILITY, MAX_DIRTY_FRACTION = 0.05, 0.4
"""Clean Up: probability per step and site that an apple grows beside a clean river, and fraction of dirty cells at and
above which no apples grow."""


def compute_growth_probabilities(n_cells: int) -> NDArray[np.float64]:
    """Return the probability per step and site that an apple grows, by number of dirty cells, [n_cells + 1].

    It falls linearly from `MAX_GROWTH_PROBABILITY` without dirt to 0 at the fraction `MAX_DIRTY_FRACTION` of dirty
    cells. Above this fraction, values are negative and mean 0.

    Args:
        n_cells: number of cells of the river that can be dirty, >= 0.
    """
    dirty_fraction = np.arange(n_cells + 1) / max(1, n_cells)
    return MAX_GROWTH_PROBABILITY * np.minimum((dirty_fraction - MAX_DIRTY_FRACTION) / -MAX_DIRTY_FRACTION, 1)


MAX_PLAYERS = 253
"""Maximum number of players, so that their codes fit into one byte of the channel `grid`."""


@dataclass(frozen=True)
class GameSetup:
    """Map, number of players, and rules (see `substrate_rules.RULE_CHANGES`) of a batch of games."""

    game_map: GameMap
    n_agents: int
    rules: Rules = "upstream"

    def has_rule_change(self, name: str) -> bool:
        """Return whether the rules include the rule change `name`."""
        return any(rule_change.name == name for rule_change in find_rule_changes(self.game_map.substrate, self.rules))


class Engine:
    """Engine that advances batches of games. It stores only constants; a `GameBatch` contains the state of games.

    Args:
        setup: map, number of players and rules.
        device: torch device of all games.

    Raises:
        ConfigError: there are more than 253 players or fewer spawn cells than players, an assigned spawn cell is not
            free on the map, or packages for the GPU are missing.
    """

    def __init__(self, setup: GameSetup, device: str = "cpu") -> None:
        game_map, n_agents = setup.game_map, setup.n_agents
        if n_agents > MAX_PLAYERS:
            raise ConfigError(f"env.n_agents={n_agents} must be at most {MAX_PLAYERS}")
        self.setup, self.device, self.n_agents = setup, device, n_agents
        self.is_harvest = game_map.substrate == "harvest"
        self.n_apple_sites, self.n_dirt_cells = len(game_map.apple_cells), len(game_map.dirt_cells)
        self.n_river_cells = self.n_dirt_cells + len(game_map.clean_river_cells)
        self.n_cells = game_map.n_cells
        self.action_names = list_action_names(game_map.substrate, setup.rules)
        self.cell_codes = assign_cell_codes(game_map, n_agents)
        self.uses_gpu = torch.device(device).type == "cuda" or is_simulated()
        self.game_loop: Any = GpuLoop() if self.uses_gpu else CpuLoop()
        assigned_cells = _find_assigned_cells(setup) if setup.has_rule_change("own_spawn_cells") else None
        spawn_cells = game_map.spawn_cells if assigned_cells is None else assigned_cells[:n_agents]
        cells_by_player = game_map.list_start_cells(n_agents) if assigned_cells is None else [*spawn_cells[:, None]]
        start_groups, start_cells = _group_start_cells(cells_by_player)
        site_adjacency = build_adjacency_matrix(game_map, game_map.apple_cells)
        self.site_adjacency = torch.from_numpy(site_adjacency).to(device)
        move_directions = [MOVE_DIRECTIONS.get(name, NO_MOVE) for name in self.action_names]
        quarter_turns = [QUARTER_TURNS.get(name, 0) for name in self.action_names]
        self.beam_cells_by_pose = build_beam_cells(game_map).reshape(-1, 9).astype(np.int32)
        # Clean Up does not use the neighbors of sites.
        neighbor_table = _build_neighbor_table(site_adjacency) if self.is_harvest else np.zeros((self.n_apple_sites, 1))
        actions = torch.tensor(np.stack([move_directions, quarter_turns], 1), dtype=torch.int32, device=device)
        probabilities = REGROWTH_PROBABILITIES if self.is_harvest else compute_growth_probabilities(self.n_dirt_cells)
        build_table = functools.partial(build_int32_table, device=device)
        substrate, has_rule_change = SUBSTRATES[game_map.substrate], setup.has_rule_change
        constants = RuleConstants(
            is_harvest=self.is_harvest,
            zap_action=self.action_names.index("zap") if "zap" in self.action_names else -1,
            clean_action=self.action_names.index("clean") if "clean" in self.action_names else -1,
            zap_cooldown=substrate.zap_cooldown,
            clean_cooldown=substrate.clean_cooldown,
            removal_steps=substrate.removal_steps,
            has_fixed_move_order=has_rule_change("fixed_move_order"),
            has_assigned_cells=has_rule_change("own_spawn_cells"),
            starts_facing_north=has_rule_change("start_heading_north"),
            starts_with_apples=self.is_harvest or has_rule_change("apples_at_start"),
            n_dirt_cells=self.n_dirt_cells,
            spill_threshold=compute_probability_threshold(SPILL_PROBABILITY),
            first_spill_step=FIRST_SPILL_STEP,
            n_ground_codes=self.cell_codes.n_grounds,
            n_avatar_codes=self.cell_codes.n_avatar_codes,
        )
        self.tables = RuleTables(
            step_targets=build_table(build_step_targets(game_map)),
            site_indices=build_table(build_cell_indices(game_map, game_map.apple_cells)),
            dirt_indices=build_table(build_cell_indices(game_map, game_map.dirt_cells)),
            beam_cells=build_table(self.beam_cells_by_pose),
            site_neighbors=build_table(neighbor_table),
            spawn_cells=build_table(spawn_cells),
            start_groups=build_table(start_groups),
            start_cells=build_table(start_cells),
            initial_dirt=build_table(game_map.is_dirty),
            growth_thresholds=build_table(
                np.array([max(0, compute_probability_threshold(probability)) for probability in probabilities])
            ),
            actions=to_loop_array(actions, ACTION_DTYPE),
            constants=constants,
        )
        self.empty_views = ViewTables(*(build_table(np.zeros(shape)) for shape in ((0,), (0,), (0, 0), (0, 0), (0, 0))))
        """Empty view tables for steps without views of players; the next two attributes are empty outputs."""
        self.empty_grids = build_table(np.zeros((0, 0, 0)))
        self.empty_vectors = to_loop_array(torch.zeros((0, 0, 0), dtype=torch.float32, device=device))

    def allocate_batch(self, n_games: int, max_threads: int) -> GameBatch:
        """Return a batch of `n_games` games, which at most `max_threads` threads advance on a CPU."""
        n_lanes = n_games if self.uses_gpu else max_threads
        return GameBatch(self.setup.game_map, self.n_agents, n_games, n_lanes, self.device)


def build_int32_table(values: NDArray[Any], device: str) -> Any:
    """Return a copy of an array as int32 on a torch device, for compiled functions."""
    return to_loop_array(torch.from_numpy(np.array(values, dtype=np.int32, order="C")).to(device))


def build_step_targets(game_map: GameMap) -> NDArray[np.int64]:
    """Return where a player on each cell is after a step north, east, south or west, and without one, [n_cells, 5]."""
    table = np.tile(np.arange(game_map.n_cells)[:, None], (1, 5))
    floor_cells = np.flatnonzero(~game_map.is_wall)
    for direction, offset in enumerate(list_direction_offsets(game_map)):
        target = floor_cells + offset
        table[floor_cells, direction] = np.where(game_map.is_wall[target], floor_cells, target)
    return table


def list_direction_offsets(game_map: GameMap) -> tuple[int, int, int, int]:
    """Return the changes of the cell index by a step north, east, south and west."""
    return -game_map.stride, 1, game_map.stride, -1


def build_beam_cells(game_map: GameMap) -> NDArray[np.int64]:
    """Return the cells that a beam passes from each cell with each heading, [n_cells, 4, 9].

    A beam has three lines of three cells: from the cell ahead, and from the cells to the left and to the right of the
    player. The first wall of a line and all cells behind it are replaced by 0.
    """
    table = np.zeros((game_map.n_cells, 4, 3, 3), np.int64)
    floor_cells = np.flatnonzero(~game_map.is_wall)
    for heading in range(4):
        forward, right = list_direction_offsets(game_map)[heading], list_direction_offsets(game_map)[(heading + 1) % 4]
        for line, first_offset in enumerate((forward, -right, right)):
            is_open = np.ones(len(floor_cells), bool)
            for i in range(3):
                cell = floor_cells + first_offset + i * forward
                is_open &= ~game_map.is_wall[cell]
                table[floor_cells, heading, line, i] = np.where(is_open, cell, 0)
    return table.reshape(game_map.n_cells, 4, 9)


def build_view_offsets(game_map: GameMap) -> NDArray[np.int64]:
    """Return the differences between a player's cell and the cells in view, by heading, [4, 121]."""
    rows, columns = np.divmod(np.arange(VIEW_SHAPE[0] * VIEW_SHAPE[1]), VIEW_SHAPE[1])
    table = np.zeros((4, rows.size), np.int64)
    for heading in range(4):
        forward, right = list_direction_offsets(game_map)[heading], list_direction_offsets(game_map)[(heading + 1) % 4]
        table[heading] = (9 - rows) * forward + (columns - 5) * right
    return table


def build_cell_indices(game_map: GameMap, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each cell in `cells`, [n_cells]; `len(cells)` for cells that are not in it."""
    table = np.full(game_map.n_cells, len(cells), np.int64)
    table[cells] = np.arange(len(cells))
    return table


def build_adjacency_matrix(game_map: GameMap, cells: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return a matrix [n, n] that is 1 for different cells with a Euclidean distance of at most 2, else 0."""
    positions = np.array([game_map.find_position(int(cell)) for cell in cells])
    squared_distance = np.square(positions[:, None] - positions[None]).sum(-1)
    return np.asarray((squared_distance <= 4) & (squared_distance > 0), dtype=np.float32)


def _group_start_cells(cells_by_player: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return `start_groups` and `start_cells` of `RuleTables`, given the start cells of each player.

    Consecutive players with the same array object are a group.
    """
    groups: list[tuple[int, int, int]] = []
    start_cells: list[int] = []
    for _, cells_of_group in itertools.groupby(cells_by_player, key=id):
        cells, *other_cells = cells_of_group
        groups.append((len(start_cells), len(cells), 1 + len(other_cells)))
        start_cells += cells.tolist()
    return np.array(groups), np.array(start_cells)


def _build_neighbor_table(site_adjacency: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the number of neighbors of each site, followed by their indices, [n_sites, 1 + maximum number]."""
    n_neighbors = site_adjacency.sum(1).astype(np.int64)
    table = np.zeros((len(site_adjacency), 1 + int(n_neighbors.max(initial=0))), np.int64)
    table[:, 0] = n_neighbors
    for site, row in enumerate(site_adjacency):
        table[site, 1 : 1 + n_neighbors[site]] = np.flatnonzero(row)
    return table


def _find_assigned_cells(setup: GameSetup) -> NDArray[np.int64]:
    """Return the spawn cells that the rules assign, one for each player and perhaps more.

    Raises:
        ConfigError: not all of the players' cells are free on the map.
    """
    game_map = setup.game_map
    spawn_positions = SUBSTRATES[game_map.substrate].spawn_cells
    positions_on_map = [(x, y) for x, y in spawn_positions if x < game_map.width and y < game_map.height]
    cells = np.array([game_map.find_cell(x, y) for x, y in positions_on_map], dtype=np.int64)
    n_assigned = min(setup.n_agents, len(spawn_positions))
    if len(cells) < setup.n_agents or game_map.is_wall[cells[: setup.n_agents]].any():
        raise ConfigError(
            f"env.rules={setup.rules} assigns a spawn cell to each of {n_assigned} players, "
            f"and not all of the cells (column, row) {list(spawn_positions[: setup.n_agents])} are free on this map; "
            f"use env.rules=upstream, or env.map=auto with at most {len(spawn_positions)} players"
        )
    return cells
