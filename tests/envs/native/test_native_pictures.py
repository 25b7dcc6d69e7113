"""Pictures of native games, byte for byte equal to those of the real engine for each way to compose them."""

import re

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_games import GameSettings, RealGame, run_in_fork, weighted_policy
from llmrl.core.errors import ConfigError
from llmrl.envs.melting_pot.worker import Game, MemoryLayout
from llmrl.envs.native.cell_codes import WATER_FRAMES, assign_cell_codes, blend, load_tiles, render_tiles
from llmrl.envs.native.observations import ViewRenderer
from llmrl.envs.substrate import install, maps, sprites
from llmrl.envs.substrate.grid_text import BEAMS
from llmrl.envs.substrate.maps import PACKAGE_MAPS
from llmrl.envs.substrate.substrate_rules import PIXELS_SHAPE
from some import mark_long_except

CELLS, PLAYER_CELL = (11, 11), (9, 5)
HEADINGS = "NESW"
# noop, forward, backward, left, right, turns, zap, clean: enough beams to hit somebody.
WEIGHTS = {"cleanup": (1, 4, 1, 1, 1, 2, 2, 0.7, 3), "harvest": (1, 4, 1, 1, 1, 2, 2, 3)}


def snake(name):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Reader:
    """Conversion of the engine's stacked sprites into codes."""

    def __init__(self, codes, sprites):
        self.codes, self.kinds = codes, [name.partition(".")[::2] for name in sprites]
        self.codes_seen = set()

    def heading(self, view):
        """Return the heading of the player with `view` [11, 11, layers], from the orientation of the ground."""
        for index in np.unique(view):
            kind, facing = self.kinds[index]
            if kind in ("Sand", "Floor", "Wall", "Grass") and facing:
                return -HEADINGS.index(facing) % 4
        return None

    def code(self, stack, heading, is_self):
        """Return the code of one cell, or None if it is ambiguous.

        The order of clean beam and zap depends on the build of the engine.
        """
        ground, avatar, beams = [], 0, []
        for index in stack:
            kind, facing = self.kinds[index]
            if re.fullmatch(r"Avatar\d+", kind):
                slot = int(kind[6:]) - 1
                avatar = (
                    self.codes.n_avatar_codes - 1 if is_self else 1 + 4 * slot + (HEADINGS.index(facing) + heading) % 4
                )
            elif kind.startswith("Beam"):
                beams.append(kind[4:].lower())
            elif kind in ("OutOfBounds", "OutOfView"):
                return 0
            elif kind not in ("", "Empty", "AppleWait"):
                ground.append(snake(kind))
        self.codes_seen |= {*ground, *beams, "viewer" if is_self and avatar else avatar}
        if beams == ["zap", "clean"]:
            return None
        beam = BEAMS.index(beams[-1]) if beams else 0
        ground = self.codes.ground_stacks.index(tuple(ground))
        return ground + self.codes.n_grounds * (avatar + self.codes.n_avatar_codes * beam)


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize(
    "substrate, rules",
    [
        ("cleanup", "legislative"),
        pytest.param("cleanup", "upstream", marks=pytest.mark.long),
        pytest.param("harvest", "upstream", marks=pytest.mark.long),
    ],
)
def test_player_view_matches_engine(substrate, rules):
    n_agents = 7
    game_map = maps.load_map(substrate, "melting_pot")
    codes = assign_cell_codes(game_map, n_agents)
    tile_bank = load_tiles(substrate, game_map.text, n_agents, "melting_pot")

    def episode():
        game = Game(MemoryLayout(substrate, rules, 1, n_agents, ("pixels", "text"), False))
        game.start(3)
        sprites = game._engine.observation("WORLD.SPRITES").decode().split(",")
        rng, frames, black = np.random.default_rng(5), [], 0
        weights = np.array(WEIGHTS[substrate]) / sum(WEIGHTS[substrate])
        # The engine plays another game each time: on until somebody has been hit.
        while len(frames) < 60 or (black < 10 and len(frames) < 500):
            game.step(rng.choice(len(weights), n_agents, p=weights).astype(np.int32))
            names = [f"{player}.{{}}" for player in range(1, n_agents + 1)]
            frames.append(
                [
                    [np.array(game._engine.observation(name.format(channel))) for channel in ("SEEN", "RGB")]
                    for name in names
                ]
            )
            black += sum(not picture.any() for _, picture in frames[-1])
        return sprites, frames

    sprites, frames = run_in_fork(episode)
    reader = Reader(codes, sprites)
    code_table, views, black = {}, 0, 0
    for frame in frames:
        for codes_seen, picture in frame:
            heading = reader.heading(codes_seen)
            if heading is None:
                assert not picture.any(), "who is out of the game sees black"
                black += 1
                continue
            ids, certain = np.zeros(CELLS, np.int32), np.ones(CELLS, bool)
            for place in np.ndindex(*CELLS):
                key = (codes_seen[place].tobytes(), heading, place == PLAYER_CELL)
                if key not in code_table:
                    code_table[key] = reader.code(codes_seen[place], heading, place == PLAYER_CELL)
                code = code_table[key]
                certain[place] = code is not None
                ids[place] = tile_bank.tile_ids_by_heading[heading, code or 0]
            mine = render_tiles(tile_bank.images, ids)
            mask = certain.repeat(8, 0).repeat(8, 1)
            assert mine.shape == picture.shape == PIXELS_SHAPE
            wrong = np.argwhere((mine != picture).any(-1) & mask) // 8
            assert not len(wrong), (
                f"heading {heading}, cell {wrong[0]}: {[sprites[i] for i in codes_seen[tuple(wrong[0])]]}"
            )
            views += 1
    assert views > 200 and black >= 10
    expected_pixels = (
        {"wall", "grass", "zap", "viewer", "apple"} if rules == "legislative" else {"wall", "grass", "zap", "viewer"}
    )
    if substrate == "cleanup":
        expected_pixels |= {
            "clean",
            "dirt",
            "shadow_n",
            "shadow_w",
            "shadow_e",
            "grass_edge",
            *(f"water_{i}" for i in (1, 2, 3, 4)),
        }
    assert expected_pixels <= reader.codes_seen
    other_avatars = {avatar for avatar in reader.codes_seen if isinstance(avatar, int) and avatar}
    # Everybody is out of the game for some time, but hardly all of it.
    assert {(avatar - 1) % 4 for avatar in other_avatars} == {0, 1, 2, 3} and len(
        {(avatar - 1) // 4 for avatar in other_avatars}
    ) > 4


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize("substrate", mark_long_except(["harvest"], ["cleanup", "harvest"]))
def test_world_view_matches_engine(substrate):
    game_settings = GameSettings(substrate)
    game_map = maps.parse_map(substrate, game_settings.map)
    codes = assign_cell_codes(game_map, game_settings.n_agents)
    tile_bank = load_tiles(substrate, game_settings.map, game_settings.n_agents, "melting_pot")
    # No beams: what the engine tells of its state leaves them out.
    policy = weighted_policy([1, 4, 1, 1, 1, 2, 2] + [0] * (len(game_settings.actions) - 7))

    def episode():
        game, rng = RealGame(game_settings), np.random.default_rng(0)
        frames = [(game.start(4), game._lab.observation("WORLD.RGB"))]
        for _ in range(12):
            codes_seen, _ = game.step(policy(frames[-1][0], rng))
            frames.append((codes_seen, np.array(game._lab.observation("WORLD.RGB"))))
        return game.sites, frames

    sites, frames = run_in_fork(episode)
    apples, dirt, water = (
        [game_map.find_cell(int(x), int(y)) for x, y, site_kind in sites if site_kind == kind] for kind in (1, 2, 3)
    )
    for codes_seen, picture in frames:
        cells = codes.base_codes.copy()
        cells[apples] += codes_seen.apple + 2 * codes_seen.dry
        cells[water] += codes_seen.water
        cells[dirt] += WATER_FRAMES * codes_seen.dirt
        for slot in range(game_settings.n_agents):
            cell = game_map.find_cell(int(codes_seen.x[slot]), int(codes_seen.y[slot]))
            cells[cell] += codes.n_grounds * (1 + 4 * slot + codes_seen.heading[slot])
        margin = maps.MAP_MARGIN
        grid = cells.reshape(-1, game_map.stride)[margin:-margin, margin:-margin]
        np.testing.assert_array_equal(render_tiles(tile_bank.images, tile_bank.world_tile_ids[grid]), picture)


@settings(max_examples=40)
@given(
    ids=arrays.arrays(np.int32, arrays.array_shapes(min_dims=2, max_dims=4, max_side=12), elements=st.integers(0, 4))
)
def test_pictures_are_composed_of_tiles(ids):
    bank = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    *lead, rows, columns = ids.shape
    expected_pixels = np.zeros((*lead, 8 * rows, 8 * columns, 3), np.uint8)
    for place in np.ndindex(*ids.shape):
        *at, row, column = place
        expected_pixels[(*at, slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8))] = bank[ids[place]]
    out = torch.empty(expected_pixels.shape, dtype=torch.uint8)
    assert ViewRenderer(bank).render(torch.from_numpy(ids), out) is out
    np.testing.assert_array_equal(out.numpy(), expected_pixels)


