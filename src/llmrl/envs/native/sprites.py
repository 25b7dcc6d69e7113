"""Sprites of 8 x 8 pixels by name: Melting Pot's, read from the installed package, or plain ones of our own."""

from __future__ import annotations

import colorsys
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError, EngineError
from llmrl.envs.melting_pot import install
from llmrl.envs.melting_pot.substrate_rules import SUBSTRATES, SubstrateName, component

Source = Literal["auto", "melting_pot", "plain"]
SIZE = 8
"""Pixels of a side of a sprite, and of a cell."""
Sprite = NDArray[np.uint8]


@dataclass(frozen=True)
class SpriteSet:
    """What cells are painted with. All sprites are uint8 RGBA.

    Attributes:
        sprites: by name, [4, 8, 8, 4]: for a viewer with each heading, N E S W. Up is where the viewer looks to, so
            what lies on the ground turns; things without a direction look alike in all four.
        avatars: each slot as others see it, [n_agents, 4, 8, 8, 4]: from behind, facing to the viewer's right, from
            the front, facing to the viewer's left.
        oneself: the player who looks, from behind, [8, 8, 4].
        beams: the colour of each of `grid_text.BEAMS` but the first, all over the cell, [2, 4].
    """

    sprites: Mapping[str, Sprite]
    avatars: Sprite
    oneself: Sprite
    beams: Sprite


def load(substrate: SubstrateName, n_agents: int, source: Source) -> SpriteSet:
    """The art of a substrate for `n_agents` players; `auto` is Melting Pot's where it is installed, else `plain`.

    Raises:
        ConfigError: no such source, or Melting Pot has no more colours for so many players.
        EngineError: `melting_pot` is not installed, or is another version that this cannot read.
    """
    if source not in ("auto", "melting_pot", "plain"):
        raise ConfigError(f"env.tiles={source}: no such art; use auto, melting_pot or plain")
    if resolve(source) == "plain":
        return _plain(n_agents)
    return _melting_pot(substrate, n_agents)


def colours(substrate: SubstrateName, n_agents: int, source: Source) -> Sprite:
    """The colour that each player can be told by in a picture of the world, [n_agents, 3]: most of its sprite has it.

    Raises:
        ConfigError, EngineError: see `load`.
    """
    found = []
    for sprite in load(substrate, n_agents, source).avatars[:, 2].reshape(n_agents, -1, 4):
        kinds, counts = np.unique(sprite[sprite[:, 3] == 255, :3], axis=0, return_counts=True)
        found.append(kinds[counts.argmax()])
    return np.array(found, np.uint8)


def resolve(source: Source) -> Source:
    """`auto` as what it stands for on this machine; anything else as it is."""
    if source != "auto":
        return source
    return "melting_pot" if install.available() else "plain"


def _melting_pot(substrate: SubstrateName, n_agents: int) -> SpriteSet:
    _, module = install.load(SUBSTRATES[substrate].module)
    shapes = importlib.import_module("meltingpot.utils.substrates.shapes")
    colors = importlib.import_module("meltingpot.utils.substrates.colors")
    sprites: dict[str, Sprite] = {}
    for prefab in module.create_prefabs().values():
        if any(entry["component"] == "Appearance" for entry in prefab["components"]):
            sprites.update(_appearance(component(prefab, "Appearance")))
    # Clean Up takes the first colour off this list, for oneself.
    palette = [*getattr(module, "human_readable_colors", colors.human_readable), *colors.palette]
    if n_agents > len(palette):
        raise ConfigError(
            f"env.n_agents={n_agents}: Melting Pot has colours for {len(palette)} players; use fewer, or "
            "env.tiles=plain"
        )
    oneself = module.TARGET_SPRITE_SELF
    looks = [[_paint(text, shapes.get_palette(each)) for text in oneself["shape"]] for each in palette[:n_agents]]
    return SpriteSet(
        sprites, np.array(looks), _paint(oneself["shape"][0], oneself["palette"]), _engine_beams(substrate)
    )


def _appearance(kwargs: Mapping[str, Any]) -> dict[str, Sprite]:
    """The sprites of one Appearance component, `GrassEdge` as `grass_edge`, for each heading of a viewer."""
    names: Sequence[str] = kwargs["spriteNames"]
    found = {}
    for index, name in enumerate(names):
        if "spriteShapes" in kwargs:
            image = _paint(kwargs["spriteShapes"][index], kwargs["palettes"][index])
        else:
            image = _flat(kwargs["spriteRGBColors"][index])
        stays = kwargs.get("noRotates", [False] * len(names))[index]
        found[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()] = _views(image, turns=not stays)
    return found


