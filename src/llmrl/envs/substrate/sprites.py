"""Sprites of 8 x 8 pixels, from the installed Melting Pot package or of plain colors."""

from __future__ import annotations

import colorsys
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError, EngineError
from llmrl.envs.substrate import install
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, SubstrateName, find_component

TileSource = Literal["auto", "melting_pot", "plain"]
TILE_SIZE = 8
"""Width and height of a sprite and of a cell, in pixels."""
ByteArray = NDArray[np.uint8]


@dataclass(frozen=True)
class SpriteSet:
    """The sprites of a substrate, uint8 RGBA.

    Attributes:
        sprites: name -> sprite in the view of a player with each heading (N, E, S, W), [4, 8, 8, 4]. Views show the
            player facing up, so sprites of the ground are rotated, except those without a direction.
        avatar_sprites: sprite of each player in the view of others, [n_agents, 4, 8, 8, 4]: from behind, facing to the
            right, from the front, facing to the left.
        viewer_sprite: sprite of the viewing player, from behind, [8, 8, 4].
        beam_colors: color that covers a cell with each of `grid_text.BEAMS` but `no beam`, [2, 4].
    """

    sprites: Mapping[str, ByteArray]
    avatar_sprites: ByteArray
    viewer_sprite: ByteArray
    beam_colors: ByteArray


def load_sprites(substrate: SubstrateName, n_agents: int, source: TileSource) -> SpriteSet:
    """Return the sprites of a substrate for `n_agents` players.

    The source `auto` means Melting Pot if it is installed, else `plain`.

    Raises:
        ConfigError: Melting Pot has fewer colors than players.
        EngineError: the source is `melting_pot`, which is not installed or has an unsupported version.
    """
    if resolve_tile_source(source) == "plain":
        return _build_plain_sprites(n_agents)
    return _load_melting_pot_sprites(substrate, n_agents)


def compute_agent_colors(substrate: SubstrateName, n_agents: int, source: TileSource) -> ByteArray:
    """Return the color of each player in frames, [n_agents, 3]: the most frequent color of its sprite.

    Raises:
        ConfigError, EngineError: see `load_sprites`.
    """
    dominant_colors = []
    for sprite in load_sprites(substrate, n_agents, source).avatar_sprites[:, 2].reshape(n_agents, -1, 4):
        colors, counts = np.unique(sprite[sprite[:, 3] == 255, :3], axis=0, return_counts=True)
        dominant_colors.append(colors[counts.argmax()])
    return np.array(dominant_colors, np.uint8)


def resolve_tile_source(source: TileSource) -> TileSource:
    """Return `melting_pot` or `plain` for the source `auto`, whichever is available; any other source unchanged."""
    if source != "auto":
        return source
    return "melting_pot" if install.is_available() else "plain"


def _load_melting_pot_sprites(substrate: SubstrateName, n_agents: int) -> SpriteSet:
    _, module = install.import_substrate(SUBSTRATES[substrate].module_name)
    shapes = importlib.import_module("meltingpot.utils.substrates.shapes")
    colors = importlib.import_module("meltingpot.utils.substrates.colors")
    sprites: dict[str, ByteArray] = {}
    for prefab in module.create_prefabs().values():
        if any(component["component"] == "Appearance" for component in prefab["components"]):
            sprites.update(_load_appearance(find_component(prefab, "Appearance")))
    # Clean Up removes the first color from this list and uses it for the viewing player.
    palette = [*getattr(module, "human_readable_colors", colors.human_readable), *colors.palette]
    if n_agents > len(palette):
        raise ConfigError(
            f"env.n_agents={n_agents} is too large: Melting Pot has colors for {len(palette)} players; use fewer "
            "players, or env.tiles=plain"
        )
    viewer_definition = module.TARGET_SPRITE_SELF
    avatar_sprites = [
        [_parse_sprite(text, shapes.get_palette(palette_name)) for text in viewer_definition["shape"]]
        for palette_name in palette[:n_agents]
    ]
    viewer_sprite = _parse_sprite(viewer_definition["shape"][0], viewer_definition["palette"])
    return SpriteSet(sprites, np.array(avatar_sprites), viewer_sprite, _read_beam_colors(substrate))


def _load_appearance(appearance: Mapping[str, Any]) -> dict[str, ByteArray]:
    """Return name -> four views of each sprite of an Appearance component; name `GrassEdge` becomes `grass_edge`."""
    names: Sequence[str] = appearance["spriteNames"]
    views_by_name = {}
    for index, name in enumerate(names):
        if "spriteShapes" in appearance:
            image = _parse_sprite(appearance["spriteShapes"][index], appearance["palettes"][index])
        else:
            image = _build_color_sprite(appearance["spriteRGBColors"][index])
        has_fixed_orientation = appearance.get("noRotates", [False] * len(names))[index]
        sprite_name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        views_by_name[sprite_name] = _build_heading_views(image, is_rotated=not has_fixed_orientation)
    return views_by_name