@pytest.mark.parametrize("games", [1, 60, 401])
def test_output_array_is_filled(games):
    """Check small batches, and batches divided over threads."""
    bank = np.random.default_rng(0).integers(0, 256, (300, 8, 8, 3), dtype=np.uint8)
    ids = np.random.default_rng(1).integers(0, 300, (games, 7, 11), dtype=np.int32)
    out = torch.full((games, 56, 88, 3), 7, dtype=torch.uint8)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        painter = ViewRenderer(bank)
        for _ in range(2):
            painter.render(torch.from_numpy(ids), out)
            expected_pixels = bank[ids].transpose(0, 1, 3, 2, 4, 5).reshape(out.shape)
            np.testing.assert_array_equal(out.numpy(), expected_pixels)
            ids = ids[::-1].copy()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_plain_tiles_need_no_package(substrate, monkeypatch):
    def load(name):
        raise AssertionError("the package was asked for")

    monkeypatch.setattr(install, "import_substrate", load)
    monkeypatch.setattr(install, "list_missing_requirements", lambda: ["dm-meltingpot"])
    game_map = maps.parse_map(substrate, PACKAGE_MAPS[substrate])
    codes = assign_cell_codes(game_map, 15)
    tile_bank = load_tiles(substrate, game_map.text, 15, "auto")
    assert tile_bank is load_tiles(substrate, game_map.text, 15, "plain")
    ground, _, beam = codes.split_codes()
    assert not tile_bank.images[0].any() and (tile_bank.tile_ids_by_heading[:, ground == 0] == 0).all()
    # Everything that matters can be told from the rest: what lies there, who stands there, and where they face.
    for heading in range(4):
        for ground_code in range(1, codes.n_grounds):
            other_avatars = (ground == ground_code) & (beam == 0)
            assert len(set(tile_bank.tile_ids_by_heading[heading, other_avatars])) == codes.n_avatar_codes
    looks = {
        codes.ground_stacks[ground_code]: tile_bank.world_tile_ids[ground_code]
        for ground_code in range(codes.n_grounds)
    }
    waters = {stack: look for stack, look in looks.items() if stack and stack[0] in ("water_2", "water_4")}
    assert len(set(looks.values())) >= len(looks) - len(waters) // 2


