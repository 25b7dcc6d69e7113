"""The engine of Clean Up and Harvest: tables that the compiled rules read, and batches of games stepped by them."""

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
from llmrl.envs.native.cell_codes import assign_codes
from llmrl.envs.native.compilation import CpuGames, GpuGames, is_simulated
from llmrl.envs.native.game_arrays import ACTION, Batch, Settings, Tables, ViewTables, array
from llmrl.envs.native.hashed_random import threshold
from llmrl.envs.substrate.maps import GameMap
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, Rules, action_names, changes

VIEW = (11, 11)
"""Rows and columns of the cells that a player sees: 9 ahead, 1 behind, 5 to either side."""
STAY = 4
"""Direction of a player who does not move."""
MOVES: Mapping[str, int] = {"forward": 0, "step_right": 1, "backward": 2, "step_left": 3}
"""Directions relative to the heading."""
TURNS: Mapping[str, int] = {"turn_left": 3, "turn_right": 1}
REGROWTH = (0.0, 0.0025, 0.005, 0.025)
"""Harvest: probability per step that an empty site regrows, by the number of live apples (0, 1, 2, 3 or more) within a
distance of 2."""
SPILL_CHANCE, FIRST_SPILL = 0.5, 51
"""Clean Up: probability per step that one more cell gets dirty, and the first step in which this can happen."""
GROWTH, TOO_DIRTY = 0.05, 0.4
"""Clean Up: probability per step that an apple grows if the river is clean, and the share of dirt at which none
grow."""


def growth(n_cells: int) -> NDArray[np.float64]:
    """Return the probability a step that an apple grows in Clean Up, by number of dirty cells, [n_cells + 1].

    It falls in a straight line from `GROWTH` in a clean river to 0 at the share `TOO_DIRTY`, and is negative beyond.

    Args:
        n_cells: number of cells of the river that can be dirty, >= 0.
    """
    share = np.arange(n_cells + 1) / max(1, n_cells)
    return GROWTH * np.minimum((share - TOO_DIRTY) / -TOO_DIRTY, 1)


MAX_PLAYERS = 253


@dataclass(frozen=True)
class Setup:
    """A map, a number of players, and the rules (see `substrate_rules.CHANGES`)."""

    game_map: GameMap
    n_agents: int
    rules: Rules = "upstream"

    def has_rule(self, change: str) -> bool:
        """Return whether the rules include the change of that name."""
        return any(rule_change.name == change for rule_change in changes(self.game_map.substrate, self.rules))


class Engine:
    """An engine that plays batches of games. It holds only constants.

    Args:
        setup: map, number of players and rules.
        device: torch device of all games.

    Raises:
        ConfigError: more than 253 players, fewer spawn cells than players, rules with spawn cells that are not free on
            the map, or a GPU without the packages to play on it.
    """

    def __init__(self, setup: Setup, device: str = "cpu") -> None:
        game_map, n = setup.game_map, setup.n_agents
        if n > MAX_PLAYERS:
            raise ConfigError(f"env.n_agents={n} must be at most {MAX_PLAYERS}")
        self.setup, self.device, self.n_agents = setup, device, n
        self.harvest = game_map.substrate == "harvest"
        self.n_apples, self.n_dirt = len(game_map.apples), len(game_map.dirt)
        self.n_water = self.n_dirt + len(game_map.river)
        self.n_cells = game_map.n_cells
        self.actions = action_names(game_map.substrate, setup.rules)
        self.codes = assign_codes(game_map, n)
        self.uses_gpu = torch.device(device).type == "cuda" or is_simulated()
        self.run: Any = GpuGames() if self.uses_gpu else CpuGames()
        fixed_starts = _assigned_cells(setup) if setup.has_rule("own_spawn_cells") else None
        starts = game_map.starts(n) if fixed_starts is None else [fixed_starts[i : i + 1] for i in range(n)]
        groups, places = _group_starts(starts)
        spawn = game_map.spawn if fixed_starts is None else fixed_starts[:n]
        neighbors = neighbor_matrix(game_map, game_map.apples)
        self.near = torch.from_numpy(neighbors).to(device)
        moves = [MOVES.get(name, STAY) for name in self.actions]
        turns = [TURNS.get(name, 0) for name in self.actions]
        self.beams = beam_cells(game_map).reshape(-1, 9).astype(np.int32)
        # Clean Up does not use the neighbors of sites.
        neighbor_table = _neighbor_table(neighbors) if self.harvest else np.zeros((self.n_apples, 1))
        actions = torch.tensor(np.stack([moves, turns], 1), dtype=torch.int32, device=device)
        chances = REGROWTH if self.harvest else growth(self.n_dirt)
        table = functools.partial(int32_table, device=device)
        facts, is_on = SUBSTRATES[game_map.substrate], setup.has_rule
        settings = Settings(
            harvest=self.harvest,
            zap=self.actions.index("zap") if "zap" in self.actions else -1,
            clean=self.actions.index("clean") if "clean" in self.actions else -1,
            zap_cooldown=facts.zap_cooldown,
            clean_cooldown=facts.clean_cooldown,
            removal_steps=facts.removal_steps,
            fixed_order=is_on("fixed_move_order"),
            has_assigned_cells=is_on("own_spawn_cells"),
            facing_north=is_on("start_heading_north"),
            full_orchard=self.harvest or is_on("apples_at_start"),
            n_dirt=self.n_dirt,
            spill_threshold=threshold(SPILL_CHANCE),
            first_spill=FIRST_SPILL,
            n_grounds=self.codes.n_grounds,
            n_avatars=self.codes.n_avatars,
        )
        self.tables = Tables(
            steps=table(step_targets(game_map)),
            sites=table(cell_indices(game_map, game_map.apples)),
            spots=table(cell_indices(game_map, game_map.dirt)),
            beams=table(self.beams),
            near=table(neighbor_table),
            spawn=table(spawn),
            groups=table(groups),
            places=table(places),
            dirty=table(game_map.dirty),
            chances=table(np.array([max(0, threshold(chance)) for chance in chances])),
            actions=array(actions, ACTION),
            settings=settings,
        )
        self.empty_views = ViewTables(*(table(np.zeros(shape)) for shape in ((0,), (0,), (0, 0), (0, 0), (0, 0))))
        """Empty tables of views, and below empty outputs, for steps without observations."""
        self.empty_grids = table(np.zeros((0, 0, 0)))
        self.empty_vectors = array(torch.zeros((0, 0, 0), dtype=torch.float32, device=device))

    def batch(self, n: int, threads: int) -> Batch:
        """Return arrays for `n` games that at most `threads` threads play; on a GPU each game has its own thread."""
        return Batch(self.setup.game_map, self.n_agents, n, n if self.uses_gpu else threads, self.device)


