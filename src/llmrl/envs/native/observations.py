"""Observations of the players of a batch of games, in every channel, and frames of single games for videos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.records import Observation
from llmrl.envs.native import batch_loop
from llmrl.envs.native.cell_codes import Tiles, load_tiles, paint
from llmrl.envs.native.compilation import compiled_functions, run_in_threads
from llmrl.envs.native.engine import VIEW, Engine, int32_table, view_offsets
from llmrl.envs.native.game_arrays import Batch, Games, Outputs, ViewTables, array
from llmrl.envs.substrate.maps import MARGIN
from llmrl.envs.substrate.sprites import SIZE, Source
from llmrl.envs.substrate.substrate_rules import GRID_SHAPE, PIXELS_SHAPE, SUBSTRATES

_N_FRAMES = 3
"""Number of frames that are used in turn. An observation stays valid during the next two steps or resets."""


class ObservationBuilder:
    """Makes the observations of the games of an engine; the loops write into its arrays (`batch_loop.play`).

    Args:
        engine: engine of the games.
        games: number of games.
        channels: channels that players observe, of `pixels`, `grid`, `vector` and `text`.
        tiles: source of the sprites.
    """

    def __init__(self, engine: Engine, games: int, channels: Sequence[str], tiles: Source) -> None:
        self._engine, self._games, self._source = engine, games, tiles
        self.has_grids = bool({"grid", "text"} & set(channels))
        self.has_vectors = bool({"vector", "text"} & set(channels))
        self.has_pixels = "pixels" in channels
        if self.has_pixels:
            self.renderer = ViewRenderer(self._load_tiles().bank, engine.device)
        self._frames: list[dict[str, tuple[Any, Any]]] = []

    @property
    def bytes_per_game(self) -> int:
        """Approximate memory of one game, bytes: its state, derived arrays, and the observations of its players."""
        engine, n = self._engine, self._engine.n_agents
        state = 4 * (16 + 13 * n) + 4 * engine.n_apples + 2 * engine.n_water + engine.n_cells
        if engine.uses_gpu:
            state += 4 * (engine.n_cells + 9 * max(engine.n_apples, 3 * n))
        step = 4 * _N_FRAMES * (8 + 8 * n)
        grid = self.has_grids * 4 * 121 * _N_FRAMES
        pixels = self.has_pixels * (4 * 121 + _N_FRAMES * int(np.prod(PIXELS_SHAPE)))
        return state + step + (grid + pixels) * n

    def tables(self) -> ViewTables:
        """Return the constants that `batch_loop` reads."""
        if not (self.has_grids or self.has_pixels):
            return self._engine.empty_views
        return self._tables(self._engine.device, self.has_pixels)

    def frame(self) -> dict[str, tuple[Any, Any]]:
        """Return the arrays for all channels of a step or reset; they differ from those of the two calls before.

        Arrays are reused, because allocating megabytes at every step costs more in page faults than writing to them.
        """
        if not self._frames:
            with torch.inference_mode(False):  # written to again later, inside or outside inference mode
                self._frames = [self._allocate_frame() for _ in range(_N_FRAMES)]
        self._frames.append(self._frames.pop(0))
        return self._frames[-1]

    def observation(self, frame: dict[str, tuple[Any, Any]], vector: torch.Tensor | None) -> Observation:
        """Return all channels but texts, from the outputs of the loops."""
        channels: dict[str, Any] = {}
        if self.has_pixels:
            channels["pixels"] = self.renderer.expand(frame["ids"][0], out=frame["pixels"][0])
        if self.has_grids:
            channels["grid"] = frame["grid"][0]
        if vector is not None:
            channels["vector"] = vector
        return channels

    def render_world(self, batch: Batch, index: int) -> NDArray[np.uint8]:
        """Return a frame of the whole world of game `index`, [8 * height, 8 * width, 3] uint8."""
        codes = self._game_with_codes(batch, index).codes[0].reshape(-1, self._engine.setup.game_map.stride)
        tiles = self._load_tiles()
        return paint(tiles.bank, tiles.world[codes[MARGIN:-MARGIN, MARGIN:-MARGIN]])

    def render_players(self, batch: Batch, index: int) -> NDArray[np.uint8]:
        """Return the views of the players of game `index`, [N, 88, 88, 3] uint8, whatever channels they observe."""
        games, ids = self._game_with_codes(batch, index), np.zeros((1, self._engine.n_agents, 121), np.int32)
        empty = np.zeros((0, 0, 0), np.float32)
        outputs = Outputs(empty, empty, ids[:0], ids, empty)
        batch_loop.write_views(0, 0, outputs, games, self._engine.tables.settings, self._tables("cpu", True))
        return paint(self._load_tiles().bank, ids.reshape(-1, *VIEW))

    def _game_with_codes(self, batch: Batch, index: int) -> Games:
        """Return one game on the host, with `codes` computed by `batch_loop.write_codes`, uncompiled."""
        engine, games = self._engine, batch.one_game(index).arrays()
        batch_loop.write_codes(0, 0, games, engine.tables.settings, engine.beams, self._tables("cpu", False))
        return games

    def _tables(self, device: str, has_tiles: bool) -> ViewTables:
        game_map, codes = self._engine.setup.game_map, self._engine.codes
        tables = ViewTables(
            base=codes.base,
            places=np.concatenate([game_map.apples, game_map.dirt, game_map.river]),
            offsets=view_offsets(game_map),
            grids=codes.grid().view(np.int32).reshape(4, -1),
            tiles=np.array(self._load_tiles().player).reshape(4, -1) if has_tiles else np.zeros((4, 0), np.int32),
        )
        return ViewTables(*(int32_table(table, device) for table in tables))

    def _allocate_frame(self) -> dict[str, tuple[Any, Any]]:
        """Return new arrays for one frame: for each channel, the players' array and the loops' view of it."""
        engine, shape = self._engine, (self._games, self._engine.n_agents)
        frame: dict[str, tuple[Any, Any]] = dict.fromkeys(("grid", "ids"), (None, engine.empty_grids))
        if self.has_grids:
            grid = torch.zeros((*shape, *GRID_SHAPE), dtype=torch.uint8, device=engine.device)
            frame["grid"] = grid, array(grid.view(torch.int32).view(*shape, -1))
        if self.has_pixels:
            ids = torch.zeros((*shape, *VIEW), dtype=torch.int32, device=engine.device)
            frame["ids"] = ids, array(ids.view(*shape, -1))
            pixels = torch.zeros((*shape, *PIXELS_SHAPE), dtype=torch.uint8, device=engine.device)
            frame["pixels"] = pixels, None
        return frame

    def vector(self) -> tuple[torch.Tensor, Any]:
        """Return a new array for the channel `vector`, [B, N, 1 or 2] float32, for players and for the loops.

        Its entries are those of `Substrate.vector_observations`.
        """
        engine = self._engine
        shape = (self._games, engine.n_agents, len(SUBSTRATES[engine.setup.game_map.substrate].vector_observations))
        vector = torch.empty(shape, dtype=torch.float32, device=engine.device)
        return vector, array(vector)

    def _load_tiles(self) -> Tiles:
        game_map = self._engine.setup.game_map
        return load_tiles(game_map.substrate, game_map.text, self._engine.n_agents, self._source)


_LINE_BYTES = SIZE * 3
"""Bytes of a line of a tile: three 64-bit integers, which are copied at once."""
_BYTES_PER_THREAD = 1 << 20
"""Bytes of output that justify a thread."""


class ViewRenderer:
    """Converts tile numbers of cells into images.

    Args:
        bank: the tiles, [n_tiles, 8, 8, 3] uint8.
        device: torch device of the tile numbers and of the images.
    """

    def __init__(self, bank: NDArray[np.uint8], device: str = "cpu") -> None:
        self.lines = torch.tensor(bank).reshape(-1, SIZE, _LINE_BYTES).view(torch.int64).to(device)

    def expand(self, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write images of cells given by tile numbers into `out`, and return it.

        Args:
            ids: tile numbers [..., R, C] int32, contiguous.
            out: images [..., 8 * R, 8 * C, 3] uint8, contiguous.
        """
        ids = ids.reshape(-1, ids.shape[-1])
        lines = out.view(-1).view(torch.int64).view(len(ids), SIZE, ids.shape[1], -1)
        if ids.device.type == "cpu":
            threads = min(torch.get_num_threads(), out.numel() // _BYTES_PER_THREAD)
            copy = compiled_functions().copy_tiles
            run_in_threads(copy, max(1, threads), len(ids), (ids.numpy(), self.lines.numpy(), lines.numpy()))
        else:
            offsets = torch.arange(SIZE, dtype=torch.int32, device=ids.device)[:, None]
            indices = torch.add(offsets, ids[:, None, :], alpha=SIZE).view(-1)
            torch.index_select(self.lines.flatten(0, 1), 0, indices, out=lines.view(len(indices), -1))
        return out