@pytest.mark.parametrize("source", [pytest.param("melting_pot", marks=pytest.mark.meltingpot), "plain"])
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_tiles_are_cached(substrate, source):
    text = PACKAGE_MAPS[substrate]
    tile_bank = load_tiles(substrate, text, 15, source)
    assert len({tile.tobytes() for tile in tile_bank.images}) == len(tile_bank.images)
    assert set(np.unique(tile_bank.tile_ids_by_heading)) == set(range(len(tile_bank.images)))
    assert load_tiles(substrate, text, 15, source) is tile_bank
    with pytest.raises(ValueError, match="read-only"):
        tile_bank.images[0] = 1


def test_players_rotate_against_view():
    """Check a player who faces east: it faces right for a viewer who looks north, and away for one who looks east."""
    codes = assign_cell_codes(maps.parse_map("harvest", PACKAGE_MAPS["harvest"]), 2)
    tile_bank = load_tiles("harvest", PACKAGE_MAPS["harvest"], 2, "plain")
    floor = codes.ground_stacks.index(("floor",))

    def mark(viewer, heading):
        tile = tile_bank.images[tile_bank.tile_ids_by_heading[viewer, floor + codes.n_grounds * (1 + heading)]]
        return np.argwhere((tile == 255).all(-1)).mean(0)

    marks = np.array([[mark(viewer, heading) for heading in range(4)] for viewer in range(4)])
    up_mark, right, down_mark, left_mark = marks[0]
    assert up_mark[0] < 3 and down_mark[0] > 4 and right[1] > 4 and left_mark[1] < 3
    for viewer in range(4):
        for heading in range(4):
            np.testing.assert_array_equal(marks[viewer, heading], marks[0, (heading - viewer) % 4])


def test_blending_rounds_like_engine():
    bytes_range = np.arange(256)
    background, alpha, foreground = np.meshgrid(bytes_range, bytes_range, (0, 1, 99, 254, 255), indexing="ij")
    expected_pixels = ((255 - alpha) * background + alpha * foreground + 127) // 255
    rgba = np.stack([foreground, foreground, foreground, alpha], -1).astype(np.uint8)
    pixels = blend(np.stack([background] * 3, -1).astype(np.uint8), rgba)
    np.testing.assert_array_equal(pixels, np.stack([expected_pixels] * 3, -1))


@pytest.mark.meltingpot
def test_rejects_excess_players():
    assert len(sprites.load_sprites("cleanup", 40, "melting_pot").avatar_sprites) == 40
    assert len(sprites.load_sprites("harvest", 200, "plain").avatar_sprites) == 200
    with pytest.raises(ConfigError, match=r"n_agents=200.*env\.tiles=plain"):
        sprites.load_sprites("cleanup", 200, "melting_pot")
