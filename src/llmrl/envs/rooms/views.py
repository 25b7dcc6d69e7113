"""What agents see: the view MiniGrid gives, and the map of all cells seen so far.

Both rest on one computation of which cells are in sight. A row of a view is an integer, one bit a cell, and how sight
spreads along a row and into the next one is looked up in a table.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.core.records import State
from llmrl.envs.rooms.grid_world import AHEAD, DOOR, OPEN, WALL, GridWorld, as_bytes, code

MAX_VIEW = 31
_LARGEST_TABLE = 9  # 2 * 4**9 entries of two bytes: a megabyte
_NEVER_SEEN = code(0)

Bits = NDArray[np.int64]


@dataclass(frozen=True)
class FieldOfView:
    """What is in sight of each agent. View cells are (i, j) as in MiniGrid: the agent is at (v // 2, v - 1) and looks
    towards j = 0; i grows to its right.

    Attributes:
        index: where in `GridWorld.cells.ravel()` each cell of the view lies, [n, v, v].
        cells: their content, [n, v, v] uint32.
        visible: whether they are in sight, [n, v, v] bool.
    """

    index: NDArray[np.int64]
    cells: NDArray[np.uint32]
    visible: NDArray[np.bool_]


class Viewer:
    """Looks at a `GridWorld` through views of `view_size` x `view_size` cells; walls and closed doors hide what is
    behind.

    Args:
        world: the games; its margin is at least `view_size` - 1.
        view_size: odd, 3 to 31.
    """

    def __init__(self, world: GridWorld, view_size: int) -> None:
        self._world, self._size = world, view_size
        right = np.stack([-AHEAD[:, 1], AHEAD[:, 0]], axis=1)
        i, j = np.meshgrid(np.arange(view_size), np.arange(view_size), indexing="ij")
        away = AHEAD[:, None, None] * (view_size - 1 - j)[None, :, :, None]
        aside = right[:, None, None] * (i - view_size // 2)[None, :, :, None]
        self._offset = (away + aside) @ (world.stride, 1)
        self._bit = 1 << np.arange(view_size)

    def look(self) -> FieldOfView:
        index = self._world.at[:, None, None] + self._offset[self._world.heading]
        cells = self._world.cells.reshape(-1)[index]
        content = as_bytes(cells)
        kind, state = content[..., 0], content[..., 2]
        hides = (kind == WALL) | ((kind == DOOR) & (state != OPEN))
        return FieldOfView(index, cells, self._visible(self._bit @ ~hides))

    def view(self, sight: FieldOfView) -> NDArray[np.uint8]:
        """MiniGrid's `image`: kind, colour and state of what is in sight, and on its own cell what the agent carries.
        [n, v, v, 3] uint8."""
        shown = np.where(sight.visible, sight.cells, 0)
        shown[:, self._size // 2, self._size - 1] = self._world.carrying
        return as_bytes(shown)[..., :3].copy()

    def _visible(self, clear: Bits) -> NDArray[np.bool_]:
        """Cells in sight, [n, v, v], from the bits of those that can be seen through, [n, v (j)].

        `Grid.process_vis` of MiniGrid: from the agent's row outwards, sight spreads along a row through clear cells,
        and from every clear cell in sight to the three cells next to it in the row beyond.
        """
        n, v = clear.shape
        lit = np.empty((n, v), dtype=np.int64)
        seed: Bits = np.full(n, 1 << (v // 2), dtype=np.int64)
        for j in range(v - 1, -1, -1):
            lit[:, j], seed = _spread(seed, clear[:, j], v)
        visible: NDArray[np.bool_] = (lit[:, None, :] & self._bit[None, :, None]) != 0
        return visible


class ExploredMap:
    """Which cells of its grid each agent has had in sight since its game began, and what they hold now.

    Args:
        world: the games.

    Attributes:
        seen: whether each cell was ever in sight, with the world's margin, [n, W + 2 * margin, H + 2 * margin] bool.
    """

    def __init__(self, world: GridWorld) -> None:
        self._world = world
        self.seen = np.zeros(world.cells.shape, dtype=bool)

    def forget(self, games: NDArray[np.int64]) -> None:
        """Nothing has been seen in `games`, which begin anew."""
        self.seen[games] = False

    def add(self, sight: FieldOfView) -> None:
        """Remember what is in sight."""
        self.seen.reshape(-1)[sight.index[sight.visible]] = True

    def image(self) -> NDArray[np.uint8]:
        """Kind, colour, state and agent of every cell, [n, W, H, 4] uint8.

        Seen cells show what they hold now, also out of sight; others are (0, 0, 0). The agent's cell shows what it
        carries, or an empty cell. The fourth number is 4, on the agent's cell its heading.
        """
        world = self._world
        shown = np.where(world.without_margin(self.seen), world.inside, _NEVER_SEEN)
        x, y = world.position
        games = np.arange(len(x))
        shown[games, x, y] = world.carrying
        image = as_bytes(shown)
        image[games, x, y, 3] = world.heading
        return image

    def state_dict(self) -> State:
        return {"seen": self.seen.copy()}

    def load_state_dict(self, state: State) -> None:
        self.seen = state["seen"].copy()


def _spread(seed: Bits, clear: Bits, width: int) -> tuple[Bits, Bits]:
    """Cells of a row in sight, and what they bring into sight in the row beyond; as bits."""
    if width > _LARGEST_TABLE:
        return _spread_bits(seed, clear, width)
    lit, beyond = _tables(width)
    entry = (seed << width) | clear
    return lit[entry], beyond[entry]


@functools.cache
def _tables(width: int) -> tuple[Bits, Bits]:
    """`_spread_bits` of every seed (higher half of the index) and every row (lower half)."""
    seed, clear = np.divmod(np.arange(4**width), 2**width)
    return _spread_bits(seed, clear, width)


def _spread_bits(seed: Bits, clear: Bits, width: int) -> tuple[Bits, Bits]:
    row = (1 << width) - 1
    lit = seed
    for _ in range(width - 1):
        through = lit & clear
        lit = (lit | (through << 1) | (through >> 1)) & row
    through = lit & clear
    return lit, (through | (through << 1) | (through >> 1)) & row
