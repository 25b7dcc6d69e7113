"""The arrays that the compiled functions read and write, grouped in named tuples, and the records of their elements.

Sizes: B games, N players, A sites of apples, W cells of the river, L lanes (concurrent threads, or games on a GPU).
Arrays are C-contiguous: NumPy's on a processor, Numba's on a GPU. Elements of a record array have the fields of its
dtype as attributes, e.g. `games.players[b, i].heading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.envs.substrate.maps import GameMap

Int8: TypeAlias = NDArray[np.int8]
Int32: TypeAlias = NDArray[np.int32]
Float32: TypeAlias = NDArray[np.float32]
Records: TypeAlias = "np.recarray[Any, np.dtype[np.record]]"
Words: TypeAlias = tuple[int, int]
"""Result of `hashed_random.hash_step`, from which the numbers of a game's step are drawn."""


def _record(kind: type[np.generic], *names: str) -> np.dtype[np.void]:
    return np.dtype([(name, kind) for name in names], align=True)


WORLD = _record(np.int32, "t", "apples", "dirt")
"""A game: number of steps taken, of apples, and of dirty cells."""
PLAYER = _record(np.int32, "pos", "heading", "alive", "out_for", "zap_wait", "clean_wait", "cleaner")
"""A player: its cell, 0 (no cell of the map) while it is out of the game; 0 north, 1 east, 2 south, 3 west; 1 in the
game; number of steps until it is back, and until it can fire each beam again; 1 if it cleaned dirt in the last step."""
SITE = _record(np.int8, "apple", "group", "dry", "near")
"""A site of apples: 1 with an apple, `rules.FRESH` if it grew in this step; number of apples near a site without one
two steps before, at most 3, or -1 if none can grow yet; 1 if the grass has withered; number of live apples within a
distance of 2."""
RIVER = _record(np.int8, "dirt", "phase")
"""A cell of the river: 1 if dirty; frame of its water at the start."""
PLAYER_EVENTS = _record(np.int32, "cleaned", "zaps", "others_cleaned", "place", "zapped", "washed")
"""Events of a player in a step: number of dirty cells that it cleaned, of players that it removed, and of others who
cleaned in the step before; its cell * 4 + heading when beams were fired; cells in front that its zap and its cleaning
beam passed, bit k for cell k."""
SCRATCH = _record(
    np.int32,
    "mover",
    "order_key",
    "old_cell",
    "hit",
    "returning",
    "eaten_site",
    "fresh_site",
    "cleaned_spot",
    "grown_site",
)
"""Entry k or i of a lane's temporary lists: the k-th player to move and its position in the order; cell of player i
before the move; 1 if player i was hit; the k-th player that returns; site where player i eats, and fresh site below its
former cell (A: none); the k-th cell of the river that was cleaned; the k-th site that grew."""
ACTION = _record(np.int32, "move", "turn")
"""An action: direction relative to the heading (`rules.NO_MOVE` for none), and number of quarter turns to the right."""


class Games(NamedTuple):
    """State of a batch of games, and scratch memory.

    Attributes:
        world: `WORLD` records [B].
        players: `PLAYER` records [B, N].
        orchard: `SITE` records [B, A].
        river: `RIVER` records [B, W]; cells that can be dirty come first.
        occupied: player on each cell, slot + 1, or 0, [B, n_cells] uint8.
        player_events: `PLAYER_EVENTS` records [B, N].
        scratch: `SCRATCH` records [L, max(A, 3 N)].
        codes: codes of all cells (`cell_codes`), [L, n_cells] int32.
    """

    world: Records
    players: Records
    orchard: Records
    river: Records
    occupied: NDArray[np.uint8]
    player_events: Records
    scratch: Records
    codes: Int32


class Settings(NamedTuple):
    """Numbers of a substrate and its rules.

    Attributes:
        harvest: whether it is Harvest, else Clean Up.
        zap, clean: the action that fires the beam; -1 without one.
        zap_cooldown, clean_cooldown: number of steps between two shots.
        removal_steps: number of steps for which a zapped player is out of the game.
        fixed_order: whether players move in the order of their slots, else in a random order.
        has_assigned_cells: whether each player returns on its assigned cell.
        facing_north: whether players face north at the start, else anywhere.
        full_orchard: whether each site has an apple at the start, else none.
        n_dirt: number of cells of the river that can be dirty.
        spill_threshold: bound of the number below which one more cell gets dirty in a step.
        first_spill: first step in which a cell can get dirty.
        n_grounds, n_avatars: number of codes of each kind (`cell_codes.CellCodes`).
    """

    harvest: bool
    zap: int
    clean: int
    zap_cooldown: int
    clean_cooldown: int
    removal_steps: int
    fixed_order: bool
    has_assigned_cells: bool
    facing_north: bool
    full_orchard: bool
    n_dirt: int
    spill_threshold: int
    first_spill: int
    n_grounds: int
    n_avatars: int


