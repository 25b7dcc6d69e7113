"""Observations of players in a batch of games (parallel copies of an environment), and frames of one game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.records import Observation
from llmrl.envs.native import batch_loop
from llmrl.envs.native.cell_codes import Tiles, load_tiles, render_tiles
from llmrl.envs.native.compilation import load_compiled_functions, run_in_threads
from llmrl.envs.native.engine import VIEW_SHAPE, Engine, build_int32_table, build_view_offsets
from llmrl.envs.native.game_arrays import GameBatch, Games, LoopOutputs, ViewTables, to_loop_array
from llmrl.envs.substrate.maps import MAP_MARGIN
from llmrl.envs.substrate.sprites import TILE_SIZE, TileSource
from llmrl.envs.substrate.substrate_rules import GRID_SHAPE, PIXELS_SHAPE, SUBSTRATES

_N_BUFFER_SETS = 3
"""Number of observation buffers, which are used in turn: an observation stays valid for two more steps or resets."""


class ObservationBuilder:
    """Builder of the observations in a batch of games, with the buffers that `batch_loop.play_games` writes to.

    Args:
        engine: engine of the games.
        n_games: number of games.
        channels: channels that players observe, of `pixels`, `grid`, `vector` and `text`.
        tile_source: source of the sprites.
    """

    def __init__(self, engine: Engine, n_games: int, channels: Sequence[str], tile_source: TileSource) -> None:
        self._engine, self._n_games, self._tile_source = engine, n_games, tile_source
        self.has_grids = bool({"grid", "text"} & set(channels))
        self.has_vectors = bool({"vector", "text"} & set(channels))
        self.has_pixels = "pixels" in channels
        if self.has_pixels:
            self.renderer = ViewRenderer(self._load_tiles().images, engine.device)
        self._buffers: list[dict[str, tuple[Any, Any]]] = []

    @property
    def bytes_per_game(self) -> int:
        """Approximate memory of one game in bytes: its state, outputs of steps, and the observations of its players."""
        engine, n = self._engine, self._engine.n_agents
        state_bytes = 4 * (16 + 13 * n) + 4 * engine.n_apple_sites + 2 * engine.n_river_cells + engine.n_cells
        if engine.uses_gpu:
            state_bytes += 4 * (engine.n_cells + 9 * max(engine.n_apple_sites, 3 * n))
        grid_bytes = self.has_grids * 4 * 121 * _N_BUFFER_SETS
        pixel_bytes = self.has_pixels * (4 * 121 + _N_BUFFER_SETS * int(np.prod(PIXELS_SHAPE)))
        return state_bytes + 4 * _N_BUFFER_SETS * (8 + 8 * n) + (grid_bytes + pixel_bytes) * n

    def build_loop_tables(self) -> ViewTables:
        """Return the view tables that `batch_loop.play_games` reads; empty ones if no views are observed."""
        if not (self.has_grids or self.has_pixels):
            return self._engine.empty_views
        return self._build_view_tables(self._engine.device, self.has_pixels)

    def rotate_buffers(self) -> dict[str, tuple[Any, Any]]:
        """Return channel -> buffer (`_allocate_buffers`) for a step or reset, other than in the two previous calls.

        Buffers are reused, because page faults in newly allocated memory take longer than writing to it.
        """
        if not self._buffers:
            with torch.inference_mode(False):  # written to again later, inside or outside inference mode
                self._buffers = [self._allocate_buffers() for _ in range(_N_BUFFER_SETS)]
        self._buffers.append(self._buffers.pop(0))
        return self._buffers[-1]

    def build_observation(self, buffers: dict[str, tuple[Any, Any]], vector: torch.Tensor | None) -> Observation:
        """Return the channels `pixels`, `grid` and `vector`, given the buffers that the loops have filled."""
        channels: dict[str, Any] = {}
        if self.has_pixels:
            channels["pixels"] = self.renderer.render(buffers["tile_ids"][0], out=buffers["pixels"][0])
        if self.has_grids:
            channels["grid"] = buffers["grid"][0]
        if vector is not None:
            channels["vector"] = vector
        return channels

    def render_world(self, batch: GameBatch, index: int) -> NDArray[np.uint8]:
        """Return a frame of the whole map in game `index`, [8 * height, 8 * width, 3] uint8."""
        codes = self._copy_game_with_codes(batch, index).codes[0].reshape(-1, self._engine.setup.game_map.stride)
        tiles = self._load_tiles()
        return render_tiles(tiles.images, tiles.world_tile_ids[codes[MAP_MARGIN:-MAP_MARGIN, MAP_MARGIN:-MAP_MARGIN]])

    def render_players(self, batch: GameBatch, index: int) -> NDArray[np.uint8]:
        """Return the views of all players in game `index`, [N, 88, 88, 3] uint8, also if `pixels` is not observed."""
        games, tile_ids = self._copy_game_with_codes(batch, index), np.zeros((1, self._engine.n_agents, 121), np.int32)
        empty = np.zeros((0, 0, 0), np.float32)
        outputs = LoopOutputs(player_stats=empty, metrics=empty, grid=tile_ids[:0], tile_ids=tile_ids, vector=empty)
        view_tables = self._build_view_tables("cpu", has_tiles=True)
        batch_loop.write_views(0, 0, outputs, games, self._engine.tables.constants, view_tables)
        return render_tiles(self._load_tiles().images, tile_ids.reshape(-1, *VIEW_SHAPE))

    def _copy_game_with_codes(self, batch: GameBatch, index: int) -> Games:
        """Return a copy of game `index` on the host, whose `codes` are computed by the uncompiled loop."""
        engine, games = self._engine, batch.copy_game(index).build_loop_arrays()
        view_tables = self._build_view_tables("cpu", has_tiles=False)
        batch_loop.write_codes(0, 0, games, engine.tables.constants, engine.beam_cells_by_pose, view_tables)
        return games

    def _build_view_tables(self, device: str, has_tiles: bool) -> ViewTables:
        game_map, codes = self._engine.setup.game_map, self._engine.cell_codes
        tables = ViewTables(
            base_codes=codes.base_codes,
            variable_cells=np.concatenate([game_map.apple_cells, game_map.dirt_cells, game_map.clean_river_cells]),
            offsets=build_view_offsets(game_map),
            grid_words=codes.build_grid_table().view(np.int32).reshape(4, -1),
            tile_ids=np.array(self._load_tiles().tile_ids_by_heading).reshape(4, -1)
            if has_tiles
            else np.zeros((4, 0), np.int32),
        )
        return ViewTables(*(build_int32_table(table, device) for table in tables))

    def _allocate_buffers(self) -> dict[str, tuple[Any, Any]]:
        """Return new buffers: channel -> (tensor, array for the loops with the same memory)."""
        engine, shape = self._engine, (self._n_games, self._engine.n_agents)
        buffers: dict[str, tuple[Any, Any]] = dict.fromkeys(("grid", "tile_ids"), (None, engine.empty_grids))
        if self.has_grids:
            grid = torch.zeros((*shape, *GRID_SHAPE), dtype=torch.uint8, device=engine.device)
            buffers["grid"] = grid, to_loop_array(grid.view(torch.int32).view(*shape, -1))
        if self.has_pixels:
            tile_ids = torch.zeros((*shape, *VIEW_SHAPE), dtype=torch.int32, device=engine.device)
            buffers["tile_ids"] = tile_ids, to_loop_array(tile_ids.view(*shape, -1))
            buffers["pixels"] = torch.zeros((*shape, *PIXELS_SHAPE), dtype=torch.uint8, device=engine.device), None
        return buffers

    def allocate_vectors(self) -> tuple[torch.Tensor, Any]:
        """Return the channel `vector`, [B, N, 1 or 2] float32, as a new tensor and as an array for the loops.

        The last axis is that of `Substrate.vector_observations`.
        """
        engine = self._engine
        shape = (self._n_games, engine.n_agents, len(SUBSTRATES[engine.setup.game_map.substrate].vector_observations))
        vector = torch.empty(shape, dtype=torch.float32, device=engine.device)
        return vector, to_loop_array(vector)

    def _load_tiles(self) -> Tiles:
        game_map = self._engine.setup.game_map
        return load_tiles(game_map.substrate, game_map.text, self._engine.n_agents, self._tile_source)


_TILE_ROW_BYTES = TILE_SIZE * 3
"""Bytes of a pixel row of a tile, which is copied as three 64-bit integers."""
_MIN_BYTES_PER_THREAD = 1 << 20
"""Minimum number of bytes that a thread writes."""


class ViewRenderer:
    """Renderer that replaces the tile index of each cell by the image of the tile.

    Args:
        images: images of the tiles, [n_tiles, 8, 8, 3] uint8.
        device: torch device of the tile indices and of the pictures.
    """

    def __init__(self, images: NDArray[np.uint8], device: str = "cpu") -> None:
        self.tile_rows = torch.tensor(images).reshape(-1, TILE_SIZE, _TILE_ROW_BYTES).view(torch.int64).to(device)

    def render(self, tile_ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write pictures of cells into `out`, and return it.

        Args:
            tile_ids: tile index of each cell, [..., R, C] int32, contiguous.
            out: pictures [..., 8 * R, 8 * C, 3] uint8, contiguous.
        """
        tile_ids = tile_ids.reshape(-1, tile_ids.shape[-1])
        image_rows = out.view(-1).view(torch.int64).view(len(tile_ids), TILE_SIZE, tile_ids.shape[1], -1)
        if tile_ids.device.type == "cpu":
            n_threads = min(torch.get_num_threads(), out.numel() // _MIN_BYTES_PER_THREAD)
            arrays = tile_ids.numpy(), self.tile_rows.numpy(), image_rows.numpy()
            run_in_threads(load_compiled_functions().copy_tiles, max(1, n_threads), len(tile_ids), arrays)
        else:
            offsets = torch.arange(TILE_SIZE, dtype=torch.int32, device=tile_ids.device)[:, None]
            indices = torch.add(offsets, tile_ids[:, None, :], alpha=TILE_SIZE).view(-1)
            torch.index_select(self.tile_rows.flatten(0, 1), 0, indices, out=image_rows.view(len(indices), -1))
        return out
