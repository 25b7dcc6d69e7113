"""Codes of cells (ground, avatar and beam as one integer), and the tile of 8 x 8 pixels that displays each code.

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
from llmrl.envs.substrate.grid_text import BEAMS, find_content
from llmrl.envs.substrate.maps import GameMap, parse_map
from llmrl.envs.substrate.sprites import TILE_SIZE, SpriteSet
from llmrl.envs.substrate.substrate_rules import SubstrateName

WATER_FRAMES = 4
"""Number of frames in the animation of the water."""


@dataclass(frozen=True)
class CellCodes:
    """The codes of one map with `n_agents` players.

    Attributes:
        n_agents: number of players.
        grounds: names of the sprites of each ground, bottom to top; ground 0 has none.
        base_codes: default ground of each cell, [n_cells]: clean river in frame 0, no apple, grass not withered. To
            get the current ground, add to it the frame of the water, `WATER_FRAMES` if dirty, 1 with an apple and 2 if
            the grass has withered.
    """

    n_agents: int
    grounds: tuple[tuple[str, ...], ...]
    base_codes: NDArray[np.int32]

    @property
    def n_grounds(self) -> int:
        return len(self.grounds)

    @property
    def n_avatars(self) -> int:
        """Number of avatar codes. 0: no player; 1 + 4 * player index + heading; the last one: the viewing player."""
        return 2 + 4 * self.n_agents

    @property
    def n_codes(self) -> int:
        return self.n_grounds * self.n_avatars * len(BEAMS)

    def split_codes(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return ground, avatar and beam of every code, each [n_codes]."""
        code = np.arange(self.n_codes)
        return code % self.n_grounds, code // self.n_grounds % self.n_avatars, code // self.n_grounds // self.n_avatars

    def grid_table(self) -> NDArray[np.uint8]:
        """Return the four bytes of the channel `grid` for each heading of the viewing player and every code.

        The shape is [4, n_codes, 4] uint8; the bytes are described in `grid_text.count_grid_codes`.
        """
        ground, avatar, beam = self.split_codes()
        table = np.zeros((4, self.n_codes, 4), np.uint8)
        # The content of a cell is that of its sprite with the highest index into `grid_text.CONTENTS`.
        contents = np.array([max(map(find_content, stack), default=0) for stack in self.grounds], np.uint8)
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
    base_codes = np.zeros(game_map.n_cells, np.int32)
    cell_types = np.full(game_map.n_cells, "", dtype="<U5")
    cell_types[game_map.apples] = "apple"
    cell_types[game_map.river] = "river"
    cell_types[game_map.dirt] = "dirt"
    for cell in np.flatnonzero(game_map.stack_indices):
        key = (int(game_map.stack_indices[cell]), str(cell_types[cell]))
        if key not in indices:
            indices[key] = len(grounds)
            can_wither = game_map.substrate == "harvest"
            grounds += _sprite_stacks(game_map.stacks[key[0]], key[1], can_wither)
        base_codes[cell] = indices[key]
    return CellCodes(n_agents, tuple(grounds), base_codes)


def _sprite_stacks(stack: tuple[str, ...], cell_type: str, can_wither: bool) -> list[tuple[str, ...]]:
    """Return the possible sprite stacks of a cell, in the order of the offsets in `CellCodes.base_codes`."""
    if cell_type in ("river", "dirt"):
        frames = [f"water_{i + 1}" for i in range(WATER_FRAMES)]
        waters = [tuple(frame if sprite == "river" else sprite for sprite in stack) for frame in frames]
        return waters if cell_type == "river" else waters + [(*water, "dirt") for water in waters]
    if cell_type == "apple" and not can_wither:
        return [stack, (*stack, "apple")]
    if cell_type == "apple":
        withered = tuple("floor" if sprite == "grass" else sprite for sprite in stack)
        return [stack, (*stack, "apple"), withered, (*withered, "apple")]
    return [stack]


