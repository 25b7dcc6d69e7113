"""Frames of a game, drawn by MiniGrid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TILE = 32
"""Pixels of a cell along either axis."""

UNSEEN_GRAY = 200


def draw(
    cells: NDArray[np.uint8],
    position: tuple[int, int],
    heading: int,
    seen: NDArray[np.bool_] | None = None,
    bright: NDArray[np.bool_] | None = None,
) -> NDArray[np.uint8]:
    """Return a frame of the game, [32 * H, 32 * W, 3] uint8.

    Args:
        cells: kind, color and state, [W, H, 3].
        position: the agent's cell (x, y).
        heading: 0 east, 1 south, 2 west, 3 north.
        seen: which cells to show, [W, H]; the others are light gray. None: all are shown.
        bright: which cells to highlight, [W, H]; None: none.
    """
    from minigrid.core.grid import Grid
    from minigrid.core.world_object import WorldObj

    width, height, _ = cells.shape
    image = np.full((height, TILE, width, TILE, 3), UNSEEN_GRAY, dtype=np.uint8)
    for x in range(width):
        for y in range(height):
            if seen is None or seen[x, y]:
                image[y, :, x] = Grid.render_tile(
                    WorldObj.decode(*cells[x, y].tolist()),
                    agent_dir=heading if (x, y) == position else None,
                    highlight=bright is not None and bool(bright[x, y]),
                    tile_size=TILE,
                )
    return image.reshape(height * TILE, width * TILE, 3)
