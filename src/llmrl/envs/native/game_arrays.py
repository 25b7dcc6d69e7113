"""The arrays that the compiled functions read and write, grouped in named tuples, and the records of their elements.

Sizes: B games, N players, A apple sites (cells where apples grow), W river cells, L lanes (concurrent threads; on a GPU
one for each game). Arrays are C-contiguous: NumPy arrays on a CPU, Numba arrays on a GPU. Elements of a record array
have the fields of its dtype as attributes, e.g. `games.players[b, i].heading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.envs.substrate.maps import GameMap

Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]
RecordArray: TypeAlias = "np.recarray[Any, np.dtype[np.record]]"
StepHash: TypeAlias = tuple[int, int]
"""Return value of `hashed_random.hash_step`, from which all random numbers of a game in a step are computed."""


def _build_record_dtype(field_type: type[np.generic], *names: str) -> np.dtype[np.void]:
    return np.dtype([(name, field_type) for name in names], align=True)


WORLD_DTYPE = _build_record_dtype(np.int32, "n_steps", "n_apples", "n_dirty")
"""A game: number of steps in the episode so far, of apples, and of dirty cells."""
PLAYER_DTYPE = _build_record_dtype(
    np.int32, "cell", "heading", "alive", "steps_until_return", "steps_until_zap", "steps_until_clean", "has_cleaned"
)
"""A player. `cell`: index, 0 (outside the map) while it is removed; `heading`: 0 north, 1 east, 2 south, 3 west;
`alive`: 0 while it is removed, else 1; `steps_until_...`: number of steps until it returns or can fire the beam again;
`has_cleaned`: 1 if it cleaned dirt in the last step."""
SITE_DTYPE = _build_record_dtype(np.int8, "apple_state", "regrowth_class", "is_withered", "n_apples_nearby")
"""An apple site. `apple_state`: 0 without an apple, 1 with one, `rules.FRESH_APPLE` if it grew in this step;
`regrowth_class`: number of apples nearby two steps before, at most 3, or -1 if none can grow yet; `is_withered`: 1 if
the grass has withered; `n_apples_nearby`: number of apples within a distance of 2."""
RIVER_DTYPE = _build_record_dtype(np.int8, "is_dirty", "phase")
"""A river cell. `is_dirty`: 1 if dirty; `phase`: frame of its water animation at the start."""
PLAYER_EVENTS_DTYPE = _build_record_dtype(
    np.int32, "n_cleaned", "n_zapped", "n_other_cleaners", "pose_index", "zap_beam_mask", "cleaning_beam_mask"
)
"""Events of a player in a step. `n_cleaned`, `n_zapped`: number of cells that it cleaned and of players that it zapped;
`n_other_cleaners`: number of other players who cleaned in the previous step; `pose_index`: cell * 4 + heading when
beams were fired; `..._beam_mask`: cells that the beam passed, where bit k is cell k of `RuleTables.beam_cells`."""
SCRATCH_DTYPE = _build_record_dtype(
    np.int32,
    "mover_index",
    "move_order_key",
    "previous_cell",
    "is_hit",
    "returning_index",
    "eaten_site",
    "fresh_site",
    "cleaned_cell_index",
    "grown_site",
)
"""Elements of a lane's temporary lists. Element k: the k-th player to move, and its key in the order of moves; the k-th
player that returns; the k-th river cell that was cleaned; the k-th site that grew. Element i: cell of player i before
its move; 1 if a zap hit it; site where it eats, and site of a fresh apple on its previous cell (A: none)."""
ACTION_DTYPE = _build_record_dtype(np.int32, "move_direction", "quarter_turns")
"""An action: direction of the move relative to the heading (`rules.NO_MOVE`: none), and quarter turns to the right."""


class Games(NamedTuple):
    """State of a batch of games, and scratch memory.

    Attributes:
        world: `WORLD_DTYPE` records [B].
        players: `PLAYER_DTYPE` records [B, N].
        apple_sites: `SITE_DTYPE` records [B, A].
        river_cells: `RIVER_DTYPE` records [B, W]; cells that can be dirty come first.
        occupants: index of the player on each cell + 1, or 0 for a cell without a player, [B, n_cells] uint8.
        player_events: `PLAYER_EVENTS_DTYPE` records [B, N].
        scratch: `SCRATCH_DTYPE` records [L, max(A, 3 N)].
        codes: codes of all cells (`cell_codes`), [L, n_cells] int32.
    """

    world: RecordArray
    players: RecordArray
    apple_sites: RecordArray
    river_cells: RecordArray
    occupants: NDArray[np.uint8]
    player_events: RecordArray
    scratch: RecordArray
    codes: Int32Array


class RuleConstants(NamedTuple):
    """Numbers and booleans of a substrate and its rules.

    Attributes:
        is_harvest: whether the substrate is Harvest, else Clean Up.
        zap_action, clean_action: index of the action that fires the beam; -1 without one.
        zap_cooldown, clean_cooldown: number of steps after a beam in which the player cannot fire another one.
        removal_steps: number of steps for which a zapped player is removed.
        has_fixed_move_order: whether players move in descending order of their indices, else in a random order.
        has_assigned_cells: whether each player returns to its assigned cell, else to a random spawn cell.
        starts_facing_north: whether players face north at the start, else in random directions.
        starts_with_apples: whether each site has an apple at the start, else none.
        n_dirt_cells: number of river cells that can be dirty.
        spill_threshold: bound of a random integer below which one more cell gets dirty in a step.
        first_spill_step: first step in which a cell can get dirty.
        n_ground_codes, n_avatar_codes: number of codes of each kind (`cell_codes.CellCodes`).
    """

    is_harvest: bool
    zap_action: int
    clean_action: int
    zap_cooldown: int
    clean_cooldown: int
    removal_steps: int
    has_fixed_move_order: bool
    has_assigned_cells: bool
    starts_facing_north: bool
    starts_with_apples: bool
    n_dirt_cells: int
    spill_threshold: int
    first_spill_step: int
    n_ground_codes: int
    n_avatar_codes: int


class RuleTables(NamedTuple):
    """Constants of a map and its rules, as int32 arrays.

    Attributes:
        step_targets: cell after a step north, east, south or west, and without a step, [n_cells, 5].
        site_indices: index of each cell among the apple sites, A for other cells, [n_cells].
        dirt_indices: index of each cell among the cells that can be dirty, n_dirt_cells for other cells, [n_cells].
        beam_cells: cells that a beam passes (`engine.build_beam_cells`), by cell * 4 + heading, [4 n_cells, 9].
        site_neighbors: number of neighbors of each apple site, then their indices, [A, 1 + maximum number].
        spawn_cells: cells on which players return, [n_spawn].
        start_groups: for each group of players with common start cells: index of the first one in `start_cells`,
            number of the cells, number of the players, [n_groups, 3].
        start_cells: start cells of all groups, [n_start].
        initial_dirt: 1 where the river is dirty at the start, [n_dirt_cells].
        growth_thresholds: bound of a random integer below which an apple grows in a step, by number of dirty cells
            (Clean Up) or of apples nearby (Harvest), [n].
        actions: `ACTION_DTYPE` records [n_actions].
        constants: numbers and booleans of the rules.
    """

    step_targets: Int32Array
    site_indices: Int32Array
    dirt_indices: Int32Array
    beam_cells: Int32Array
    site_neighbors: Int32Array
    spawn_cells: Int32Array
    start_groups: Int32Array
    start_cells: Int32Array
    initial_dirt: Int32Array
    growth_thresholds: Int32Array
    actions: RecordArray
    constants: RuleConstants


class ViewTables(NamedTuple):
    """Constants for the views of players, as int32 arrays; all are empty if no views are observed.

    Attributes:
        base_codes: code of each cell in its default state, [n_cells].
        variable_cells: cells whose code can change: the apple sites, then the river, [A + W].
        offsets: difference between the cells in view and the player's cell, by heading, [4, 121].
        grid_words: the four bytes of the channel `grid` as one integer, by heading and code, [4, n_codes].
        tile_ids: index of the tile, by heading and code, [4, n_codes]; [4, 0] without the channel `pixels`.
    """

    base_codes: Any
    variable_cells: Any
    offsets: Any
    grid_words: Any
    tile_ids: Any


class LoopInputs(NamedTuple):
    """Inputs of a call of `batch_loop.play_games`.

    Attributes:
        commands: `batch_loop.WAIT`, `STEP`, `START` or `OBSERVE` for each game, [B] uint8.
        actions: action of each player, [B, N] int64.
        game_keys: keys of the games' random numbers, [B, 2] int32.
    """

    commands: NDArray[np.uint8]
    actions: NDArray[np.int64]
    game_keys: NDArray[Any]


class LoopOutputs(NamedTuple):
    """Outputs of a call of `batch_loop.play_games`. Arrays except `player_stats` may be empty and are then not written.

    Attributes:
        player_stats: reward, number of cleaned cells, and 1 for players who could act, else 0, [3, B, N] float32.
        metrics: the metrics of `batch_loop.METRIC_NAMES`, [8, B] float32.
        grid: channel `grid`, the four bytes of a cell as one int32, [B, N, 121].
        tile_ids: index of the tile of each cell in view, [B, N, 121] int32.
        vector: channel `vector`, [B, N, 1 or 2] float32.
    """

    player_stats: Float32Array
    metrics: Float32Array
    grid: Int32Array
    tile_ids: Int32Array
    vector: Float32Array


def to_loop_array(tensor: torch.Tensor, dtype: np.dtype[np.void] | None = None) -> Any:
    """Return a NumPy array (Numba array on a GPU) for compiled functions that shares the memory of a tensor.

    Args:
        tensor: a contiguous tensor.
        dtype: record type of the elements, whose fields are the last axis of `tensor`; None: the elements are numbers.
    """
    if tensor.device.type == "cpu":
        host_array = tensor.numpy()
        return host_array if dtype is None else host_array.view(dtype)[..., 0].view(np.recarray)
    from numba import cuda

    gpu_array = cuda.as_cuda_array(tensor)
    return gpu_array if dtype is None else gpu_array.view(dtype).reshape(*tensor.shape[:-1])


def count_fields(dtype: np.dtype[np.void]) -> int:
    """Return the number of fields of a record type."""
    return len(dtype.names or ())


def split_fields(tensor: torch.Tensor, dtype: np.dtype[np.void]) -> dict[str, torch.Tensor]:
    """Return field name -> view of `tensor`, whose last axis is that of the fields of `dtype`."""
    return dict(zip(dtype.names or (), tensor.unbind(-1), strict=True))


class GameBatch:
    """State of a batch of B games in a few tensors, with the games as first axis.

    Args:
        game_map: map of all games.
        n_players: number of players of a game.
        n_games: number of games.
        n_lanes: number of concurrent threads, each with separate scratch memory.
        device: torch device.

    Attributes:
        n_dirt_cells: number of river cells that can be dirty.
        world, players, apple_sites, river_cells, occupants, player_events, scratch, codes: the arrays of `Games` as
            tensors, with the fields of records as the last axis.
    """

    def __init__(self, game_map: GameMap, n_players: int, n_games: int, n_lanes: int, device: str) -> None:
        def allocate(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            with torch.inference_mode(False):  # the tensor is changed in place later, inside or outside inference mode
                return torch.zeros(shape, dtype=dtype, device=device)

        self._map = game_map
        n_sites, n_cells, self.n_dirt_cells = len(game_map.apple_cells), game_map.n_cells, len(game_map.dirt_cells)
        self.world = allocate(n_games, count_fields(WORLD_DTYPE))
        self.players = allocate(n_games, n_players, count_fields(PLAYER_DTYPE))
        self.apple_sites = allocate(n_games, n_sites, count_fields(SITE_DTYPE), dtype=torch.int8)
        n_river_cells = self.n_dirt_cells + len(game_map.clean_river_cells)
        self.river_cells = allocate(n_games, n_river_cells, count_fields(RIVER_DTYPE), dtype=torch.int8)
        self.occupants = allocate(n_games, n_cells, dtype=torch.uint8)
        self.player_events = allocate(n_games, n_players, count_fields(PLAYER_EVENTS_DTYPE))
        self.scratch = allocate(n_lanes, max(n_sites, 3 * n_players), count_fields(SCRATCH_DTYPE))
        self.codes = allocate(n_lanes, n_cells)

    def build_loop_arrays(self) -> Games:
        """Return arrays for compiled functions that share the memory of the tensors."""
        return Games(
            world=to_loop_array(self.world, WORLD_DTYPE),
            players=to_loop_array(self.players, PLAYER_DTYPE),
            apple_sites=to_loop_array(self.apple_sites, SITE_DTYPE),
            river_cells=to_loop_array(self.river_cells, RIVER_DTYPE),
            occupants=to_loop_array(self.occupants),
            player_events=to_loop_array(self.player_events, PLAYER_EVENTS_DTYPE),
            scratch=to_loop_array(self.scratch, SCRATCH_DTYPE),
            codes=to_loop_array(self.codes),
        )

    def copy_game(self, index: int) -> GameBatch:
        """Return a copy of game `index` on the host."""
        batch = GameBatch(self._map, self.players.shape[1], n_games=1, n_lanes=1, device="cpu")
        for name in ("world", "players", "apple_sites", "river_cells", "occupants", "player_events"):
            getattr(batch, name).copy_(getattr(self, name)[index : index + 1])
        return batch

    def load_state_dict(self, state: Mapping[str, torch.Tensor], site_adjacency: torch.Tensor) -> None:
        """Restore a result of `state_dict`; `site_adjacency` [A, A] float32 is 1 for apple sites that are neighbors."""
        world, players, sites, river = self._split_records()
        has_apple, is_dirty, player_cells = state["apple"], state["dirt"], state["pos"]
        players["cell"].copy_(player_cells)
        players["heading"].copy_(state["heading"])
        players["alive"].copy_(state["alive"])
        players["steps_until_return"].copy_(state["steps_until_return"])
        players["steps_until_zap"].copy_(state["steps_until_zap"])
        is_cleanup, is_harvest = bool(self.n_dirt_cells), state["group"].shape[1] > 0
        for name in ("steps_until_clean", "has_cleaned"):
            players[name].copy_(state[name] if is_cleanup else torch.zeros_like(player_cells))
        sites["apple_state"].copy_(has_apple)
        sites["regrowth_class"].copy_(
            state["group"] if is_harvest else torch.full_like(has_apple, -1, dtype=torch.int8)
        )
        sites["is_withered"].copy_(state["is_withered"] if is_harvest else torch.zeros_like(has_apple))
        sites["n_apples_nearby"].copy_(has_apple.to(torch.float32) @ site_adjacency)
        river["is_dirty"].zero_()
        river["is_dirty"][:, : self.n_dirt_cells] = is_dirty
        river["phase"].copy_(state["phase"])
        world["n_steps"].copy_(state["t"])
        world["n_apples"].copy_(has_apple.sum(1))
        world["n_dirty"].copy_(is_dirty.sum(1))
        self.occupants.zero_()
        player_numbers = torch.arange(1, player_cells.shape[1] + 1, device=self.occupants.device).to(torch.uint8)
        self.occupants.scatter_(1, player_cells.to(torch.int64), player_numbers.expand(player_cells.shape).contiguous())
        self.occupants[:, 0] = 0  # the cell of removed players

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of the state of all games, without redundant counts, on the same device.

        Each tensor is a field of the records, with the games as first axis; `group` is `regrowth_class`. Tensors that
        the substrate does not use have no columns: `group` and `is_withered` in Clean Up, `steps_until_clean` and
        `has_cleaned` in Harvest.
        """
        world, players, sites, river = self._split_records()
        site_columns = slice(0, self.apple_sites.shape[1] if self._map.substrate == "harvest" else 0)
        player_columns = slice(0, self.players.shape[1] if self.n_dirt_cells else 0)
        return {
            "t": world["n_steps"].clone(),
            "pos": players["cell"].to(torch.int64),
            "heading": players["heading"].to(torch.int64),
            "alive": players["alive"] != 0,
            "steps_until_return": players["steps_until_return"].clone(),
            "steps_until_zap": players["steps_until_zap"].clone(),
            "steps_until_clean": players["steps_until_clean"][:, player_columns].clone(),
            "apple": sites["apple_state"] != 0,
            "dirt": river["is_dirty"][:, : self.n_dirt_cells] != 0,
            "phase": river["phase"].to(torch.uint8),
            "group": sites["regrowth_class"][:, site_columns].clone(),
            "is_withered": sites["is_withered"][:, site_columns] != 0,
            "has_cleaned": players["has_cleaned"][:, player_columns] != 0,
        }

    def _split_records(self) -> tuple[dict[str, torch.Tensor], ...]:
        """Return field name -> view for the records of games, players, apple sites and river cells."""
        tensors = (
            (self.world, WORLD_DTYPE),
            (self.players, PLAYER_DTYPE),
            (self.apple_sites, SITE_DTYPE),
            (self.river_cells, RIVER_DTYPE),
        )
        return tuple(split_fields(tensor, dtype) for tensor, dtype in tensors)
