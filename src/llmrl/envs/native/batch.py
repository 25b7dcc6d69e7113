"""The arrays of a batch of games for rules and views, and their state for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

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
        world, players, orchard, river, occupied, player_events, scratch, codes: the arrays of `game_arrays.Games` as
            tensors, with the fields of records as the last axis.
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

    def load_state_dict(self, state: Mapping[str, torch.Tensor], near: torch.Tensor) -> None:
        """Restore a result of `state_dict`; `near` [A, A] float32 is 1 where apple sites are neighbors."""
        world, players, orchard, river = self._fields()
        apple, dirt, pos = state["apple"], state["dirt"], state["pos"]
        for name in ("pos", "heading", "alive", "out_for", "zap_wait"):
            players[name].copy_(state[name])
        has_river, has_grass = bool(self.n_dirt), state["group"].shape[1] > 0
        for name, x in (("clean_wait", state["clean_wait"]), ("cleaner", state["cleaners"])):
            players[name].copy_(x if has_river else torch.zeros_like(pos))
        orchard["apple"].copy_(apple)
        orchard["group"].copy_(state["group"] if has_grass else torch.full_like(apple, -1, dtype=torch.int8))
        orchard["dry"].copy_(state["dry"] if has_grass else torch.zeros_like(apple))
        orchard["near"].copy_(apple.to(torch.float32) @ near)
        river["dirt"].zero_()
        river["dirt"][:, : self.n_dirt] = dirt
        river["phase"].copy_(state["phase"])
        world["t"].copy_(state["t"])
        world["apples"].copy_(apple.sum(1))
        world["dirt"].copy_(dirt.sum(1))
        self.occupied.zero_()
        slots = torch.arange(1, pos.shape[1] + 1, device=self.occupied.device).to(torch.uint8)
        self.occupied.scatter_(1, pos.to(torch.int64), slots.expand(pos.shape).contiguous())
        self.occupied[:, 0] = 0  # the cell of players that are out of the game

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of the state of all games, without redundant counts, on the same device.

        The entries are the fields of `game_arrays`, with the games first. Fields that the substrate does not use have
        no columns. `group` and `dry` are those of Harvest, `clean_wait` and `cleaners` those of Clean Up.
        """
        world, players, orchard, river = self._fields()
        grass_sites = slice(0, self.orchard.shape[1] if self._map.substrate == "harvest" else 0)
        cleaners = slice(0, self.players.shape[1] if self.n_dirt else 0)
        return {
            "t": world["t"].clone(),
            "pos": players["pos"].to(torch.int64),
            "heading": players["heading"].to(torch.int64),
            "alive": players["alive"] != 0,
            "out_for": players["out_for"].clone(),
            "zap_wait": players["zap_wait"].clone(),
            "clean_wait": players["clean_wait"][:, cleaners].clone(),
            "apple": orchard["apple"] != 0,
            "dirt": river["dirt"][:, : self.n_dirt] != 0,
            "phase": river["phase"].to(torch.uint8),
            "group": orchard["group"][:, grass_sites].clone(),
            "dry": orchard["dry"][:, grass_sites] != 0,
            "cleaners": players["cleaner"][:, cleaners] != 0,
        }

    def _fields(self) -> tuple[dict[str, torch.Tensor], ...]:
        """Return views of the fields of all games, players, sites of apples and cells of the river."""
        tensors = (self.world, WORLD), (self.players, PLAYER), (self.orchard, SITE), (self.river, RIVER)
        return tuple(fields(tensor, record) for tensor, record in tensors)
