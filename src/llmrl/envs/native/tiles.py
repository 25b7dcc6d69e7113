"""Tiles: all images of 8 x 8 pixels that a cell can show, and the tile of each code."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.native.cell_codes import CellCodes, assign_codes
from llmrl.envs.substrate import sprites
from llmrl.envs.substrate.grid_text import BEAMS
from llmrl.envs.substrate.maps import parse
from llmrl.envs.substrate.sprites import SIZE, SpriteSet
from llmrl.envs.substrate.substrate_rules import SubstrateName


@dataclass(frozen=True)
class Tiles:
    """Pictures of all codes.

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
    return _tiles(substrate, text, n_agents, sprites.resolve(source))


@functools.lru_cache(maxsize=16)
def _tiles(substrate: SubstrateName, text: str, n_agents: int, source: sprites.Source) -> Tiles:
    return compose(assign_codes(parse(substrate, text), n_agents), sprites.load(substrate, n_agents, source))


def compose(codes: CellCodes, sprite_set: SpriteSet) -> Tiles:
    """Paint every code for every viewer, and number the distinct images."""
    views = [_paint_codes(codes, sprite_set, heading, _avatars(sprite_set, heading)) for heading in range(4)]
    ground, _, _ = codes.parts()
    tiles = np.stack(views).reshape(4, codes.n_codes, -1)
    tiles[:, ground == 0] = 0
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


def _avatars(sprites: SpriteSet, heading: int) -> NDArray[np.uint8]:
    """Return the sprite of every avatar code for a viewer with a given heading, [n_avatars, 8, 8, 4]."""
    facing = (np.arange(4) - heading) % 4
    opponents = sprites.avatars[:, facing].reshape(-1, SIZE, SIZE, 4)
    empty = np.zeros((1, SIZE, SIZE, 4), np.uint8)
    return np.concatenate([empty, opponents, sprites.oneself[None]])


def _paint_codes(codes: CellCodes, sprites: SpriteSet, heading: int, avatars: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return every code as a viewer with a given heading sees it, [n_codes, 8, 8, 3]."""
    grounds = np.stack([_blend_stack(sprites, stack, heading) for stack in codes.grounds])
    standing = blend(grounds[None], avatars[:, None])
    beams = [standing] + [blend(standing, sprites.beams[beam]) for beam in range(len(BEAMS) - 1)]
    return np.stack(beams).reshape(codes.n_codes, SIZE, SIZE, 3)


def _blend_stack(sprites: SpriteSet, stack: Sequence[str], heading: int) -> NDArray[np.uint8]:
    picture = np.zeros((SIZE, SIZE, 3), np.uint8)
    for name in stack:
        picture = blend(picture, sprites.sprites[name][heading])
    return picture


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
