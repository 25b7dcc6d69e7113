"""Every picture of 8 x 8 pixels that a cell can show, and which of them stands for which code."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.melting_pot.grid_text import BEAMS
from llmrl.envs.melting_pot.substrate_rules import SubstrateName
from llmrl.envs.native import sprites
from llmrl.envs.native.cell_codes import CellCodes, number
from llmrl.envs.native.maps import parse
from llmrl.envs.native.sprites import SIZE, SpriteSet


@dataclass(frozen=True)
class Tiles:
    """Pictures of all codes.

    Attributes:
        player: the tile of each code as a player with each heading sees it, [4, n_codes] indices into `bank`.
        world: the same for somebody who looks at the whole world from the south, and is none of the players.
        bank: tiles that differ, [n_tiles, 8, 8, 3] RGB; the first is black: what is outside the map, and what players
            see who are out of the game.
    """

    player: NDArray[np.int32]
    world: NDArray[np.int32]
    bank: NDArray[np.uint8]


def tiles(substrate: SubstrateName, text: str, n_agents: int, source: sprites.Source) -> Tiles:
    """The tiles of a map with `n_agents` players, made once in a process: they must not be changed.

    Raises:
        ConfigError, EngineError: the map or the art cannot be had; see `maps.parse` and `sprites.load`.
    """
    return _tiles(substrate, text, n_agents, sprites.resolve(source))


@functools.lru_cache(maxsize=16)
def _tiles(substrate: SubstrateName, text: str, n_agents: int, source: sprites.Source) -> Tiles:
    return compose(number(parse(substrate, text), n_agents), sprites.load(substrate, n_agents, source))


def compose(codes: CellCodes, drawn: SpriteSet) -> Tiles:
    """Paint every code for every viewer, and number the pictures that differ."""
    seen = [_painted(codes, drawn, heading, _avatars(drawn, heading)) for heading in range(4)]
    ground, _, _ = codes.parts()
    every = np.stack(seen).reshape(4, codes.n_codes, -1)
    every[:, ground == 0] = 0
    bank, indices = _distinct(every.reshape(4 * codes.n_codes, -1))
    player = indices.reshape(4, codes.n_codes)
    # The caches of a process share them. The world is seen like by a player who faces north, and who is not in it.
    player.setflags(write=False)
    bank.setflags(write=False)
    return Tiles(player, player[0], bank.reshape(-1, SIZE, SIZE, 3))


def blend(below: NDArray[np.uint8], above: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """RGBA [..., 4] painted over RGB [..., 3] with the engine's rounding; shapes broadcast."""
    alpha = above[..., 3:].astype(np.uint16)
    # At most 255 * 255 + 127, which 16 bits just hold.
    mixed = (255 - alpha) * below + alpha * above[..., :3] + np.uint16(127)
    return (mixed // np.uint16(255)).astype(np.uint8)


def _avatars(drawn: SpriteSet, heading: int) -> NDArray[np.uint8]:
    """The sprite of every avatar code for a viewer with a heading, [n_avatars, 8, 8, 4]."""
    facing = (np.arange(4) - heading) % 4
    others = drawn.avatars[:, facing].reshape(-1, SIZE, SIZE, 4)
    nobody = np.zeros((1, SIZE, SIZE, 4), np.uint8)
    return np.concatenate([nobody, others, drawn.oneself[None]])


def _painted(codes: CellCodes, drawn: SpriteSet, heading: int, avatars: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Every code as a viewer with a heading sees it, [n_codes, 8, 8, 3]."""
    grounds = np.stack([_stacked(drawn, stack, heading) for stack in codes.grounds])
    standing = blend(grounds[None], avatars[:, None])
    beams = [standing] + [blend(standing, drawn.beams[beam]) for beam in range(len(BEAMS) - 1)]
    return np.stack(beams).reshape(codes.n_codes, SIZE, SIZE, 3)


def _stacked(drawn: SpriteSet, stack: Sequence[str], heading: int) -> NDArray[np.uint8]:
    picture = np.zeros((SIZE, SIZE, 3), np.uint8)
    for name in stack:
        picture = blend(picture, drawn.sprites[name][heading])
    return picture


def _distinct(rows: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Rows that differ, in the order in which they come, and the index of each row among them."""
    first: dict[bytes, int] = {}
    width = rows.shape[1]
    data = rows.tobytes()
    indices = [first.setdefault(data[at : at + width], len(first)) for at in range(0, len(data), width)]
    bank = np.frombuffer(b"".join(first), np.uint8).reshape(-1, width)
    return bank, np.array(indices, np.int32)
