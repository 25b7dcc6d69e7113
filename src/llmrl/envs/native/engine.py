"""The engine of Clean Up and Harvest: tables that the compiled rules read, and batches of games stepped by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.envs.melting_pot.substrate_rules import SUBSTRATES, Rules, action_names, changes
from llmrl.envs.native import game_loop, growth_and_dirt, map_geometry, rules, view_loops
from llmrl.envs.native.batch import Batch, array
from llmrl.envs.native.cell_codes import number
from llmrl.envs.native.compilation import CpuGames, compiled, simulated
from llmrl.envs.native.hashed_random import BITS, PURPOSES, HashedRandom, threshold
from llmrl.envs.native.maps import GameMap
from llmrl.envs.native.state import GameEvents, State

MOST_PLAYERS = 253


@dataclass(frozen=True)
class Setup:
    """A map, a number of players, and the rules (see `substrate_rules.CHANGES`)."""

    game_map: GameMap
    n_agents: int
    rules: Rules = "upstream"

    def switched(self, change: str) -> bool:
        """Return whether the rules include the change of that name."""
        return any(each.name == change for each in changes(self.game_map.substrate, self.rules))


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
        if n > MOST_PLAYERS:
            raise ConfigError(f"env.n_agents={n}: players are numbered with 8 bits; use at most {MOST_PLAYERS}")
        self.setup, self.device, self.n_agents = setup, device, n
        self.facts = SUBSTRATES[game_map.substrate]
        self.harvest = game_map.substrate == "harvest"
        self.n_apples, self.n_dirt = len(game_map.apples), len(game_map.dirt)
        self.n_water = self.n_dirt + len(game_map.river)
        self.n_cells = game_map.n_cells
        self.actions = action_names(game_map.substrate, setup.rules)
        self.codes = number(game_map, n)
        self.on_gpu = torch.device(device).type == "cuda" or simulated()
        if self.on_gpu:
            from llmrl.envs.native.cuda_kernel import GpuGames

            self.run: Any = GpuGames()
        else:
            self.run = CpuGames()
        own = _own_cells(setup) if setup.switched("own_spawn_cells") else None
        starts = game_map.starts(n) if own is None else [own[i : i + 1] for i in range(n)]
        groups, places = _shared_starts(starts)
        spawn = game_map.spawn if own is None else own[:n]
        near = map_geometry.neighbours(game_map, game_map.apples)
        self.near = self._tensor(near)
        land = np.zeros((self.n_cells, 7), np.int32)
        land[:, : rules.SITE] = map_geometry.steps(game_map)
        land[:, rules.SITE] = map_geometry.slots(game_map, game_map.apples)
        land[:, rules.SPOT] = map_geometry.slots(game_map, game_map.dirt)
        moves = [map_geometry.MOVES.get(name, map_geometry.STAY) for name in self.actions]
        turns = [map_geometry.TURNS.get(name, 0) for name in self.actions]
        self.beams = map_geometry.beams(game_map).reshape(-1, 9).astype(np.int32)
        parts = [
            land,
            self.beams,
            _listed(near) if self.harvest else np.zeros((self.n_apples, 1)),  # Clean Up has no effect of neighbours
            spawn,
            groups,
            places,
            game_map.dirty,
            self._growth(),
            np.stack([moves, turns], 1),
        ]
        self._tables = tuple(array(self._tensor(part.astype(np.int32))) for part in parts)
        self._n_spawn = len(spawn)
        shapes = ((0,), (0,), (0, 0), (0, 0), (0, 0))
        self.unseen = tuple(torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes)
        """Empty tables of `view_loops`, for steps without observations; below, the empty outputs of such steps."""
        self.unshown = array(torch.zeros((0, 0, 0), dtype=torch.int32, device=device))
        self.untold = array(torch.zeros((0, 0, 0), dtype=torch.float32, device=device))
        self.uncounted = array(torch.zeros((0, 0), dtype=torch.float32, device=device))

    def outside(self, action: NDArray[np.int64], n_actions: int) -> bool:
        """Return whether any of `action`, a NumPy array, is not in 0 .. n_actions - 1."""
        return bool(compiled(None).outside(action, n_actions))

    def numbers(self, water: bool) -> NDArray[np.int32]:
        """Return the array that `rules` and `view_loops` call `facts`; `water`: whether the water is animated."""
        facts, codes = self.facts, self.codes
        chance, first = growth_and_dirt.SPILL
        named = {
            rules.HARVEST: self.harvest,
            rules.ZAP: self.actions.index("zap") if "zap" in self.actions else -1,
            rules.CLEAN: self.actions.index("clean") if "clean" in self.actions else -1,
            rules.ZAP_COOLDOWN: facts.zap_cooldown,
            rules.CLEAN_COOLDOWN: facts.clean_cooldown,
            rules.AWAY: facts.away,
            rules.FIXED_ORDER: self.setup.switched("fixed_move_order"),
            rules.OWN_CELLS: self.setup.switched("own_spawn_cells"),
            rules.NORTH: self.setup.switched("start_heading_north"),
            rules.FULL: self.harvest or self.setup.switched("apples_at_start"),
            rules.N_DIRT: self.n_dirt,
            rules.SPILLS: threshold(chance),
            rules.FIRST_SPILL: first,
            view_loops.GROUNDS: codes.n_grounds,
            view_loops.AVATARS: codes.n_avatars,
            view_loops.CODES: codes.n_codes,
            view_loops.WATER_STIRS: water,
        }
        return np.array([named[k] for k in range(len(named))], dtype=np.int32)

    def batch(self, n: int, threads: int) -> Batch:
        """Return arrays for `n` games that at most `threads` threads play; on a GPU each game has its own thread."""
        sizes = (self.n_agents, self.n_apples, self.n_dirt, self.n_water, self.n_cells)
        return Batch(n, *sizes, n if self.on_gpu else threads, self.device)

    def start(self, draws: HashedRandom) -> State:
        """Return the state of new episodes, one game for each key of `draws`."""
        batch = self.batch(len(draws.keys), 1)
        action = torch.zeros(batch.players.shape[:2], dtype=torch.int64, device=self.device)
        self._play(batch, game_loop.START, action, draws)
        return batch.state(self.harvest)

    def step(self, state: State, action: torch.Tensor, draws: HashedRandom) -> tuple[State, GameEvents]:
        """Return the state after one step of all games, with its events; `action` is [B, N] int64.

        `state` is not changed. This serves to inspect the rules; `NativeEnv` changes a batch in place (`fixed`)."""
        batch = self.batch(len(state.t), 1)
        batch.load(state, self.near)
        reward = self._play(batch, game_loop.STEP, action, draws)
        return batch.state(self.harvest), batch.events(reward, "zap" in self.actions)

    def fixed(self, batch: Batch, water: bool, tables: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return the last arguments of `run`, which are the same at every step: arrays of the batch, rules and views.

        `water`: whether the water is animated. `tables`: result of `ObservationBuilder.tables`."""
        facts = self._tensor(self.numbers(water))
        return (*map(array, batch.parts), *self._tables, array(facts), *map(array, tables))

    def _play(self, batch: Batch, what: int, action: torch.Tensor, draws: HashedRandom) -> torch.Tensor:
        """Do `what` (`game_loop.START`, `game_loop.STEP`) with all games; return rewards [B, N]."""
        n, players = action.shape
        run, source = self.run, draws.keys
        if type(draws).uniform is not HashedRandom.uniform:
            run, source = CpuGames((_told_begin, _told_draw)), self._told(draws, batch.world[:, rules.T] + 1)
        todo = torch.full((n,), what, dtype=torch.uint8, device=self.device)
        pay = torch.zeros((3, n, players), dtype=torch.float32, device=self.device)
        given = map(array, (todo, action.contiguous(), source.contiguous(), pay))
        unseen = (self.uncounted, self.unshown, self.unshown, self.untold)
        run(1, n, (*given, *unseen, *self.fixed(batch, False, self.unseen)))
        return pay[0]

    def _told(self, draws: HashedRandom, t: torch.Tensor) -> torch.Tensor:
        """Return the numbers of an overridden `uniform` as a table [B, ...] for `_told_draw`.

        Its first columns are, for each purpose, the column where the purpose's numbers begin."""
        wanted = {"grow": self.n_apples, "return": self._n_spawn}
        if not self.setup.switched("fixed_move_order"):
            wanted["order"] = self.n_agents
        if not self.harvest:
            wanted["spill"] = 2
        wanted["return_heading"] = self.n_agents
        if "zap" not in self.actions or self.setup.switched("own_spawn_cells"):
            del wanted["return"]
        columns, said = len(PURPOSES), []
        where = torch.zeros((len(t), columns), dtype=torch.int64)
        for purpose, n in wanted.items():
            where[:, PURPOSES.index(purpose)] = columns
            said.append((draws.uniform(purpose, t, n).to(torch.float64) * 2**BITS).to(torch.int64))
            columns += n
        return torch.cat([where, *said], 1)

    def _growth(self) -> NDArray[np.int64]:
        """Return thresholds of apple growth, by number of dirty cells (Clean Up) or of nearby apples (Harvest)."""
        chances = growth_and_dirt.REGROWTH if self.harvest else growth_and_dirt.growth(self.n_dirt)
        return np.array([max(0, threshold(each)) for each in chances])

    def _tensor(self, table: NDArray[np.generic]) -> torch.Tensor:
        return map_geometry.tensor(table, self.device)


