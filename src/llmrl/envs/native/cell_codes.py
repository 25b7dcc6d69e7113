"""Codes of a cell's contents (ground, avatar and beam as one number), and the tile of 8 x 8 pixels that shows a code.

    code = ground + n_grounds * (avatar + n_avatars * beam)

A player's view is 121 codes, which tables convert to tiles of a frame or to the channel `grid`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.substrate import sprites
from llmrl.envs.substrate.grid_text import BEAMS, sprite_content
from llmrl.envs.substrate.maps import GameMap, parse
from llmrl.envs.substrate.sprites import SIZE, SpriteSet
from llmrl.envs.substrate.substrate_rules import SubstrateName

WATER_FRAMES = 4
"""Number of frames of the water's animation."""


@dataclass(frozen=True)
class CellCodes:
    """The codes of one map with `n_agents` players.

    Attributes:
        n_agents: number of players.
        grounds: sprites of each ground, bottom to top; ground 0 has none.
        base: default ground of each cell, [n_cells]: clean river in frame 0, no apple, grass not withered. The current
            ground is `base` + frame of the water + `WATER_FRAMES` if dirty + 1 with an apple + 2 if the grass has
            withered.
    """

    n_agents: int
    grounds: tuple[tuple[str, ...], ...]
    base: NDArray[np.int32]

    @property
    def n_grounds(self) -> int:
        return len(self.grounds)

    @property
    def n_avatars(self) -> int:
        """Number of avatar codes. 0: nobody; 1 + 4 * slot + heading: a player; the last: the viewing player."""
        return 2 + 4 * self.n_agents

    @property
    def n_codes(self) -> int:
        return self.n_grounds * self.n_avatars * len(BEAMS)

    def parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return ground, avatar and beam of every code, each [n_codes]."""
        code = np.arange(self.n_codes)
        return code % self.n_grounds, code // self.n_grounds % self.n_avatars, code // self.n_grounds // self.n_avatars

    def grid(self) -> NDArray[np.uint8]:
        """Return the entries of the channel `grid` for each heading of the viewing player and every code.

        The shape is [4, n_codes, 4] uint8; entries are described in `grid_text.grid_codes`.
        """
        ground, avatar, beam = self.parts()
        table = np.zeros((4, self.n_codes, 4), np.uint8)
        # Of several sprites on a cell, the one with the highest index into `grid_text.CONTENTS` counts.
        contents = np.array([max(map(sprite_content, stack), default=0) for stack in self.grounds], np.uint8)
        is_viewer = avatar == self.n_avatars - 1
        is_opponent = (avatar > 0) & ~is_viewer
        slot, heading = (avatar - 1) // 4, (avatar - 1) % 4
        for direction in range(4):
            table[direction, :, 0] = contents[ground]
            table[direction, :, 1] = np.where(is_opponent, 2 + slot, is_viewer)
            table[direction, :, 2] = np.where(is_opponent, 1 + (heading - direction) % 4, is_viewer)
            table[direction, :, 3] = beam
        table[:, ground == 0] = 0  # players do not see avatars or beams outside the map
        return table


def assign_codes(game_map: GameMap, n_agents: int) -> CellCodes:
    """Return the codes for a map: one for each static ground, and one for each state of river cells and apple sites."""
    grounds: list[tuple[str, ...]] = [()]
    indices: dict[tuple[int, str], int] = {}
    base = np.zeros(game_map.n_cells, np.int32)
    cell_types = np.full(game_map.n_cells, "", dtype="<U5")
    cell_types[game_map.apples] = "apple"
    cell_types[game_map.river] = "river"
    cell_types[game_map.dirt] = "dirt"
    for cell in np.flatnonzero(game_map.stack_indices):
        key = (int(game_map.stack_indices[cell]), str(cell_types[cell]))
        if key not in indices:
            indices[key] = len(grounds)
            grounds += _sprite_stacks(game_map.stacks[key[0]], key[1], withers=game_map.substrate == "harvest")
        base[cell] = indices[key]
    return CellCodes(n_agents, tuple(grounds), base)


def _sprite_stacks(stack: tuple[str, ...], kind: str, withers: bool) -> list[tuple[str, ...]]:
    """Return the possible stacks of sprites of a cell of a kind, in the order of the offsets in `CellCodes.base`."""
    if kind in ("river", "dirt"):
        frames = [f"water_{i + 1}" for i in range(WATER_FRAMES)]
        waters = [tuple(frame if sprite == "river" else sprite for sprite in stack) for frame in frames]
        return waters if kind == "river" else waters + [(*water, "dirt") for water in waters]
    if kind == "apple" and not withers:
        return [stack, (*stack, "apple")]
    if kind == "apple":
        withered = tuple("floor" if sprite == "grass" else sprite for sprite in stack)
        return [stack, (*stack, "apple"), withered, (*withered, "apple")]
    return [stack]


@dataclass(frozen=True)
class Tiles:
    """Images of all codes.

    Attributes:
        player: the tile of each code as a player with each heading sees it, [4, n_codes] indices into `bank`.
        world: the tile of each code in a frame of the whole world, north up, [n_codes] indices into `bank`.
        bank: distinct tiles, [n_tiles, 8, 8, 3] RGB; the first is black, for cells outside the map and for players who
            are out of the game.
    """

    player: NDArray[np.int32]
    world: NDArray[np.int32]
    bank: NDArray[np.uint8]


def load_tiles(substrate: SubstrateName, text: str, n_agents: int, source: sprites.Source) -> Tiles:
    """Return the tiles of a map with `n_agents` players. They are cached per process and must not be changed.

    Raises:
        ConfigError, EngineError: the map or the sprites are not available; see `maps.parse` and `sprites.load`.
    """
    return _load_tiles(substrate, text, n_agents, sprites.resolve_source(source))


@functools.lru_cache(maxsize=16)
def _load_tiles(substrate: SubstrateName, text: str, n_agents: int, source: sprites.Source) -> Tiles:
    """Paint every code for every viewer, and number the distinct images."""
    codes = assign_codes(parse(substrate, text), n_agents)
    sprite_set = sprites.load(substrate, n_agents, source)
    tiles = np.stack([_paint_codes(codes, sprite_set, heading) for heading in range(4)])
    tiles[:, codes.parts()[0] == 0] = 0
    bank, indices = _distinct(tiles.reshape(4 * codes.n_codes, -1))
    player = indices.reshape(4, codes.n_codes)
    # The arrays are cached and shared. The world is drawn as a player who faces north sees it, without that player.
    player.setflags(write=False)
    bank.setflags(write=False)
    return Tiles(player, player[0], bank.reshape(-1, SIZE, SIZE, 3))


def paint(bank: NDArray[np.uint8], ids: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return images of cells given by tile numbers: [..., R, C] becomes [..., 8 * R, 8 * C, 3]."""
    *batch_shape, rows, columns = ids.shape
    lines: NDArray[np.uint8] = bank[ids].swapaxes(-4, -3)
    return lines.reshape(*batch_shape, SIZE * rows, SIZE * columns, 3)


