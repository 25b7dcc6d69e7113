"""What is played, as the tables that the rules read; and whole batches of games stepped by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.envs.melting_pot.rules import SUBSTRATES, Rules, action_names, changes
from llmrl.envs.native import games, looking, rules, tables
from llmrl.envs.native.batch import Batch, array
from llmrl.envs.native.codes import number
from llmrl.envs.native.draws import BITS, PURPOSES, Draws, threshold
from llmrl.envs.native.maps import GameMap
from llmrl.envs.native.state import Events, State
from llmrl.envs.native.tree import Shared, compiled, simulated

MOST_PLAYERS = 253


@dataclass(frozen=True)
class Setup:
    """What is played: a map, how many players, and whose rules (see `rules.CHANGES`)."""

    game_map: GameMap
    n_agents: int
    rules: Rules = "upstream"

    def switched(self, change: str) -> bool:
        """Whether the rules make a change."""
        return any(each.name == change for each in changes(self.game_map.substrate, self.rules))


class Engine:
    """Plays batches of games; holds nothing but constants.

    Args:
        setup: what is played.
        device: torch device of all games.

    Raises:
        ConfigError: fewer spawn cells than players, or rules with cells of their own that the map has walls on; a GPU,
            and what plays on it is not installed.
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
            from llmrl.envs.native.gpu import Launched

            self.run: Any = Launched()
        else:
            self.run = Shared()
        own = _own_cells(setup) if setup.switched("own_spawn_cells") else None
        starts = game_map.starts(n) if own is None else [own[i : i + 1] for i in range(n)]
        groups, places = _shared_starts(starts)
        spawn = game_map.spawn if own is None else own[:n]
        near = tables.neighbours(game_map, game_map.apples)
        self.near = self._tensor(near)
        land = np.zeros((self.n_cells, 7), np.int32)
        land[:, : rules.SITE] = tables.steps(game_map)
        land[:, rules.SITE] = tables.slots(game_map, game_map.apples)
        land[:, rules.SPOT] = tables.slots(game_map, game_map.dirt)
        moves = [tables.MOVES.get(name, tables.STAY) for name in self.actions]
        turns = [tables.TURNS.get(name, 0) for name in self.actions]
        self.beams = tables.beams(game_map).reshape(-1, 9).astype(np.int32)
        parts = [
            land,
            self.beams,
            _listed(near) if self.harvest else np.zeros((self.n_apples, 1)),  # only there they matter
            spawn,
            groups,
            places,
            game_map.dirty,
            self._chances(),
            np.stack([moves, turns], 1),
        ]
        self._tables = tuple(array(self._tensor(part.astype(np.int32))) for part in parts)
        self._n_spawn = len(spawn)
        shapes = ((0,), (0,), (0, 0), (0, 0), (0, 0))
        self.unseen = tuple(torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes)
        """Instead of the tables of `looking`, where nobody looks; and instead of what is written:"""
        self.unshown = array(torch.zeros((0, 0, 0), dtype=torch.int32, device=device))
        self.untold = array(torch.zeros((0, 0, 0), dtype=torch.float32, device=device))
        self.uncounted = array(torch.zeros((0, 0), dtype=torch.float32, device=device))

    def outside(self, action: NDArray[np.int64], n_actions: int) -> bool:
        """Whether any of `action` on the host is none of 0 to n_actions - 1."""
        return bool(compiled(None).outside(action, n_actions))

    def numbers(self, water: bool) -> NDArray[np.int32]:
        """What `rules` and `looking` call `facts`; `water`: whether its frames are shown."""
        facts, codes = self.facts, self.codes
        chance, first = tables.SPILL
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
            looking.GROUNDS: codes.n_grounds,
            looking.AVATARS: codes.n_avatars,
            looking.CODES: codes.n_codes,
            looking.WATER_STIRS: water,
        }
        return np.array([named[k] for k in range(len(named))], dtype=np.int32)

    def batch(self, n: int, threads: int) -> Batch:
        """Room for `n` games, played by at most so many `threads`; on a GPU each game has its own."""
        sizes = (self.n_agents, self.n_apples, self.n_dirt, self.n_water, self.n_cells)
        return Batch(n, *sizes, n if self.on_gpu else threads, self.device)

    def start(self, draws: Draws) -> State:
        """New episodes of all games that `draws` has keys of."""
        batch = self.batch(len(draws.keys), 1)
        action = torch.zeros(batch.players.shape[:2], dtype=torch.int64, device=self.device)
        self._play(batch, games.START, action, draws)
        return batch.state(self.harvest)

    def step(self, state: State, action: torch.Tensor, draws: Draws) -> tuple[State, Events]:
        """One step of all games; `action` [B, N] int64. The state given stays as it is: for looking into the rules;
        who plays on changes a batch in place (`fixed`)."""
        batch = self.batch(len(state.t), 1)
        batch.load(state, self.near)
        reward = self._play(batch, games.STEP, action, draws)
        return batch.state(self.harvest), batch.events(reward, "zap" in self.actions)

    def fixed(self, batch: Batch, water: bool, tables: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """What `run` takes last, the same at every step: the arrays of a batch, and of the rules; `tables`: those of
        `looking`, see `Observer`, and whether the water stirs."""
        facts = self._tensor(self.numbers(water))
        return (*map(array, batch.parts), *self._tables, array(facts), *map(array, tables))

    def _play(self, batch: Batch, what: int, action: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Rewards [B, N] of what is done with all games."""
        n, players = action.shape
        run, source = self.run, draws.keys
        if type(draws).uniform is not Draws.uniform:
            run, source = Shared((_told_begin, _told_draw)), self._told(draws, batch.world[:, rules.T] + 1)
        todo = torch.full((n,), what, dtype=torch.uint8, device=self.device)
        pay = torch.zeros((3, n, players), dtype=torch.float32, device=self.device)
        given = map(array, (todo, action.contiguous(), source.contiguous(), pay))
        unseen = (self.uncounted, self.unshown, self.unshown, self.untold)
        run(1, n, (*given, *unseen, *self.fixed(batch, False, self.unseen)))
        return pay[0]

    def _told(self, draws: Draws, t: torch.Tensor) -> torch.Tensor:
        """Numbers that somebody says, as a table of which the first columns say where those of a purpose begin."""
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

    def _chances(self) -> NDArray[np.int64]:
        """Thresholds of what grows: by dirty cells in Clean Up, by apples near in Harvest."""
        if self.harvest:
            return np.array([threshold(rate) for rate in tables.REGROWTH])
        share = np.arange(self.n_dirt + 1) / max(1, self.n_dirt)
        chance = tables.GROWTH * np.minimum((share - tables.TOO_DIRTY) / -tables.TOO_DIRTY, 1)
        return np.array([max(0, threshold(each)) for each in chance])

    def _tensor(self, table: NDArray[np.generic]) -> torch.Tensor:
        return tables.tensor(table, self.device)


def _told_begin(source: Any, b: int, t: int) -> Any:
    """Instead of `draws.begin`: the row of what is said of a game."""
    return source[b]


def _told_draw(words: Any, purpose: int, index: int) -> Any:
    """Instead of `draws.draw`."""
    return words[words[purpose] + index]


def _shared_starts(starts: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Players who share cells to begin on, as `rules.start_game` has them: groups and places."""
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
    """How many neighbours each site has, and which, [A, 1 + most]."""
    counts = near.sum(1).astype(np.int64)
    table = np.zeros((len(near), 1 + int(counts.max(initial=0))), np.int64)
    table[:, 0] = counts
    for site, row in enumerate(near):
        table[site, 1 : 1 + counts[site]] = np.flatnonzero(row)
    return table


def _own_cells(setup: Setup) -> NDArray[np.int64]:
    """Each player's own cell under rules that give them one."""
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
