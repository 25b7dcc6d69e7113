"""Sprites of 8 x 8 pixels, from the installed Melting Pot package or of plain colors."""

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
from llmrl.envs.substrate import install
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, SubstrateName, find_component

TileSource = Literal["auto", "melting_pot", "plain"]
TILE_SIZE = 8
"""Width and height of a sprite and of a cell, in pixels."""
Sprite = NDArray[np.uint8]


@dataclass(frozen=True)
class SpriteSet:
    """The sprites of a substrate, uint8 RGBA.

    Attributes:
        sprites: name -> sprite in the view of a player with each heading (N, E, S, W), [4, 8, 8, 4]. Views show the
            player facing up, so sprites on the ground are rotated, except those without a direction.
        avatars: sprite of each player in the view of others, [n_agents, 4, 8, 8, 4]: from behind, facing to the right,
            from the front, facing to the left.
        viewer: sprite of the viewing player, from behind, [8, 8, 4].
        beams: color of each of `grid_text.BEAMS` except the first, which covers the cell, [2, 4].
    """

    sprites: Mapping[str, Sprite]
    avatars: Sprite
    viewer: Sprite
    beams: Sprite


def load_sprites(substrate: SubstrateName, n_agents: int, source: TileSource) -> SpriteSet:
    """Return the sprites of a substrate for `n_agents` players.

    `auto`: those of Melting Pot if it is installed, else `plain`.

    Raises:
        ConfigError: Melting Pot has fewer colors than players.
        EngineError: the source is `melting_pot`, which is not installed or has an unsupported version.
    """
    if resolve_source(source) == "plain":
        return _build_plain_sprites(n_agents)
    return _load_melting_pot_sprites(substrate, n_agents)


def find_agent_colors(substrate: SubstrateName, n_agents: int, source: TileSource) -> Sprite:
    """Return the color of each player in frames, [n_agents, 3]: the most frequent color of its sprite.

    Raises:
        ConfigError, EngineError: see `load_sprites`.
    """
    dominant_colors = []
    for sprite in load_sprites(substrate, n_agents, source).avatars[:, 2].reshape(n_agents, -1, 4):
        colors, counts = np.unique(sprite[sprite[:, 3] == 255, :3], axis=0, return_counts=True)
        dominant_colors.append(colors[counts.argmax()])
    return np.array(dominant_colors, np.uint8)


def resolve_source(source: TileSource) -> TileSource:
    """Return `melting_pot` or `plain` for the source `auto`, whichever is available; any other source unchanged."""
    if source != "auto":
        return source
    return "melting_pot" if install.is_available() else "plain"


def _load_melting_pot_sprites(substrate: SubstrateName, n_agents: int) -> SpriteSet:
    _, module = install.import_substrate(SUBSTRATES[substrate].module)
    shapes = importlib.import_module("meltingpot.utils.substrates.shapes")
    colors = importlib.import_module("meltingpot.utils.substrates.colors")
    sprites: dict[str, Sprite] = {}
    for prefab in module.create_prefabs().values():
        if any(entry["component"] == "Appearance" for entry in prefab["components"]):
            sprites.update(_load_appearance(find_component(prefab, "Appearance")))
    # Clean Up removes the first color from this list and uses it for the viewing player.
    palette = [*getattr(module, "human_readable_colors", colors.human_readable), *colors.palette]
    if n_agents > len(palette):
        raise ConfigError(
            f"env.n_agents={n_agents} is too large: Melting Pot has colors for {len(palette)} players; use fewer "
            "players, or env.tiles=plain"
        )
    viewer = module.TARGET_SPRITE_SELF
    avatars = [
        [_parse_sprite(text, shapes.get_palette(palette_name)) for text in viewer["shape"]]
        for palette_name in palette[:n_agents]
    ]
    return SpriteSet(
        sprites, np.array(avatars), _parse_sprite(viewer["shape"][0], viewer["palette"]), _read_beam_colors(substrate)
    )


def _load_appearance(kwargs: Mapping[str, Any]) -> dict[str, Sprite]:
    """Return name -> sprites of an Appearance component in the four views; `GrassEdge` becomes `grass_edge`."""
    names: Sequence[str] = kwargs["spriteNames"]
    views_by_name = {}
    for index, name in enumerate(names):
        if "spriteShapes" in kwargs:
            image = _parse_sprite(kwargs["spriteShapes"][index], kwargs["palettes"][index])
        else:
            image = _build_color_sprite(kwargs["spriteRGBColors"][index])
        has_fixed_orientation = kwargs.get("noRotates", [False] * len(names))[index]
        sprite_name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        views_by_name[sprite_name] = _rotated_views(image, turns=not has_fixed_orientation)
    return views_by_name