@dataclass(frozen=True)
class Tiles:
    """Images of all codes.

    Attributes:
        ids_by_heading: index into `bank` of each code in the view of a player with each heading, [4, n_codes].
        world_ids: index into `bank` of each code in a frame of the whole map, north up, [n_codes].
        bank: distinct tiles, [n_tiles, 8, 8, 3] uint8 RGB; the first one is black, for cells outside the map and for
            removed players.
    """

    ids_by_heading: NDArray[np.int32]
    world_ids: NDArray[np.int32]
    bank: NDArray[np.uint8]


def load_tiles(substrate: SubstrateName, text: str, n_agents: int, source: sprites.TileSource) -> Tiles:
    """Return the tiles of a map with `n_agents` players. They are cached per process and must not be changed.

    Raises:
        ConfigError, EngineError: see `maps.parse_map` and `sprites.load_sprites`.
    """
    return _load_tiles(substrate, text, n_agents, sprites.resolve_source(source))


@functools.lru_cache(maxsize=16)
def _load_tiles(substrate: SubstrateName, text: str, n_agents: int, source: sprites.TileSource) -> Tiles:
    """Paint every code for each heading of the viewer, and assign indices to the distinct images."""
    codes = assign_codes(parse_map(substrate, text), n_agents)
    sprite_set = sprites.load_sprites(substrate, n_agents, source)
    tiles = np.stack([_paint_codes(codes, sprite_set, heading) for heading in range(4)])
    tiles[:, codes.split_codes()[0] == 0] = 0
    bank, indices = _find_distinct(tiles.reshape(4 * codes.n_codes, -1))
    ids_by_heading = indices.reshape(4, codes.n_codes)
    # The arrays are cached and shared. A frame of the map has the tiles that a player who faces north would see.
    ids_by_heading.setflags(write=False)
    bank.setflags(write=False)
    return Tiles(ids_by_heading, ids_by_heading[0], bank.reshape(-1, TILE_SIZE, TILE_SIZE, 3))


def render_tiles(bank: NDArray[np.uint8], tile_ids: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return the image [..., 8 * R, 8 * C, 3] of cells, given their tile indices [..., R, C]."""
    *batch_shape, rows, columns = tile_ids.shape
    tile_rows: NDArray[np.uint8] = bank[tile_ids].swapaxes(-4, -3)
    return tile_rows.reshape(*batch_shape, TILE_SIZE * rows, TILE_SIZE * columns, 3)


def blend(bottom: NDArray[np.uint8], top: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the RGB colors [..., 3] of RGBA `top` [..., 4] over RGB `bottom` [..., 3], rounded as in Melting Pot."""
    alpha = top[..., 3:].astype(np.uint16)
    # At most 255 * 255 + 127, which fits into 16 bits.
    mixture = (255 - alpha) * bottom + alpha * top[..., :3] + np.uint16(127)
    return (mixture // np.uint16(255)).astype(np.uint8)


def _paint_codes(codes: CellCodes, sprite_set: SpriteSet, heading: int) -> NDArray[np.uint8]:
    """Return the image of every code in the view of a player with a given heading, [n_codes, 8, 8, 3]."""

    def paint_stack(stack: Sequence[str]) -> NDArray[np.uint8]:
        images = [sprite_set.sprites[name][heading] for name in stack]
        return functools.reduce(blend, images, np.zeros((TILE_SIZE, TILE_SIZE, 3), np.uint8))

    opponents = sprite_set.avatars[:, (np.arange(4) - heading) % 4].reshape(-1, TILE_SIZE, TILE_SIZE, 4)
    nobody = np.zeros((1, TILE_SIZE, TILE_SIZE, 4), np.uint8)
    avatars = np.concatenate([nobody, opponents, sprite_set.viewer[None]])
    ground_images = np.stack([paint_stack(stack) for stack in codes.grounds])
    cells = blend(ground_images[None], avatars[:, None])
    layers = [cells] + [blend(cells, sprite_set.beams[beam]) for beam in range(len(BEAMS) - 1)]
    return np.stack(layers).reshape(codes.n_codes, TILE_SIZE, TILE_SIZE, 3)


def _find_distinct(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the distinct rows of an array in order of first occurrence, and the index of each row among them."""
    _, first_indices, sorted_indices = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first_indices)
    return rows[first_indices[order]], np.argsort(order)[sorted_indices.ravel()].astype(np.int32)
