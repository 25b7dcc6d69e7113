"""The engine of Clean Up and Harvest: tables that the compiled rules read, and batches of games stepped by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.envs.native import map_geometry
from llmrl.envs.native.cell_codes import assign_codes
from llmrl.envs.native.compilation import CpuGames, simulated
from llmrl.envs.native.game_arrays import ACTION, Batch, Settings, Tables, ViewTables, array
from llmrl.envs.native.hashed_random import threshold
from llmrl.envs.substrate.maps import GameMap
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, Rules, action_names, changes

REGROWTH = (0.0, 0.0025, 0.005, 0.025)
"""Harvest: probability per step that an empty site regrows, by the number of live apples (0, 1, 2, 3 or more) within a
distance of 2."""
SPILL_CHANCE_AND_START = (0.5, 51)
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
        self.on_gpu = torch.device(device).type == "cuda" or simulated()
        if self.on_gpu:
            from llmrl.envs.native.cuda_kernel import GpuGames

            self.run: Any = GpuGames()
        else:
            self.run = CpuGames()
        fixed_starts = _assigned_cells(setup) if setup.has_rule("own_spawn_cells") else None
        starts = game_map.starts(n) if fixed_starts is None else [fixed_starts[i : i + 1] for i in range(n)]
        groups, places = _group_starts(starts)
        spawn = game_map.spawn if fixed_starts is None else fixed_starts[:n]
        neighbors = map_geometry.neighbors(game_map, game_map.apples)
        self.near = map_geometry.tensor(neighbors, device)
        moves = [map_geometry.MOVES.get(name, map_geometry.STAY) for name in self.actions]
        turns = [map_geometry.TURNS.get(name, 0) for name in self.actions]
        self.beams = map_geometry.beams(game_map).reshape(-1, 9).astype(np.int32)
        # Clean Up does not use the neighbors of sites.
        neighbor_table = _neighbor_table(neighbors) if self.harvest else np.zeros((self.n_apples, 1))
        actions = map_geometry.tensor(np.stack([moves, turns], 1).astype(np.int32), device)
        self.tables = Tables(
            steps=self.table(map_geometry.steps(game_map)),
            sites=self.table(map_geometry.slots(game_map, game_map.apples)),
            spots=self.table(map_geometry.slots(game_map, game_map.dirt)),
            beams=self.table(self.beams),
            near=self.table(neighbor_table),
            spawn=self.table(spawn),
            groups=self.table(groups),
            places=self.table(places),
            dirty=self.table(game_map.dirty),
            chances=self.table(self._growth_thresholds()),
            actions=array(actions, ACTION),
            settings=self._settings(),
        )
        self.no_views = ViewTables(*(self.table(np.zeros(shape)) for shape in ((0,), (0,), (0, 0), (0, 0), (0, 0))))
        """Empty tables of views, and below empty outputs, for steps without observations."""
        self.no_grids = self.table(np.zeros((0, 0, 0)))
        self.no_vectors = array(torch.zeros((0, 0, 0), dtype=torch.float32, device=device))

    def _settings(self) -> Settings:
        """Return the numbers of the rules."""
        facts, is_on = SUBSTRATES[self.setup.game_map.substrate], self.setup.has_rule
        spill_chance, spill_start = SPILL_CHANCE_AND_START
        return Settings(
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
            spill_threshold=threshold(spill_chance),
            first_spill=spill_start,
            n_grounds=self.codes.n_grounds,
            n_avatars=self.codes.n_avatars,
        )

    def batch(self, n: int, threads: int) -> Batch:
        """Return arrays for `n` games that at most `threads` threads play; on a GPU each game has its own thread."""
        return Batch(self.setup.game_map, self.n_agents, n, n if self.on_gpu else threads, self.device)

    def _growth_thresholds(self) -> NDArray[np.int64]:
        """Return thresholds of apple growth, by number of dirty cells (Clean Up) or of nearby apples (Harvest)."""
        chances = REGROWTH if self.harvest else growth(self.n_dirt)
        return np.array([max(0, threshold(chance)) for chance in chances])

    def table(self, values: NDArray[Any]) -> Any:
        """Return a copy of an array for compiled functions, int32 on the device."""
        return array(map_geometry.tensor(values.astype(np.int32), self.device))


def _group_starts(starts: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tables `groups` and `places` that `rules.start_game` reads: players who share start cells."""
    groups: list[list[int]] = []
    places: list[int] = []
    position = 0
    while position < len(starts):
        cells = starts[position]
        share = sum(start is cells for start in starts[position:])
        groups.append([len(places), len(cells), share])
        places += cells.tolist()
        position += share
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