def int32_table(values: NDArray[Any], device: str) -> Any:
    """Return a copy of an array for compiled functions, int32 on a torch device."""
    return array(torch.from_numpy(np.array(values, dtype=np.int32, order="C")).to(device))


def step_targets(game_map: GameMap) -> NDArray[np.int64]:
    """Return the neighbors of each cell: north, east, south, west, and the cell itself, [n_cells, 5].

    In place of a wall, it is the cell itself.
    """
    cells = np.arange(game_map.n_cells)
    table = np.tile(cells[:, None], (1, 5))
    free = np.flatnonzero(~game_map.wall)
    for direction, offset in enumerate(direction_offsets(game_map)):
        target = free + offset
        table[free, direction] = np.where(game_map.wall[target], free, target)
    return table


def direction_offsets(game_map: GameMap) -> tuple[int, int, int, int]:
    """Return what a step north, east, south and west adds to the number of a cell."""
    return -game_map.stride, 1, game_map.stride, -1


def beam_cells(game_map: GameMap) -> NDArray[np.int64]:
    """Return the cells that a beam passes from each cell with each heading, [n_cells, 4, 9].

    They are three lines of three cells: ahead, and beginning to the left and to the right of the player; 0 from the
    first wall of a line on.
    """
    table = np.zeros((game_map.n_cells, 4, 3, 3), np.int64)
    free = np.flatnonzero(~game_map.wall)
    for heading in range(4):
        forward, right = direction_offsets(game_map)[heading], direction_offsets(game_map)[(heading + 1) % 4]
        for line, start_offset in enumerate((forward, -right, right)):
            open_ = np.ones(len(free), bool)
            for i in range(3):
                cell = free + start_offset + i * forward
                open_ &= ~game_map.wall[cell]
                table[free, heading, line, i] = np.where(open_, cell, 0)
    return table.reshape(game_map.n_cells, 4, 9)


def view_offsets(game_map: GameMap) -> NDArray[np.int64]:
    """Return the differences between a player's cell and the cells in view, by heading, [4, 121]."""
    rows, columns = np.divmod(np.arange(VIEW[0] * VIEW[1]), VIEW[1])
    table = np.zeros((4, rows.size), np.int64)
    for heading in range(4):
        forward, right = direction_offsets(game_map)[heading], direction_offsets(game_map)[(heading + 1) % 4]
        table[heading] = (9 - rows) * forward + (columns - 5) * right
    return table


def cell_indices(game_map: GameMap, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each cell in `cells`, [n_cells]; `len(cells)` for cells that are not in it."""
    table = np.full(game_map.n_cells, len(cells), np.int64)
    table[cells] = np.arange(len(cells))
    return table


def neighbor_matrix(game_map: GameMap, cells: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return a matrix that is 1 where two different cells are at most 2 apart (Euclidean distance), [n, n]."""
    places = np.array([game_map.place(int(cell)) for cell in cells])
    distance = np.square(places[:, None] - places[None]).sum(-1)
    return np.asarray((distance <= 4) & (distance > 0), dtype=np.float32)


def _group_starts(starts: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tables `groups` and `places` that `rules.start_game` reads: players who share start cells."""
    groups: list[tuple[int, int, int]] = []
    places: list[int] = []
    for _, players in itertools.groupby(starts, key=id):
        cells, *others = players
        groups.append((len(places), len(cells), 1 + len(others)))
        places += cells.tolist()
    return np.array(groups), np.array(places)


def _neighbor_table(neighbors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the number of neighbors of each site, followed by their indices, [A, 1 + maximum number]."""
    counts = neighbors.sum(1).astype(np.int64)
    table = np.zeros((len(neighbors), 1 + int(counts.max(initial=0))), np.int64)
    table[:, 0] = counts
    for site, row in enumerate(neighbors):
        table[site, 1 : 1 + counts[site]] = np.flatnonzero(row)
    return table


def _assigned_cells(setup: Setup) -> NDArray[np.int64]:
    """Return the start cell of each player, under rules that assign one."""
    game_map = setup.game_map
    places = SUBSTRATES[game_map.substrate].spawn_cells
    positions = [(x, y) for x, y in places if x < game_map.width and y < game_map.height]
    cells = np.array([game_map.cell(x, y) for x, y in positions], dtype=np.int64)
    if len(cells) < setup.n_agents or game_map.wall[cells[: setup.n_agents]].any():
        raise ConfigError(
            f"env.rules={setup.rules} assigns a cell to each of {min(setup.n_agents, len(places))} players, and not "
            f"all of the cells (column, row) {list(places[: setup.n_agents])} are free on this map; use "
            f"env.rules=upstream, or env.map=auto with at most {len(places)} players"
        )
    return cells