def _paint(text: str, palette: Mapping[str, Sequence[int]]) -> Sprite:
    """Drawn letters as an image of 8 x 8, [8, 8, 4]; larger ones are reduced as the engine does it."""
    image = np.array([[palette[letter] for letter in row] for row in text.strip("\n").splitlines()], np.int32)
    factor = image.shape[0] // SIZE
    mean: Sprite = (image.reshape(SIZE, factor, SIZE, factor, 4).sum((1, 3)) // factor**2).astype(np.uint8)
    return mean


def _flat(colour: Sequence[int]) -> Sprite:
    """One RGB or RGBA colour all over, [8, 8, 4]."""
    return np.full((SIZE, SIZE, 4), [*colour, 255][:4], np.uint8)


def _views(image: Sprite, turns: bool) -> Sprite:
    """What viewers with each heading see of an image, [4, 8, 8, 4]."""
    return np.stack([np.rot90(image, heading if turns else 0) for heading in range(4)])


def _engine_beams(substrate: SubstrateName) -> Sprite:
    """The colours of the beams, which stand in the engine's Lua modules."""
    lua = install.root() / "meltingpot" / "lua"
    zap = _lua_colour(lua / "modules" / "avatar_library.lua", r"'beamColor',\s*args\.default\(\{([\d,\s]+)\}")
    if not SUBSTRATES[substrate].dirt:
        return np.stack([np.zeros(4, np.uint8), zap])
    level = lua / "levels" / SUBSTRATES[substrate].module / "components.lua"
    return np.stack([_lua_colour(level, r"addColor\('BeamClean',\s*\{([\d,\s]+)\}"), zap])


def _lua_colour(file: Any, pattern: str) -> Sprite:
    found = re.search(pattern, file.read_text())
    if found is None:
        raise EngineError(
            f"{file} does not say the colour of a beam where {install.MELTINGPOT} says it: {install.HINT}, or use "
            "env.tiles=plain"
        )
    return np.array([*(int(part) for part in found[1].split(",")), 255][:4], np.uint8)


_GROUNDS = {
    "sand": (214, 200, 160),
    "floor": (205, 190, 165),
    "grass": (150, 190, 90),
    "wall": (90, 90, 95),
    "water_1": (40, 120, 175),
    "water_2": (45, 128, 182),
    "water_3": (50, 136, 189),
    "water_4": (45, 128, 182),
}
_SHADOW = (0, 0, 0, 45)
_DIRT = (105, 75, 25, 150)
_APPLE = (205, 45, 45)
_ONESELF = (40, 90, 230)
_MARK = (255, 255, 255)
_BEAMS = ((120, 225, 245, 170), (255, 245, 90, 255))


def _plain(n_agents: int) -> SpriteSet:
    """Flat colours, for machines without Melting Pot. Players have a white mark on the side they face."""
    sprites = {name: _views(_flat(colour), turns=False) for name, colour in _GROUNDS.items()}
    sprites["dirt"] = _views(_flat(_DIRT), turns=False)
    sprites["apple"] = _views(_part(_APPLE, rows=slice(2, 6), columns=slice(2, 6)), turns=False)
    sprites["grass_edge"] = _views(_part(_GROUNDS["grass"], rows=slice(4, 8)), turns=True)
    sprites["shadow_n"] = _views(_part(_SHADOW, rows=slice(0, 3)), turns=True)
    sprites["shadow_w"] = _views(_part(_SHADOW, columns=slice(0, 3)), turns=True)
    sprites["shadow_e"] = _views(_part(_SHADOW, columns=slice(5, 8)), turns=True)
    # A viewer who turns right sees others turn left: what faces right of it is the image turned clockwise.
    avatars = [np.stack([np.rot90(_figure(_colour(slot)), -k) for k in range(4)]) for slot in range(n_agents)]
    return SpriteSet(sprites, np.stack(avatars), _figure(_ONESELF), np.array(_BEAMS, np.uint8))


def _part(colour: Sequence[int], rows: slice = slice(None), columns: slice = slice(None)) -> Sprite:
    """A colour on a part of an image that is clear elsewhere."""
    image = np.zeros((SIZE, SIZE, 4), np.uint8)
    image[rows, columns] = [*colour, 255][:4]
    return image


def _figure(colour: Sequence[int]) -> Sprite:
    """A player who faces up."""
    image = _part(colour, rows=slice(1, 8), columns=slice(1, 7))
    image[1:3, 3:5] = [*_MARK, 255]
    return image


def _colour(slot: int) -> tuple[int, ...]:
    """Hues a golden section apart differ for any number of players; every round of nine is darker than the last."""
    shade = colorsys.hsv_to_rgb((0.83 + slot * 0.618034) % 1, 0.85, 0.95 * 0.85 ** (slot // 9))
    return tuple(round(255 * part) for part in shade)
