"""The arrays of a batch of games for rules and views, with conversions to and from `State` and to `GameEvents`."""

from __future__ import annotations

import torch

from llmrl.envs.native.game_arrays import (
    PLAYER,
    PLAYER_EVENTS,
    RIVER,
    SCRATCH,
    SITE,
    WORLD,
    Games,
    array,
    fields,
    width,
)
from llmrl.envs.native.state import GameEvents, State
from llmrl.envs.substrate.maps import GameMap


class Batch:
    """State of a batch of B games in a few arrays with the games first, so that a step passes few arguments.

    Args:
        game_map: map of all games.
        players: number of players of a game.
        games: number of games.
        lanes: number of concurrent threads, each with its own scratch memory.
        device: torch device.

    Attributes:
        n_dirt: number of cells of the river that can be dirty.
        world, players, orchard, river, occupied, deeds, scratch, codes: the arrays of `game_arrays.Games` as tensors,
            with the fields of records as the last axis.
    """

    def __init__(self, game_map: GameMap, players: int, games: int, lanes: int, device: str) -> None:
        def make(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            with torch.inference_mode(False):  # the tensor is changed in place later, inside or outside inference mode
                return torch.zeros(shape, dtype=dtype, device=device)

        self._map = game_map
        apples, cells, self.n_dirt = len(game_map.apples), game_map.n_cells, len(game_map.dirt)
        self.world, self.players = make(games, width(WORLD)), make(games, players, width(PLAYER))
        self.orchard = make(games, apples, width(SITE), dtype=torch.int8)
        self.river = make(games, self.n_dirt + len(game_map.river), width(RIVER), dtype=torch.int8)
        self.occupied = make(games, cells, dtype=torch.uint8)
        self.player_events = make(games, players, width(PLAYER_EVENTS))
        self.scratch, self.codes = make(lanes, max(apples, 3 * players), width(SCRATCH)), make(lanes, cells)

    def arrays(self) -> Games:
        """Return the arrays for compiled functions, with shared memory."""
        return Games(
            world=array(self.world, WORLD),
            players=array(self.players, PLAYER),
            orchard=array(self.orchard, SITE),
            river=array(self.river, RIVER),
            occupied=array(self.occupied),
            player_events=array(self.player_events, PLAYER_EVENTS),
            scratch=array(self.scratch, SCRATCH),
            codes=array(self.codes),
        )

    def one_game(self, index: int) -> Batch:
        """Return a copy of game `index` on the host."""
        batch = Batch(self._map, self.players.shape[1], games=1, lanes=1, device="cpu")
        for name in ("world", "players", "orchard", "river", "occupied", "player_events"):
            getattr(batch, name).copy_(getattr(self, name)[index : index + 1])
        return batch

    def load(self, state: State, near: torch.Tensor) -> None:
        """Load a state and compute redundant counts; `near` [A, A] float32 is 1 where apple sites are neighbors."""
        world, players, orchard, river = self._fields()
        for name in ("pos", "heading", "alive", "out_for", "zap_wait"):
            players[name].copy_(getattr(state, name))
        for name, x in (("clean_wait", state.clean_wait), ("cleaner", state.cleaners)):
            players[name].copy_(x if x.shape[1] else torch.zeros_like(state.pos))
        has_grass = state.group.shape[1] > 0
        orchard["apple"].copy_(state.apple)
        orchard["group"].copy_(state.group if has_grass else torch.full_like(state.apple, -1, dtype=torch.int8))
        orchard["dry"].copy_(state.dry if has_grass else torch.zeros_like(state.apple))
        orchard["near"].copy_(state.apple.to(torch.float32) @ near)
        river["dirt"].zero_()
        river["dirt"][:, : self.n_dirt] = state.dirt
        river["phase"].copy_(state.phase)
        world["t"].copy_(state.t)
        world["apples"].copy_(state.apple.sum(1))
        world["dirt"].copy_(state.dirt.sum(1))
        self.occupied.zero_()
        slots = torch.arange(1, state.pos.shape[1] + 1, device=self.occupied.device).to(torch.uint8)
        self.occupied.scatter_(1, state.pos.to(torch.int64), slots.expand(state.pos.shape).contiguous())
        self.occupied[:, 0] = 0  # the cell of players that are out of the game

    def state(self, harvest: bool) -> State:
        """Return a copy of the state; `harvest`: whether the substrate is Harvest."""
        world, players, orchard, river = self._fields()
        grass_sites = slice(0, self.orchard.shape[1] if harvest else 0)
        cleaners = slice(0, self.players.shape[1] if self.n_dirt else 0)
        return State(
            t=world["t"].clone(),
            pos=players["pos"].to(torch.int64),
            heading=players["heading"].to(torch.int64),
            alive=players["alive"] != 0,
            out_for=players["out_for"].clone(),
            zap_wait=players["zap_wait"].clone(),
            clean_wait=players["clean_wait"][:, cleaners].clone(),
            apple=orchard["apple"] != 0,
            dirt=river["dirt"][:, : self.n_dirt] != 0,
            phase=river["phase"].to(torch.uint8),
            group=orchard["group"][:, grass_sites].clone(),
            dry=orchard["dry"][:, grass_sites] != 0,
            cleaners=players["cleaner"][:, cleaners] != 0,
        )

    def events(self, reward: torch.Tensor, zaps: bool) -> GameEvents:
        """Return a copy of the events of the last step; `zaps`: whether players can zap."""
        player_events = fields(self.player_events.to(torch.int64), PLAYER_EVENTS)
        cells = torch.arange(9, device=self.player_events.device)

        def passed(name: str) -> torch.Tensor:
            return (player_events[name][..., None] >> cells & 1) != 0

        return GameEvents(
            reward=reward,
            cleaned=player_events["cleaned"],
            zaps=player_events["zaps"],
            others_cleaned=player_events["others_cleaned"],
            place=player_events["place"],
            zapped=passed("zapped") if zaps else None,
            washed=passed("washed") if self.n_dirt else None,
        )

    def _fields(self) -> tuple[dict[str, torch.Tensor], ...]:
        """Return views of the fields of all games, players, sites of apples and cells of the river."""
        tensors = (self.world, WORLD), (self.players, PLAYER), (self.orchard, SITE), (self.river, RIVER)
        return tuple(fields(tensor, record) for tensor, record in tensors)