def _parse_sprite(text: str, palette: Mapping[str, Sequence[int]]) -> ByteArray:
    """Return the image [8, 8, 4] of a text with one letter per pixel; a larger image is reduced as in Melting Pot."""
    image = np.array([[palette[letter] for letter in row] for row in text.strip("\n").splitlines()], np.int32)
    factor = image.shape[0] // TILE_SIZE
    return (image.reshape(TILE_SIZE, factor, TILE_SIZE, factor, 4).sum((1, 3)) // factor**2).astype(np.uint8)


def _build_heading_views(image: ByteArray, is_rotated: bool) -> ByteArray:
    """Return an image in the views of players with each heading, [4, 8, 8, 4]; rotated if `is_rotated`."""
    return np.stack([np.rot90(image, heading if is_rotated else 0) for heading in range(4)])


def _read_beam_colors(substrate: SubstrateName) -> ByteArray:
    """Return the colors of the beams, which Lua modules of Melting Pot define, [2, 4]."""
    lua_folder = install.find_package_parent() / "meltingpot" / "lua"
    library_path = lua_folder / "modules" / "avatar_library.lua"
    zap_color = _read_lua_color(library_path, r"'beamColor',\s*args\.default\(\{([\d,\s]+)\}")
    if not SUBSTRATES[substrate].has_dirt:
        return np.stack([np.zeros(4, np.uint8), zap_color])
    components_path = lua_folder / "levels" / SUBSTRATES[substrate].module_name / "components.lua"
    return np.stack([_read_lua_color(components_path, r"addColor\('BeamClean',\s*\{([\d,\s]+)\}"), zap_color])


def _read_lua_color(path: Path, pattern: str) -> ByteArray:
    match = re.search(pattern, path.read_text())
    if match is None:
        raise EngineError(
            f"{path} does not define the color of a beam as in {install.MELTINGPOT_REQUIREMENT}; "
            f"{install.INSTALL_HINT}, or use env.tiles=plain"
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
    symmetric_images = {
        **{name: _build_color_sprite(color) for name, color in _GROUND_COLORS.items()},
        "dirt": _build_color_sprite((105, 75, 25, 150)),
        "apple": _build_color_sprite((205, 45, 45), rows=slice(2, 6), columns=slice(2, 6)),
    }
    directed_images = {
        "grass_edge": _build_color_sprite(_GROUND_COLORS["grass"], rows=slice(4, 8)),
        "shadow_n": _build_color_sprite(_SHADOW_COLOR, rows=slice(0, 3)),
        "shadow_w": _build_color_sprite(_SHADOW_COLOR, columns=slice(0, 3)),
        "shadow_e": _build_color_sprite(_SHADOW_COLOR, columns=slice(5, 8)),
    }
    sprites = {name: _build_heading_views(image, is_rotated=False) for name, image in symmetric_images.items()}
    sprites |= {name: _build_heading_views(image, is_rotated=True) for name, image in directed_images.items()}
    # Image k shows a player who faces k quarter turns to the right of the viewer; `rot90` rotates counterclockwise.
    player_sprites = [_build_player_sprite(_compute_player_color(player_index)) for player_index in range(n_agents)]
    avatar_sprites = np.stack([np.stack([np.rot90(sprite, -k) for k in range(4)]) for sprite in player_sprites])
    beam_colors = np.array([(120, 225, 245, 170), (255, 245, 90, 255)], np.uint8)
    return SpriteSet(sprites, avatar_sprites, _build_player_sprite(color=(40, 90, 230)), beam_colors)


def _build_color_sprite(color: Sequence[int], rows: slice = slice(None), columns: slice = slice(None)) -> ByteArray:
    """Return an image [8, 8, 4] that has an RGB or RGBA color in `rows` and `columns` and is transparent elsewhere."""
    image = np.zeros((TILE_SIZE, TILE_SIZE, 4), np.uint8)
    image[rows, columns] = [*color, 255][:4]
    return image


def _build_player_sprite(color: Sequence[int]) -> ByteArray:
    """Return the sprite of a player who faces up."""
    image = _build_color_sprite(color, rows=slice(1, 8), columns=slice(1, 7))
    image[1:3, 3:5] = 255
    return image


def _compute_player_color(player_index: int) -> tuple[int, ...]:
    """Return the color of a player.

    Hues differ by the golden section, so that they are distinct for any number of players. After every nine players,
    colors get darker.
    """
    color = colorsys.hsv_to_rgb(h=(0.83 + player_index * 0.618034) % 1, s=0.85, v=0.95 * 0.85 ** (player_index // 9))
    return tuple(round(255 * channel) for channel in color)