class Tables(NamedTuple):
    """Constants of a map and its rules, as int32 arrays.

    Attributes:
        steps: cell that a step north, east, south, west leads to, and the cell itself, [n_cells, 5].
        sites: index of each cell among the sites of apples; A elsewhere, [n_cells].
        spots: index of each cell among the cells that can be dirty; their number elsewhere, [n_cells].
        beams: cells that a beam passes (`map_geometry.beams`), by cell * 4 + heading, [4 n_cells, 9].
        near: number of neighbors of each site, then their indices, [A, 1 + most].
        spawn: cells on which players return, [n_spawn].
        groups: for players who share start cells: index of the first of these in `places`, number of the cells, number
            of the players, [n_groups, 3].
        places: start cells, [n_places].
        dirty: 1 where the river is dirty at the start, [n_dirt].
        chances: thresholds of growth, by number of dirty cells (Clean Up) or of apples nearby (Harvest), [n].
        actions: `ACTION` records [n_actions].
        settings: numbers of the rules and views.
    """

    steps: Int32
    sites: Int32
    spots: Int32
    beams: Int32
    near: Int32
    spawn: Int32
    groups: Int32
    places: Int32
    dirty: Int32
    chances: Int32
    actions: Records
    settings: Settings


class ViewTables(NamedTuple):
    """Constants of players' views, as int32 arrays; all are empty without observations.

    Attributes:
        base: code of each cell in its default state, [n_cells].
        places: cells of the sites of apples, then of the river, [A + W].
        offsets: difference between a player's cell and the cells in view, by heading, [4, 121].
        grids: entries of the channel `grid`, four bytes each, by heading and code, [4, n_codes].
        tiles: tile by heading and code, [4, n_codes]; [4, 0] without pictures.
    """

    base: Any
    places: Any
    offsets: Any
    grids: Any
    tiles: Any


class Inputs(NamedTuple):
    """Inputs of a call of `batch_loop.play`.

    Attributes:
        commands: `batch_loop.WAIT`, `STEP`, `START` or `KEEP` of each game, [B] uint8.
        action: action of each player, [B, N] int64.
        keys: keys of the games' random numbers, [B, 2] int32.
    """

    commands: NDArray[np.uint8]
    action: NDArray[np.int64]
    keys: NDArray[Any]


class Outputs(NamedTuple):
    """Results of a call of `batch_loop.play`. All but `player_stats` may be empty, and then are not written.

    Attributes:
        player_stats: rewards, number of cells cleaned, and 1 if the player could act, [3, B, N] float32.
        info: metrics, [8, B] float32; rows as in `batch_loop.METRICS`.
        grid: channel `grid`, four bytes in each int32, [B, N, 121].
        ids: tiles in view, [B, N, 121] int32.
        vector: channel `vector`, [B, N, 1 or 2] float32.
    """

    player_stats: Float32
    info: Float32
    grid: Int32
    ids: Int32
    vector: Float32


def array(x: torch.Tensor, record: np.dtype[np.void] | None = None) -> Any:
    """Return a tensor as an array for compiled functions, with shared memory: NumPy's, or on a GPU Numba's.

    Args:
        x: contiguous.
        record: dtype of the elements, whose fields are the last axis of `x`; None: the elements are numbers.
    """
    if x.device.type == "cpu":
        plain = x.numpy()
        return plain if record is None else plain.view(record)[..., 0].view(np.recarray)
    from numba import cuda

    gpu_array = cuda.as_cuda_array(x)
    return gpu_array if record is None else gpu_array.view(record).reshape(*x.shape[:-1])


def width(record: np.dtype[np.void]) -> int:
    """Return the number of fields of a record."""
    return len(record.names or ())


def fields(x: torch.Tensor, record: np.dtype[np.void]) -> dict[str, torch.Tensor]:
    """Return views of the last axis of `x` by the names of the fields of `record`."""
    return dict(zip(record.names or (), x.unbind(-1), strict=True))


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
        world, players, orchard, river, occupied, player_events, scratch, codes: the arrays of `Games` as tensors, with
            the fields of records as the last axis.
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

        The entries are the fields of the records, with the games first. Fields that the substrate does not use have
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