def blend(bottom: NDArray[np.uint8], top: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return RGBA [..., 4] painted over RGB [..., 3], with the engine's rounding; shapes broadcast."""
    alpha = top[..., 3:].astype(np.uint16)
    # At most 255 * 255 + 127, which fits into 16 bits.
    mixture = (255 - alpha) * bottom + alpha * top[..., :3] + np.uint16(127)
    return (mixture // np.uint16(255)).astype(np.uint8)


def _paint_codes(codes: CellCodes, sprite_set: SpriteSet, heading: int) -> NDArray[np.uint8]:
    """Return every code as a viewer with a given heading sees it, [n_codes, 8, 8, 3]."""

    def paint_stack(stack: Sequence[str]) -> NDArray[np.uint8]:
        images = [sprite_set.sprites[name][heading] for name in stack]
        return functools.reduce(blend, images, np.zeros((SIZE, SIZE, 3), np.uint8))

    opponents = sprite_set.avatars[:, (np.arange(4) - heading) % 4].reshape(-1, SIZE, SIZE, 4)
    nobody = np.zeros((1, SIZE, SIZE, 4), np.uint8)
    avatars = np.concatenate([nobody, opponents, sprite_set.viewer[None]])
    ground_images = np.stack([paint_stack(stack) for stack in codes.grounds])
    cells = blend(ground_images[None], avatars[:, None])
    layers = [cells] + [blend(cells, sprite_set.beams[beam]) for beam in range(len(BEAMS) - 1)]
    return np.stack(layers).reshape(codes.n_codes, SIZE, SIZE, 3)


def _distinct(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the distinct rows of an array in order of first occurrence, and the index of each row among them."""
    indices_by_tile: dict[bytes, int] = {}
    width = rows.shape[1]
    buffer = rows.tobytes()
    indices = [
        indices_by_tile.setdefault(buffer[offset : offset + width], len(indices_by_tile))
        for offset in range(0, len(buffer), width)
    ]
    bank = np.frombuffer(b"".join(indices_by_tile), np.uint8).reshape(-1, width)
    return bank, np.array(indices, np.int32)
