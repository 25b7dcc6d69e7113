"""Observations of the players of a batch of games, in every channel, and frames of single games for videos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.records import Observation
from llmrl.envs.native import map_geometry, tile_copy_cpp, view_loops
from llmrl.envs.native.batch import Batch
from llmrl.envs.native.engine import Engine
from llmrl.envs.native.game_arrays import PLAYER, Games, Outputs, ViewTables, array, fields
from llmrl.envs.native.tiles import Tiles
from llmrl.envs.native.tiles import tiles as tiles_of
from llmrl.envs.substrate.grid_text import observation_text
from llmrl.envs.substrate.maps import MARGIN
from llmrl.envs.substrate.memory_layout import CELLS, PIXELS, VECTOR
from llmrl.envs.substrate.sprites import SIZE, Source

_N_FRAMES = 3
"""Number of frames that are used in turn. An observation stays valid during the next two steps or resets."""


class ObservationBuilder:
    """Makes the observations of the games of an engine; the loops write into its arrays (`game_loop.play`).

    Args:
        engine: engine of the games.
        games: number of games.
        channels: channels that players observe, of `pixels`, `grid`, `vector` and `text`.
        tiles: source of the sprites.
    """

    def __init__(self, engine: Engine, games: int, channels: Sequence[str], tiles: Source) -> None:
        self._engine, self._games, self._channels, self._source = engine, games, tuple(channels), tiles
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
        if engine.on_gpu:
            state += 4 * (engine.n_cells + 9 * max(engine.n_apples, 3 * n))
        step = 4 * _N_FRAMES * (8 + 8 * n)
        grid = self.has_grids * 4 * 121 * _N_FRAMES
        pixels = self.has_pixels * (4 * 121 + _N_FRAMES * int(np.prod(PIXELS)))
        return state + step + (grid + pixels) * n

    def tables(self) -> ViewTables:
        """Return the constants that `view_loops` reads."""
        if not (self.has_grids or self.has_pixels):
            return self._engine.no_views
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

    def observation(
        self,
        frame: dict[str, tuple[Any, Any]],
        vector: torch.Tensor | None,
        batch: Batch,
        has_texts: Any,
        report_function: Callable[[int, int], Mapping[str, Any]] | None = None,
    ) -> Observation:
        """Return all requested channels, from the outputs of the loops.

        `has_texts` [B]: whether the players of each game get a text; others get "". `report_function`: function from
        game and player to the entries about the mechanism.
        """
        channels: dict[str, Any] = {}
        if self.has_pixels:
            channels["pixels"] = self.renderer.expand(frame["ids"][0], out=frame["pixels"][0])
        if self.has_grids:
            channels["grid"] = frame["grid"][0]
        if vector is not None:
            channels["vector"] = vector
        if "text" in self._channels:
            channels["text"] = self._texts(batch, channels["grid"], channels["vector"], has_texts, report_function)
        return channels

    def world_codes(self, batch: Batch, index: int) -> NDArray[np.int64]:
        """Return the codes of the cells of game `index`, [height, width]."""
        game_map = self._engine.setup.game_map
        cells = self._game_with_codes(batch, index).codes[0].reshape(-1, game_map.stride)
        rows = slice(MARGIN, MARGIN + game_map.height)
        codes: NDArray[np.int64] = cells[rows, MARGIN : MARGIN + game_map.width].astype(np.int64)
        return codes

    def world_image(self, batch: Batch, index: int) -> NDArray[np.uint8]:
        """Return a frame of the whole world of game `index`, [8 * height, 8 * width, 3] uint8."""
        return world_image(self._load_tiles(), self.world_codes(batch, index))

    def players(self, batch: Batch, index: int) -> NDArray[np.uint8]:
        """Return the views of the players of game `index`, [N, 88, 88, 3] uint8, whatever channels they observe."""
        games, ids = self._game_with_codes(batch, index), np.zeros((1, self._engine.n_agents, 121), np.int32)
        empty = np.zeros((0, 0, 0), np.float32)
        outputs = Outputs(empty, empty, ids[:0], ids, empty)
        view_loops.write_views(0, 0, outputs, games, self._engine.settings(True), self._tables("cpu", True))
        tiles = self._load_tiles().bank[ids.reshape(-1, *map_geometry.VIEW)]  # [N, 11, 11, 8, 8, 3]
        return np.ascontiguousarray(tiles.transpose(0, 1, 3, 2, 4, 5)).reshape(-1, *PIXELS)

    def _game_with_codes(self, batch: Batch, index: int) -> Games:
        """Return one game on the host, with `codes` computed by `view_loops.write_codes`, uncompiled."""
        engine, games = self._engine, batch.one_game(index).arrays()
        view_loops.write_codes(0, 0, games, engine.settings(True), engine.beams, self._tables("cpu", False))
        return games

    def _tables(self, device: str, has_tiles: bool) -> ViewTables:
        game_map, codes = self._engine.setup.game_map, self._engine.codes
        tables = ViewTables(
            base=codes.base,
            places=np.concatenate([game_map.apples, game_map.dirt, game_map.river]),
            offsets=map_geometry.views(game_map),
            grids=codes.grid().view(np.int32).reshape(4, -1),
            tiles=np.array(self._load_tiles().player).reshape(4, -1) if has_tiles else np.zeros((4, 0), np.int32),
        )
        return ViewTables(*(array(map_geometry.tensor(table.astype(np.int32), device)) for table in tables))

    def _allocate_frame(self) -> dict[str, tuple[Any, Any]]:
        """Return new arrays for one frame: for each channel, the players' array and the loops' view of it."""
        engine, shape = self._engine, (self._games, self._engine.n_agents)
        frame: dict[str, tuple[Any, Any]] = dict.fromkeys(("grid", "ids"), (None, engine.no_grids))
        if self.has_grids:
            grid = torch.zeros((*shape, *CELLS), dtype=torch.uint8, device=engine.device)
            frame["grid"] = grid, array(grid.view(torch.int32).view(*shape, -1))
        if self.has_pixels:
            ids = torch.zeros((*shape, *map_geometry.VIEW), dtype=torch.int32, device=engine.device)
            frame["ids"] = ids, array(ids.view(*shape, -1))
            pixels = torch.zeros((*shape, *PIXELS), dtype=torch.uint8, device=engine.device)
            frame["pixels"] = pixels, None
        return frame

    def vector(self) -> tuple[torch.Tensor, Any]:
        """Return a new array for the channel `vector`, [B, N, 1 or 2] float32, for players and for the loops.

        Its entries are those of `memory_layout.VECTOR`.
        """
        engine = self._engine
        shape = (self._games, engine.n_agents, len(VECTOR[engine.setup.game_map.substrate]))
        vector = torch.empty(shape, dtype=torch.float32, device=engine.device)
        return vector, array(vector)

    def _load_tiles(self) -> Tiles:
        game_map = self._engine.setup.game_map
        return tiles_of(game_map.substrate, game_map.text, self._engine.n_agents, self._source)

    def _texts(
        self,
        batch: Batch,
        grid: torch.Tensor,
        vector: torch.Tensor,
        has_texts: NDArray[np.bool_],
        report_function: Callable[[int, int], Mapping[str, Any]] | None,
    ) -> NDArray[Any]:
        """Return the text observation of each player, [B, N] object; it is computed on the host."""
        setup = self._engine.setup
        views, scalars = grid.cpu().numpy(), vector.cpu().numpy()
        alive = fields(batch.players, PLAYER)["alive"].cpu().numpy() == 1
        texts = np.full(views.shape[:2], "", dtype=object)
        for game, player in np.argwhere(alive & has_texts[:, None]).tolist():
            cells, numbers = views[game, player], scalars[game, player]
            report = None if report_function is None else report_function(game, player)
            texts[game, player] = observation_text(cells, setup.game_map.substrate, setup.rules, numbers, report)
        return texts


_LINE_BYTES = SIZE * 3
"""Bytes of a line of a tile: three 64-bit integers, which are copied at once."""
_TILE_BYTES = SIZE * _LINE_BYTES
_CHUNK_ROWS = 2816
"""Number of rows of cells whose line numbers are computed together on the CPU (256 views): 1 MB, which fits into
caches."""
_MIN_STREAM_BYTES = 4 << 20
"""Minimum bytes of output for which the compiled loop bypasses the caches."""
_BYTES_PER_THREAD = 1 << 20
"""Bytes of output that justify a thread."""


class ViewRenderer:
    """Converts codes or tile numbers of cells into images.

    Args:
        bank: the tiles, [n_tiles, 8, 8, 3] uint8. To paint from codes instead of tile numbers, give the tile of every
            code: `tiles.bank[tiles.player.reshape(-1)]`.
        device: torch device of the tile numbers and of the images.
        compiled: whether to use the compiled loop (`tile_copy_cpp.py`) on the CPU, where there is a compiler.

    Raises:
        ConfigError: the bank has another shape.
    """

    def __init__(self, bank: NDArray[np.uint8], device: str | torch.device = "cpu", compiled: bool = True) -> None:
        if bank.dtype != np.uint8 or bank.ndim != 4 or bank.shape[1:] != (SIZE, SIZE, 3):
            raise ConfigError(
                f"a bank of tiles must be [n_tiles, {SIZE}, {SIZE}, 3] uint8, got {bank.dtype} {bank.shape}"
            )
        self.n_tiles = len(bank)
        self._lines = torch.tensor(bank).reshape(-1, _LINE_BYTES).view(torch.int64).to(device)
        self._offsets = torch.arange(SIZE, dtype=torch.int32, device=device)[:, None]
        self._compiled = tile_copy_cpp.load() if compiled and self._lines.device.type == "cpu" else None

    def expand(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return images of cells given by tile numbers: [..., R, C] becomes [..., 8 * R, 8 * C, 3] uint8.

        Args:
            ids: int16, int32 or int64, in [0, n_tiles).
            out: where to write, contiguous; None allocates. With thousands of views give the same one at each step:
                allocating memory costs more than the copy.

        Returns:
            `out`.

        Raises:
            ValueError: `out` has another shape or layout.
            IndexError: an id is not in [0, n_tiles) (on a GPU, PyTorch raises its own error).
        """
        *batch_shape, rows, columns = ids.shape
        shape = (*batch_shape, SIZE * rows, SIZE * columns, 3)
        if out is None:
            out = torch.empty(shape, dtype=torch.uint8, device=ids.device)
        elif out.shape != shape or out.dtype != torch.uint8 or not out.is_contiguous():
            raise ValueError(f"out must be contiguous uint8 {list(shape)}, got {out.dtype} {list(out.shape)}")
        rows_of_ids = ids.reshape(-1, columns) if ids.numel() else ids.new_empty((0, columns))
        if not rows_of_ids.numel():
            return out
        if self._compiled is not None:
            self._copy(self._compiled, rows_of_ids, out)
        else:
            self._select(rows_of_ids, out.view(-1).view(torch.int64).view(-1, _LINE_BYTES // 8))
        return out

    def _copy(self, loop: tile_copy_cpp.Expand, ids: torch.Tensor, out: torch.Tensor) -> None:
        if ids.dtype not in (torch.int16, torch.int32):
            ids = ids.to(torch.int32)
        ids = ids.contiguous()
        rows, columns = ids.shape
        size = out.numel()
        threads = max(1, min(torch.get_num_threads(), size // _BYTES_PER_THREAD))
        addresses = ids.data_ptr(), ids.element_size(), self._lines.data_ptr(), out.data_ptr()
        if loop(*addresses, rows, columns, self.n_tiles, size >= _MIN_STREAM_BYTES, threads):
            raise IndexError(f"tiles must be 0 to {self.n_tiles - 1}, got {int(ids.min())} to {int(ids.max())}")

    def _select(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        """Copy the lines of tiles in the order of the image, in one pass; `out` is [n_lines, 3] int64."""
        rows, columns = ids.shape
        chunk = min(rows, _CHUNK_ROWS) if ids.device.type == "cpu" else rows
        buffer = torch.empty((chunk, SIZE, columns), dtype=torch.int32, device=ids.device)
        if ids.dtype == torch.int64:
            ids = ids.to(torch.int32)
        for start in range(0, rows, chunk):
            stop = min(start + chunk, rows)
            lines = buffer[: stop - start]
            torch.add(self._offsets, ids[start:stop, None, :], alpha=SIZE, out=lines)
            part = out[start * SIZE * columns : stop * SIZE * columns]
            torch.index_select(self._lines, 0, lines.view(-1), out=part)


def world_image(tiles: Tiles, codes: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return an image of the whole world, [8 * height, 8 * width, 3] uint8.

    `codes` [height, width] are those of its cells.
    """
    height, width = codes.shape
    lines: NDArray[np.uint8] = tiles.bank[tiles.world[codes]].transpose(0, 2, 1, 3, 4)
    return lines.reshape(SIZE * height, SIZE * width, 3)
