"""From the numbers of tiles to pictures: thousands of views a step, bound by how fast memory can be written."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.envs.native import tile_copy_cpp
from llmrl.envs.native.sprites import SIZE
from llmrl.envs.native.tiles import Tiles

_LINE = SIZE * 3
"""Bytes of a line of a tile: three numbers of 64 bits, which are copied at once."""
_TILE = SIZE * _LINE
_CHUNK = 2816
"""Rows of cells whose line numbers are worked out together on the CPU (256 views): a megabyte, which caches hold."""
_STREAM = 4 << 20
"""Bytes of output from which the compiled loop writes past the caches: less is better left in them."""
_SHARE = 1 << 20
"""Bytes of output that are worth a thread."""


class ViewRenderer:
    """Paints views.

    Args:
        bank: the tiles, [n_tiles, 8, 8, 3] uint8. To paint from codes instead of tile numbers, give the tile of every
            code: `tiles.bank[tiles.player.reshape(-1)]`.
        device: torch device of the numbers and of the pictures.
        compiled: whether to use the compiled loop (`tile_copy_cpp.py`) on the CPU, where there is a compiler.

    Raises:
        ConfigError: the bank has another shape.
    """

    def __init__(self, bank: NDArray[np.uint8], device: str | torch.device = "cpu", compiled: bool = True) -> None:
        if bank.dtype != np.uint8 or bank.ndim != 4 or bank.shape[1:] != (SIZE, SIZE, 3):
            raise ConfigError(f"a bank of tiles is [n_tiles, {SIZE}, {SIZE}, 3] uint8, got {bank.dtype} {bank.shape}")
        self.n_tiles = len(bank)
        self._lines = torch.tensor(bank).reshape(-1, _LINE).view(torch.int64).to(device)
        self._offsets = torch.arange(SIZE, dtype=torch.int32, device=device)[:, None]
        self._compiled = tile_copy_cpp.load() if compiled and self._lines.device.type == "cpu" else None

    def expand(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Pictures of cells given by their tiles, [..., R, C] to [..., 8 R, 8 C, 3] uint8.

        Args:
            ids: int16, int32 or int64, in [0, n_tiles).
            out: where to write, contiguous; None allocates. With thousands of views give the same one at each step:
                new memory costs more than the picture.

        Returns:
            `out`.

        Raises:
            ValueError: `out` has another shape or layout.
            IndexError: an id that no tile has (on a GPU PyTorch says so in its own way).
        """
        *lead, rows, columns = ids.shape
        shape = (*lead, SIZE * rows, SIZE * columns, 3)
        if out is None:
            out = torch.empty(shape, dtype=torch.uint8, device=ids.device)
        elif out.shape != shape or out.dtype != torch.uint8 or not out.is_contiguous():
            raise ValueError(f"out must be contiguous uint8 {list(shape)}, got {out.dtype} {list(out.shape)}")
        flat = ids.reshape(-1, columns) if ids.numel() else ids.new_empty((0, columns))
        if not flat.numel():
            return out
        if self._compiled is not None:
            self._copy(self._compiled, flat, out)
        else:
            self._select(flat, out.view(-1).view(torch.int64).view(-1, _LINE // 8))
        return out

    def _copy(self, loop: tile_copy_cpp.Expand, ids: torch.Tensor, out: torch.Tensor) -> None:
        if ids.dtype not in (torch.int16, torch.int32):
            ids = ids.to(torch.int32)
        ids = ids.contiguous()
        rows, columns = ids.shape
        size = out.numel()
        threads = max(1, min(torch.get_num_threads(), size // _SHARE))
        addresses = ids.data_ptr(), ids.element_size(), self._lines.data_ptr(), out.data_ptr()
        if loop(*addresses, rows, columns, self.n_tiles, size >= _STREAM, threads):
            raise IndexError(f"tiles are 0 to {self.n_tiles - 1}, got {int(ids.min())} to {int(ids.max())}")

    def _select(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        """Lines of tiles in the order of the picture, [n_rows, 8, n_columns], are picked in one pass; `out`
        [n_lines, 3] int64."""
        rows, columns = ids.shape
        chunk = min(rows, _CHUNK) if ids.device.type == "cpu" else rows
        buffer = torch.empty((chunk, SIZE, columns), dtype=torch.int32, device=ids.device)
        if ids.dtype == torch.int64:
            ids = ids.to(torch.int32)
        for start in range(0, rows, chunk):
            stop = min(start + chunk, rows)
            lines = buffer[: stop - start]
            torch.add(self._offsets, ids[start:stop, None, :], alpha=SIZE, out=lines)
            part = out[start * SIZE * columns : stop * SIZE * columns]
            torch.index_select(self._lines, 0, lines.view(-1), out=part)


def world(tiles: Tiles, codes: NDArray[np.integer]) -> NDArray[np.uint8]:
    """A picture of the whole world, [8 height, 8 width, 3] uint8, from the codes of its cells, [height, width]."""
    height, width = codes.shape
    lines: NDArray[np.uint8] = tiles.bank[tiles.world[codes]].transpose(0, 2, 1, 3, 4)
    return lines.reshape(SIZE * height, SIZE * width, 3)
