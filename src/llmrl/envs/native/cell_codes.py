"""Codes of cells (ground, avatar and beam as one integer), and the tile of 8 x 8 pixels that displays each code.

    code = ground + n_grounds * (avatar + n_avatar_codes * beam)

A player's view is 121 codes; tables convert them to tiles of a frame or to the channel `grid`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.substrate import sprites
from llmrl.envs.substrate.grid_text import BEAMS, find_content_code
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
        ground_stacks: names of the sprites of each ground, bottom to top; ground 0 has none.
        base_codes: default ground of each cell, [n_cells]: clean river in frame 0, no apple, grass not withered. To
            get the current ground, add to it the frame of the water, `WATER_FRAMES` if dirty, 1 with an apple and 2 if
            the grass has withered.
    """

    n_agents: int
    ground_stacks: tuple[tuple[str, ...], ...]
    base_codes: NDArray[np.int32]

    @property
    def n_grounds(self) -> int:
        return len(self.ground_stacks)

    @property
    def n_avatar_codes(self) -> int:
        """Number of avatar codes. 0: no player; 1 + 4 * player index + heading; the last one: the viewing player."""
        return 2 + 4 * self.n_agents

    @property
    def n_codes(self) -> int:
        return self.n_grounds * self.n_avatar_codes * len(BEAMS)

    def split_codes(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return ground, avatar and beam of every code, each [n_codes]."""
        avatar_and_beam, ground = np.divmod(np.arange(self.n_codes), self.n_grounds)
        beam, avatar = np.divmod(avatar_and_beam, self.n_avatar_codes)
        return ground, avatar, beam

    def build_grid_table(self) -> NDArray[np.uint8]:
        """Return the four bytes of the channel `grid` for each heading of the viewing player and every code.

        The shape is [4, n_codes, 4] uint8; the bytes are described in `grid_text.count_grid_codes`.
        """
        ground, avatar, beam = self.split_codes()
        table = np.zeros((4, self.n_codes, 4), np.uint8)
        # The content of a cell is that of its sprite with the highest index into `grid_text.CONTENTS`.
        contents = np.array([max(map(find_content_code, stack), default=0) for stack in self.ground_stacks], np.uint8)
        is_viewer = avatar == self.n_avatar_codes - 1
        is_other_player = (avatar > 0) & ~is_viewer
        player_index, heading = (avatar - 1) // 4, (avatar - 1) % 4
        for direction in range(4):
            table[direction, :, 0] = contents[ground]
            table[direction, :, 1] = np.where(is_other_player, 2 + player_index, is_viewer)
            table[direction, :, 2] = np.where(is_other_player, 1 + (heading - direction) % 4, is_viewer)
            table[direction, :, 3] = beam
        table[:, ground == 0] = 0  # players do not see avatars or beams outside the map
        return table


def assign_cell_codes(game_map: GameMap, n_agents: int) -> CellCodes:
    """Return the codes for a map: one for each static ground, and one for each state of river cells and apple sites."""
    ground_stacks: list[tuple[str, ...]] = [()]
    ground_by_key: dict[tuple[int, str], int] = {}
    base_codes = np.zeros(game_map.n_cells, np.int32)
    cell_types = np.full(game_map.n_cells, "", dtype="<U5")
    cell_types[game_map.apple_cells] = "apple"
    cell_types[game_map.clean_river_cells] = "river"
    cell_types[game_map.dirt_cells] = "dirt"
    for cell in np.flatnonzero(game_map.sprite_stack_indices):
        key = (int(game_map.sprite_stack_indices[cell]), str(cell_types[cell]))
        if key not in ground_by_key:
            ground_by_key[key] = len(ground_stacks)
            ground_stacks += _list_sprite_stacks(
                game_map.sprite_stacks[key[0]], key[1], game_map.substrate == "harvest"
            )
        base_codes[cell] = ground_by_key[key]
    return CellCodes(n_agents, tuple(ground_stacks), base_codes)


def _list_sprite_stacks(stack: tuple[str, ...], cell_type: str, can_wither: bool) -> list[tuple[str, ...]]:
    """Return the sprite stacks of a cell in each of its states, in the order of the numbers added to `base_codes`."""
    if cell_type in ("river", "dirt"):
        frames = [f"water_{i + 1}" for i in range(WATER_FRAMES)]
        water_stacks = [tuple(frame if sprite == "river" else sprite for sprite in stack) for frame in frames]
        return water_stacks if cell_type == "river" else water_stacks + [(*water, "dirt") for water in water_stacks]
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
        tile_ids_by_heading: index into `images` of each code in the view of a player with each heading, [4, n_codes].
        world_tile_ids: index into `images` of each code in a frame of the whole map, north up, [n_codes].
        images: distinct tiles, [n_tiles, 8, 8, 3] uint8 RGB; the first one is black, for cells outside the map and for
            removed players.
    """

    tile_ids_by_heading: NDArray[np.int32]
    world_tile_ids: NDArray[np.int32]
    images: NDArray[np.uint8]


def load_tiles(substrate: SubstrateName, map_text: str, n_agents: int, source: sprites.TileSource) -> Tiles:
    """Return the tiles of a map with `n_agents` players. They are cached per process and must not be changed.

    Raises:
        ConfigError, EngineError: see `maps.parse_map` and `sprites.load_sprites`.
    """
    return _load_tiles(substrate, map_text, n_agents, sprites.resolve_tile_source(source))


@functools.lru_cache(maxsize=16)
def _load_tiles(substrate: SubstrateName, map_text: str, n_agents: int, source: sprites.TileSource) -> Tiles:
    """Paint every code for each heading of the viewer, and assign indices to the distinct images."""
    codes = assign_cell_codes(parse_map(substrate, map_text), n_agents)
    sprite_set = sprites.load_sprites(substrate, n_agents, source)
    code_images = np.stack([_paint_codes(codes, sprite_set, heading) for heading in range(4)])
    code_images[:, codes.split_codes()[0] == 0] = 0
    images, tile_ids = _find_distinct_rows(code_images.reshape(4 * codes.n_codes, -1))
    tile_ids_by_heading = tile_ids.reshape(4, codes.n_codes)
    # The arrays are cached and shared. A frame of the map has the tiles that a player who faces north would see.
    tile_ids_by_heading.setflags(write=False)
    images.setflags(write=False)
    return Tiles(tile_ids_by_heading, tile_ids_by_heading[0], images.reshape(-1, TILE_SIZE, TILE_SIZE, 3))


def render_tiles(images: NDArray[np.uint8], tile_ids: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return the picture [..., 8 * R, 8 * C, 3] of cells, given their indices [..., R, C] into the tile `images`."""
    *batch_shape, rows, columns = tile_ids.shape
    tile_rows: NDArray[np.uint8] = images[tile_ids].swapaxes(-4, -3)
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
        layers = [sprite_set.sprites[name][heading] for name in stack]
        return functools.reduce(blend, layers, np.zeros((TILE_SIZE, TILE_SIZE, 3), np.uint8))

    other_players = sprite_set.avatar_sprites[:, (np.arange(4) - heading) % 4].reshape(-1, TILE_SIZE, TILE_SIZE, 4)
    nobody = np.zeros((1, TILE_SIZE, TILE_SIZE, 4), np.uint8)
    avatars = np.concatenate([nobody, other_players, sprite_set.viewer_sprite[None]])
    ground_images = np.stack([paint_stack(stack) for stack in codes.ground_stacks])
    cells = blend(ground_images[None], avatars[:, None])
    images_by_beam = [cells] + [blend(cells, sprite_set.beam_colors[beam]) for beam in range(len(BEAMS) - 1)]
    return np.stack(images_by_beam).reshape(codes.n_codes, TILE_SIZE, TILE_SIZE, 3)


def _find_distinct_rows(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the distinct rows of an array in order of first occurrence, and the index of each row among them."""
    _, first_indices, inverse_indices = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first_indices)
    return rows[first_indices[order]], np.argsort(order)[inverse_indices.ravel()].astype(np.int32)
