"""The rules of Clean Up and Harvest, one step of a whole batch at a time, without a loop over games.

The order of what happens in a step is the engine's: everything that grows or spills reads the state before; then turns
and moves, one player after the other; beams, all of the same world; returns; and only then what was hit or eaten is
gone (docs/native_engine.md). Without `branches` no shape depends on what happens: a step is always the same sequence of
operations, and nobody waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.envs.melting_pot.rules import SUBSTRATES, Rules, action_names, changes
from llmrl.envs.native import beams, sites, tables
from llmrl.envs.native.beams import Beam
from llmrl.envs.native.draws import Draws
from llmrl.envs.native.maps import GameMap
from llmrl.envs.native.state import Events, State

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
    """Steps states; holds nothing but constants.

    Args:
        setup: what is played.
        device: torch device.
        branches: look who fires, who comes back and where anything can grow before working out what, which saves time
            on a processor; on a GPU it would make the host wait. The results are the same. None: on processors.

    Raises:
        ConfigError: fewer spawn cells than players, or rules with cells of their own that the map has walls on.
    """

    def __init__(self, setup: Setup, device: str = "cpu", branches: bool | None = None) -> None:
        game_map, n = setup.game_map, setup.n_agents
        if n > MOST_PLAYERS:
            raise ConfigError(f"env.n_agents={n}: players are numbered with 8 bits; use at most {MOST_PLAYERS}")
        self.setup, self.device, self.n_agents = setup, device, n
        self.branches = torch.device(device).type == "cpu" if branches is None else branches
        self.facts = SUBSTRATES[game_map.substrate]
        self.harvest = game_map.substrate == "harvest"
        self.n_apples, self.n_dirt = len(game_map.apples), len(game_map.dirt)
        self.n_water = self.n_dirt + len(game_map.river)
        self.n_cells = game_map.n_cells
        self.actions = action_names(game_map.substrate, setup.rules)
        own = _own_cells(setup) if setup.switched("own_spawn_cells") else None
        starts = game_map.starts(n) if own is None else [own[i : i + 1] for i in range(n)]
        moved: dict[int, torch.Tensor] = {}
        self._starts = [moved.setdefault(id(cells), self._tensor(cells)) for cells in starts]
        self._own = None if own is None else self._tensor(own[:n])
        self._spawn = self._tensor(game_map.spawn)
        self._north = setup.switched("start_heading_north")
        self._fixed_order = setup.switched("fixed_move_order")
        self._full_start = self.harvest or setup.switched("apples_at_start")
        self._dirty = self._tensor(game_map.dirty)

        moves = [tables.MOVES.get(name, tables.STAY) for name in self.actions]
        self._move_of = torch.tensor(moves, device=device)
        self._turn_of = torch.tensor([tables.TURNS.get(name, 0) for name in self.actions], device=device)
        self._zap = self.actions.index("zap") if "zap" in self.actions else None
        self._clean = self.actions.index("clean") if "clean" in self.actions else None
        self._steps = self._tensor(tables.steps(game_map)).reshape(-1)
        met = tables.beams(game_map).reshape(-1, 9)
        # Floor alone is numbered anew where players stand is looked up: the margin would be most of what is cleared.
        floor = np.flatnonzero(~game_map.wall)
        places = np.zeros(game_map.n_cells, np.int64)
        places[floor] = np.arange(1, len(floor) + 1)
        self._floor, self._n_floor = self._tensor(places), len(floor) + 1
        self._zap_beam = Beam(self._tensor(places[met]), self._n_floor, 0, self.branches)
        self._clean_beam = Beam(
            self._tensor(tables.slots(game_map, game_map.dirt)[met]), self.n_dirt, self.n_dirt, self.branches
        )
        self._spawn_floor = self._tensor(places[game_map.spawn])
        self._own_floor = None if own is None else self._tensor(places[own[:n]])
        self._site = self._tensor(tables.slots(game_map, game_map.apples))
        self._near = self._tensor(tables.neighbours(game_map, game_map.apples))
        # A table, because a division rounds differently on different devices.
        share = np.arange(self.n_dirt + 1) / max(1, self.n_dirt)
        chance = tables.GROWTH * np.minimum((share - tables.TOO_DIRTY) / -tables.TOO_DIRTY, 1)
        self._growth = self._tensor(chance.astype(np.float32))
        self._rates = torch.tensor((0.0, *tables.REGROWTH), device=device)
        # The smallest numbers that can count the river's cells: reading and writing them is what counting costs.
        self._count = torch.uint8 if self.n_dirt < 2**8 else torch.int32
        self._players = torch.arange(n, device=device)

    def start(self, draws: Draws) -> State:
        """New episodes of all games that `draws` has keys of."""
        games = draws.keys.shape[0]
        t = torch.zeros(games, dtype=torch.int32, device=self.device)
        n_places = len(self.setup.game_map.spawn) + len(self.setup.game_map.inside)
        pos = self._placed(draws.uniform("place", t, n_places))
        heading = torch.zeros_like(pos)
        if not self._north:
            heading = _quarters(draws.uniform("heading", t, self.n_agents))
        nobody = torch.zeros((games, self.n_agents), dtype=torch.int32, device=self.device)
        bare = torch.zeros((games, self.n_apples), dtype=torch.bool, device=self.device)
        group = torch.full((games, self.n_apples if self.harvest else 0), -1, dtype=torch.int8, device=self.device)
        return State(
            t=t,
            pos=pos,
            heading=heading,
            alive=nobody == 0,
            out_for=nobody,
            zap_wait=nobody,
            clean_wait=nobody if self.n_dirt else nobody[:, :0],
            apple=~bare if self._full_start else bare,
            dirt=self._dirty.expand(games, -1).clone(),
            phase=_quarters(draws.uniform("phase", t, self.n_water)).to(torch.uint8),
            group=group,
            dry=group > 0,
            cleaners=nobody > 0 if self.n_dirt else nobody[:, :0] > 0,
        )

    def step(self, state: State, action: torch.Tensor, draws: Draws) -> tuple[State, Events]:
        """One step of all games; `action` [B, N] int64. The state given stays as it is."""
        t = state.t + 1
        alive = state.alive
        dirt, grew = state.dirt, None
        if not self.harvest:
            grew = self._grown(state, draws, t)
            dirt = self._spilled(state, draws, t)

        # Moves, one player after the other.
        move = self._move_of[action]
        moving = (move != tables.STAY) & alive
        heading = (state.heading + self._turn_of[action] * alive) & 3
        pos = self._moved(state, torch.where(moving, (heading + move) & 3, tables.STAY), draws, t)

        # Apples: whoever issued a move eats where it ends up; what grows under a player is eaten at once.
        live = state.apple if grew is None else state.apple | grew
        site = self._site[pos]
        ate = moving & sites.at(live, site)
        eaten = sites.marked(ate, site, self.n_apples)
        reward = ate.to(torch.float32)
        if grew is not None:
            before = self._site[state.pos]
            ate = alive & sites.at(grew, before)
            eaten = eaten | sites.marked(ate, before, self.n_apples)
            reward = reward + ate

        # Beams meet the world after the moves; nothing is removed before all have been fired.
        place = pos * 4 + heading
        nothing = torch.zeros_like(action)
        occupied, killed = None, None
        zap_wait, zaps, zapped = state.zap_wait, nothing, None
        if self._zap is not None:
            fires, zap_wait = beams.triggered(action == self._zap, alive, zap_wait, self.facts.zap_cooldown)
            occupied = self._occupied(pos)
            zaps, zapped, struck, who = self._zap_beam.fire(fires, place, occupied)
            killed = self._victims(struck, who, len(pos))
        clean_wait, cleaned, cleaners, washed = state.clean_wait, nothing, state.cleaners, None
        others = nothing
        if self._clean is not None:
            others = cleaners.sum(-1, keepdim=True) - cleaners.to(torch.int64)
            fires, clean_wait = beams.triggered(action == self._clean, alive, clean_wait, self.facts.clean_cooldown)
            cleaned, washed, struck, _ = self._clean_beam.fire(fires, place, dirt)
            cleaners = cleaned > 0
            dirt = dirt & ~beams.marked(struck, len(pos), self.n_dirt)

        # Returns: after the beams, and while those who were hit are still there.
        out_for = (state.out_for - 1).clamp_min(0)
        now_alive = alive
        if killed is not None:
            assert occupied is not None
            returning = ~alive & (out_for == 0)
            pos, heading, back = self._returned(returning, pos, heading, occupied, draws, t)
            now_alive = (alive & ~killed) | back
            out_for = torch.where(killed, self.facts.away + 1, out_for)

        apple, group, dry = live & ~eaten, state.group, state.dry
        if self.harvest:
            sprouts = (state.group >= 0) & (draws.uniform("grow", t, self.n_apples) < self._rate(state.group))
            under = (alive | now_alive) & sites.at(sprouts, self._site[pos])
            reward = reward + under
            around = (state.apple.to(torch.float32) @ self._near).clamp_max_(3).to(torch.int8)
            group = torch.where(state.apple | sprouts, -1, around)
            dry = torch.where(state.apple, dry, around == 0)
            apple = apple | (sprouts & ~sites.marked(under, self._site[pos], self.n_apples))
        after = State(
            t=t,
            pos=pos if killed is None else torch.where(now_alive, pos, 0),
            heading=heading,
            alive=now_alive,
            out_for=out_for,
            zap_wait=zap_wait,
            clean_wait=clean_wait,
            apple=apple,
            dirt=dirt,
            phase=state.phase,
            group=group,
            dry=dry,
            cleaners=cleaners,
        )
        return after, Events(reward, cleaned, zaps, others, place, zapped, washed)

    def _grown(self, state: State, draws: Draws, t: torch.Tensor) -> torch.Tensor:
        """Clean Up: bare sites on which an apple grows, [B, A]; the faster the less dirt there was."""
        chance = self._growth[counted(state.dirt)[:, None]]
        if self.branches:
            games = (chance[:, 0] > 0).nonzero()[:, 0]
            if len(games) * 2 < len(chance):
                grown = torch.zeros_like(state.apple)
                lucky = draws.of(games).uniform("grow", t[games], self.n_apples) < chance[games]
                return grown.index_copy_(0, games, ~state.apple[games] & lucky)
        return ~state.apple & (draws.uniform("grow", t, self.n_apples) < chance)

    def _spilled(self, state: State, draws: Draws, t: torch.Tensor) -> torch.Tensor:
        """Clean Up: dirt [B, D] with one more cell, sometimes."""
        chance, first = tables.SPILL
        u = draws.uniform("spill", t, 2)
        clean = ~state.dirt
        rank = clean.view(torch.uint8).cumsum(-1, dtype=self._count)
        chosen = ((u[:, 1:] * rank[:, -1:]).to(torch.int32) + 1).to(self._count)
        spills = ((u[:, 0] < chance) & (t >= first))[:, None]
        return state.dirt | (clean & (rank == chosen) & spills)

    def _moved(self, state: State, direction: torch.Tensor, draws: Draws, t: torch.Tensor) -> torch.Tensor:
        """Cells [B, N] after the moves: in a random order, each enters its cell if nobody is there at its turn."""
        wanted = self._steps[state.pos * 5 + direction]
        pos = state.pos.clone()
        if self._fixed_order:
            order = [self._players[k : k + 1].expand(len(pos), 1) for k in reversed(range(self.n_agents))]
        else:
            order = list(torch.split(draws.uniform("order", t, self.n_agents).argsort(dim=-1, stable=True), 1, dim=1))
        for who in order:
            target = wanted.gather(1, who)
            # Who stays finds its own cell taken.
            taken = (pos == target).any(1, keepdim=True)
            pos.scatter_(1, who, torch.where(taken, pos.gather(1, who), target))
        return pos

    def _occupied(self, pos: torch.Tensor) -> torch.Tensor:
        """Who is on each cell of the floor, slot + 1, [B, n_floor] uint8."""
        occupied = torch.zeros((len(pos), self._n_floor), dtype=torch.uint8, device=self.device)
        slots = (self._players + 1).to(torch.uint8).expand(len(pos), -1)
        occupied.scatter_(1, self._floor[pos], slots)
        occupied[:, 0] = 0  # where players are who are nowhere
        return occupied

    def _returned(
        self,
        returning: torch.Tensor,
        pos: torch.Tensor,
        heading: torch.Tensor,
        occupied: torch.Tensor,
        draws: Draws,
        t: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cells and headings after players have come back on free spawn cells, and who has, each [B, N]."""
        if self.branches:
            games = returning.any(1).nonzero()[:, 0]
            if len(games) * 2 < len(pos):
                if not len(games):
                    return pos, heading, returning
                found = self._found(returning[games], occupied[games], draws.of(games), t[games])
                cells, facing, back = (x.new_zeros(pos.shape).index_copy_(0, games, x) for x in found)
                return torch.where(back, cells, pos), torch.where(back, facing, heading), back
        cells, facing, back = self._found(returning, occupied, draws, t)
        return torch.where(back, cells, pos), torch.where(back, facing, heading), back

    def _found(
        self, returning: torch.Tensor, occupied: torch.Tensor, draws: Draws, t: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where players who are due come back, facing where, and who of them can, each [B, N]."""
        drawn = draws.uniform("return_heading", t, self.n_agents)
        facing = _quarters(drawn)
        if self._own is not None:
            assert self._own_floor is not None
            back = returning & (occupied.gather(1, self._own_floor.expand_as(returning)) == 0)
            return self._own.expand_as(returning), facing, back
        free = occupied.gather(1, self._spawn_floor.expand(len(occupied), -1)) == 0
        u = draws.uniform("return", t, free.shape[1])
        most = min(self.n_agents, free.shape[1])
        ranked = torch.where(free, u, 2.0).topk(most, dim=1, largest=False, sorted=True).indices
        room = free.sum(-1, keepdim=True)
        turn = returning.cumsum(-1) - 1
        # Where there is no room for all, chance decides who waits; what is left of a heading's number is one, too.
        lots = (drawn * 4).frac()
        earlier = self._players[None, :] < self._players[:, None]  # of equal lots
        ahead = (lots[:, None, :] < lots[:, :, None]) | ((lots[:, None, :] == lots[:, :, None]) & earlier)
        luck = (ahead & returning[:, None, :]).sum(-1)
        turn = torch.where(returning.sum(-1, keepdim=True) > room, luck, turn)
        back = returning & (turn < room)
        return self._spawn[ranked.gather(1, turn.clamp(0, most - 1))], facing, back

    def _victims(self, struck: torch.Tensor, who: torch.Tensor, games: int) -> torch.Tensor:
        """Players who were hit, [B, N], from places on the floor that were struck and who, slot + 1, was there."""
        game = struck.div(self._n_floor, rounding_mode="floor")
        players = torch.where(game < games, game * self.n_agents + who.to(torch.int64) - 1, games * self.n_agents)
        return beams.marked(players, games, self.n_agents)

    def _rate(self, group: torch.Tensor) -> torch.Tensor:
        return self._rates[(group + 1).to(torch.int32)]

    def _placed(self, u: torch.Tensor) -> torch.Tensor:
        """Cells [B, N] to begin on: players who share spawn cells take different ones."""
        chosen, taken, drawn = [], 0, 0
        while taken < self.n_agents:
            cells = self._starts[taken]
            share = sum(1 for each in self._starts[taken:] if each is cells)
            noise = u[:, drawn : drawn + len(cells)]
            order = noise.argsort(dim=-1, stable=True)[:, :share]
            chosen.append(cells[order] if len(cells) > 1 else cells.expand(len(u), 1))
            taken, drawn = taken + share, drawn + len(cells)
        return torch.cat(chosen, dim=1)

    def _tensor(self, table: NDArray[np.generic]) -> torch.Tensor:
        return tables.tensor(table, self.device)


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


def counted(sites: torch.Tensor) -> torch.Tensor:
    """How many are true, [B] int32, of [B, n] bool: counted as bytes, without a wider copy."""
    return sites.view(torch.uint8).sum(-1, dtype=torch.int32)


def _quarters(u: torch.Tensor) -> torch.Tensor:
    """0 to 3 for numbers in [0, 1)."""
    return (u * 4).to(torch.int64)