def _parse_sprite(text: str, palette: Mapping[str, Sequence[int]]) -> Sprite:
    """Return the image [8, 8, 4] of a text with one letter per pixel; larger ones are reduced as in Melting Pot."""
    image = np.array([[palette[letter] for letter in row] for row in text.strip("\n").splitlines()], np.int32)
    factor = image.shape[0] // TILE_SIZE
    blocks = image.reshape(TILE_SIZE, factor, TILE_SIZE, factor, 4)
    return (blocks.sum((1, 3)) // factor**2).astype(np.uint8)


def _rotated_views(image: Sprite, turns: bool) -> Sprite:
    """Return an image in the views of players with each heading, [4, 8, 8, 4]; `turns`: whether it is rotated."""
    return np.stack([np.rot90(image, heading if turns else 0) for heading in range(4)])


def _read_beam_colors(substrate: SubstrateName) -> Sprite:
    """Return the colors of the beams, which Lua modules of Melting Pot define, [2, 4]."""
    lua = install.find_package_root() / "meltingpot" / "lua"
    zap = _read_lua_color(lua / "modules" / "avatar_library.lua", r"'beamColor',\s*args\.default\(\{([\d,\s]+)\}")
    if not SUBSTRATES[substrate].has_dirt:
        return np.stack([np.zeros(4, np.uint8), zap])
    level = lua / "levels" / SUBSTRATES[substrate].module / "components.lua"
    return np.stack([_read_lua_color(level, r"addColor\('BeamClean',\s*\{([\d,\s]+)\}"), zap])


def _read_lua_color(file: Any, pattern: str) -> Sprite:
    match = re.search(pattern, file.read_text())
    if match is None:
        raise EngineError(
            f"{file} does not define the color of a beam as in {install.MELTINGPOT}; {install.INSTALL_HINT}, or use "
            "env.tiles=plain"
        )
    return np.array([*(int(part) for part in match[1].split(",")), 255][:4], np.uint8)


_GROUND_COLORS = {
    "sand": (214, 200, 160),
    "floor": (205, 190, 165),
    "grass": (150, 190, 90),
    "wall": (90, 90, 95),
    "water_1": (40, 120, 175),
    "water_2": (45, 128, 182),
    "water_3": (50, 136, 189),
    "water_4": (45, 128, 182),
}
_SHADOW_COLOR = (0, 0, 0, 45)


def _build_plain_sprites(n_agents: int) -> SpriteSet:
    """Return sprites with plain colors, for machines without Melting Pot; players have a white mark in front."""
    undirected = {name: _build_color_sprite(color) for name, color in _GROUND_COLORS.items()}
    undirected["dirt"] = _build_color_sprite((105, 75, 25, 150))
    undirected["apple"] = _build_color_sprite((205, 45, 45), rows=slice(2, 6), columns=slice(2, 6))
    directed = {
        "grass_edge": _build_color_sprite(_GROUND_COLORS["grass"], rows=slice(4, 8)),
        "shadow_n": _build_color_sprite(_SHADOW_COLOR, rows=slice(0, 3)),
        "shadow_w": _build_color_sprite(_SHADOW_COLOR, columns=slice(0, 3)),
        "shadow_e": _build_color_sprite(_SHADOW_COLOR, columns=slice(5, 8)),
    }
    sprites = {name: _rotated_views(image, turns=False) for name, image in undirected.items()}
    sprites |= {name: _rotated_views(image, turns=True) for name, image in directed.items()}
    # Index k: a player who faces k quarter turns to the right of the viewer; `rot90` rotates counterclockwise.
    players = [_build_player_sprite(_find_player_color(slot)) for slot in range(n_agents)]
    avatars = np.stack([np.stack([np.rot90(player, -k) for k in range(4)]) for player in players])
    beams = np.array([(120, 225, 245, 170), (255, 245, 90, 255)], np.uint8)
    return SpriteSet(sprites, avatars, _build_player_sprite((40, 90, 230)), beams)


def _build_color_sprite(color: Sequence[int], rows: slice = slice(None), columns: slice = slice(None)) -> Sprite:
    """Return an image [8, 8, 4] that has an RGB or RGBA color in some rows and columns and is transparent elsewhere."""
    image = np.zeros((TILE_SIZE, TILE_SIZE, 4), np.uint8)
    image[rows, columns] = [*color, 255][:4]
    return image


def _build_player_sprite(color: Sequence[int]) -> Sprite:
    """Return the sprite of a player who faces up."""
    image = _build_color_sprite(color, rows=slice(1, 8), columns=slice(1, 7))
    image[1:3, 3:5] = 255
    return image


def _find_player_color(slot: int) -> tuple[int, ...]:
    """Return the color of a player.

    Hues differ by the golden section, so that they are distinct for any number of players. After every nine players,
    colors get darker.
    """
    shade = colorsys.hsv_to_rgb((0.83 + slot * 0.618034) % 1, 0.85, 0.95 * 0.85 ** (slot // 9))
    return tuple(round(255 * part) for part in shade)