def _told_begin(source: Any, b: int, t: int) -> Any:
    """Return a game's row of the table of `Engine._told`; replaces `hashed_random.begin`."""
    return source[b]


def _told_draw(words: Any, purpose: int, index: int) -> Any:
    """Return a number from that row; replaces `hashed_random.draw`."""
    return words[words[purpose] + index]


def _shared_starts(starts: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return players who share start cells as groups and places, the tables that `rules.start_game` reads."""
    groups: list[list[int]] = []
    places: list[int] = []
    taken = 0
    while taken < len(starts):
        cells = starts[taken]
        share = sum(each is cells for each in starts[taken:])
        groups.append([len(places), len(cells), share])
        places += cells.tolist()
        taken += share
    return np.array(groups), np.array(places)


def _listed(near: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each site's number of neighbours, then their indices, [A, 1 + most]."""
    counts = near.sum(1).astype(np.int64)
    table = np.zeros((len(near), 1 + int(counts.max(initial=0))), np.int64)
    table[:, 0] = counts
    for site, row in enumerate(near):
        table[site, 1 : 1 + counts[site]] = np.flatnonzero(row)
    return table


def _own_cells(setup: Setup) -> NDArray[np.int64]:
    """Return each player's own start cell under rules that define one."""
    game_map = setup.game_map
    places = SUBSTRATES[game_map.substrate].spawn_cells
    inside = [(x, y) for x, y in places if x < game_map.width and y < game_map.height]
    cells = np.array([game_map.cell(x, y) for x, y in inside], dtype=np.int64)
    if len(cells) < setup.n_agents or game_map.wall[cells[: setup.n_agents]].any():
        raise ConfigError(
            f"env.rules={setup.rules} gives {min(setup.n_agents, len(places))} players cells of their own, at (column, "
            f"row) {list(places[: setup.n_agents])}, and not all of them are free on this map; use env.rules=upstream "
            f"with it, or at most {len(places)} players on env.map=auto"
        )
    return cells
