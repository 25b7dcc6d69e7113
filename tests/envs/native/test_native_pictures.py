"""The pictures of the native games: byte for byte those of the real engine, however they are put together."""

import re

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_games import RealGame, Rig, drawn, in_child
from llmrl.core.errors import ConfigError
from llmrl.envs.melting_pot import install
from llmrl.envs.melting_pot.dmlab2d_game import Game
from llmrl.envs.melting_pot.grid_text import BEAMS
from llmrl.envs.melting_pot.memory_layout import PIXELS, MemoryLayout
from llmrl.envs.native import maps, sprites, tile_copy_cpp, view_renderer
from llmrl.envs.native.cell_codes import WATERS, number
from llmrl.envs.native.maps import OWN_MAPS
from llmrl.envs.native.tiles import blend, tiles
from llmrl.envs.native.view_renderer import ViewRenderer

CELLS, OWN_CELL = (11, 11), (9, 5)
HEADINGS = "NESW"
# noop, forward, backward, left, right, turns, zap, clean: enough beams to hit somebody.
WEIGHTS = {"cleanup": (1, 4, 1, 1, 1, 2, 2, 0.7, 3), "harvest": (1, 4, 1, 1, 1, 2, 2, 3)}


def snake(name):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Reader:
    """From the sprites that the engine says lie on each other to a code."""

    def __init__(self, codes, sprites):
        self.codes, self.kinds = codes, [name.partition(".")[::2] for name in sprites]
        self.seen = set()

    def heading(self, view):
        """Of the player who looks at `view`, [11, 11, layers]: the ground faces north and is turned the other way."""
        for index in np.unique(view):
            kind, facing = self.kinds[index]
            if kind in ("Sand", "Floor", "Wall", "Grass") and facing:
                return -HEADINGS.index(facing) % 4
        return None

    def code(self, stack, heading, own):
        """Of one cell; None where the engine draws the clean beam over the zap, which differs from build to build."""
        ground, avatar, beams = [], 0, []
        for index in stack:
            kind, facing = self.kinds[index]
            if re.fullmatch(r"Avatar\d+", kind):
                slot = int(kind[6:]) - 1
                avatar = self.codes.oneself if own else 1 + 4 * slot + (HEADINGS.index(facing) + heading) % 4
            elif kind.startswith("Beam"):
                beams.append(kind[4:].lower())
            elif kind in ("OutOfBounds", "OutOfView"):
                return 0
            elif kind not in ("", "Empty", "AppleWait"):
                ground.append(snake(kind))
        self.seen |= {*ground, *beams, "oneself" if own and avatar else avatar}
        if beams == ["zap", "clean"]:
            return None
        beam = BEAMS.index(beams[-1]) if beams else 0
        ground = self.codes.grounds.index(tuple(ground))
        return ground + self.codes.n_grounds * (avatar + self.codes.n_avatars * beam)


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize(
    "substrate, rules", [("cleanup", "legislative"), ("cleanup", "upstream"), ("harvest", "upstream")]
)
def test_what_players_see_is_the_engines_picture(substrate, rules):
    n_agents = 7
    game_map = maps.find(substrate, "melting_pot")
    codes = number(game_map, n_agents)
    known = tiles(substrate, game_map.text, n_agents, "melting_pot")

    def episode():
        game = Game(MemoryLayout(substrate, rules, 1, n_agents, ("pixels", "text"), False))
        game.start(3)
        sprites = game._lab.observation("WORLD.SPRITES").decode().split(",")
        rng, frames, black = np.random.default_rng(5), [], 0
        weights = np.array(WEIGHTS[substrate]) / sum(WEIGHTS[substrate])
        # The engine plays another game each time: on until somebody has been hit.
        while len(frames) < 60 or (black < 10 and len(frames) < 500):
            game.step(rng.choice(len(weights), n_agents, p=weights).astype(np.int32))
            names = [f"{player}.{{}}" for player in range(1, n_agents + 1)]
            frames.append(
                [[np.array(game._lab.observation(name.format(what))) for what in ("SEEN", "RGB")] for name in names]
            )
            black += sum(not picture.any() for _, picture in frames[-1])
        return sprites, frames

    sprites, frames = in_child(episode)
    reader = Reader(codes, sprites)
    known_codes, views, black = {}, 0, 0
    for frame in frames:
        for seen, picture in frame:
            heading = reader.heading(seen)
            if heading is None:
                assert not picture.any(), "who is out of the game sees black"
                black += 1
                continue
            ids, certain = np.zeros(CELLS, np.int32), np.ones(CELLS, bool)
            for place in np.ndindex(*CELLS):
                key = (seen[place].tobytes(), heading, place == OWN_CELL)
                if key not in known_codes:
                    known_codes[key] = reader.code(seen[place], heading, place == OWN_CELL)
                code = known_codes[key]
                certain[place] = code is not None
                ids[place] = known.player[heading, code or 0]
            mine = ViewRenderer(known.bank).expand(torch.from_numpy(ids)).numpy()
            where = certain.repeat(8, 0).repeat(8, 1)
            assert mine.shape == picture.shape == PIXELS
            wrong = np.argwhere((mine != picture).any(-1) & where) // 8
            assert not len(wrong), f"heading {heading}, cell {wrong[0]}: {[sprites[i] for i in seen[tuple(wrong[0])]]}"
            views += 1
    assert views > 200 and black >= 10
    wanted = (
        {"wall", "grass", "zap", "oneself", "apple"} if rules == "legislative" else {"wall", "grass", "zap", "oneself"}
    )
    if substrate == "cleanup":
        wanted |= {
            "clean",
            "dirt",
            "shadow_n",
            "shadow_w",
            "shadow_e",
            "grass_edge",
            *(f"water_{i}" for i in (1, 2, 3, 4)),
        }
    assert wanted <= reader.seen
    others = {avatar for avatar in reader.seen if isinstance(avatar, int) and avatar}
    # Everybody is out of the game for some time, but hardly all of it.
    assert {(avatar - 1) % 4 for avatar in others} == {0, 1, 2, 3} and len({(avatar - 1) // 4 for avatar in others}) > 4


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_the_world_is_the_engines_picture(substrate):
    rig = Rig(substrate)
    game_map = maps.parse(substrate, rig.map)
    codes = number(game_map, rig.n_agents)
    known = tiles(substrate, rig.map, rig.n_agents, "melting_pot")
    # No beams: what the engine tells of its state leaves them out.
    policy = drawn([1, 4, 1, 1, 1, 2, 2] + [0] * (len(rig.actions) - 7))

    def episode():
        game, rng = RealGame(rig), np.random.default_rng(0)
        frames = [(game.start(4), game._lab.observation("WORLD.RGB"))]
        for _ in range(12):
            seen, _ = game.step(policy(frames[-1][0], rng))
            frames.append((seen, np.array(game._lab.observation("WORLD.RGB"))))
        return game.sites, frames

    sites, frames = in_child(episode)
    apples, dirt, water = (
        [game_map.cell(int(x), int(y)) for x, y, which in sites if which == kind] for kind in (1, 2, 3)
    )
    for seen, picture in frames:
        cells = codes.base.copy()
        cells[apples] += seen.apple + 2 * seen.dry
        cells[water] += seen.water
        cells[dirt] += WATERS * seen.dirt
        for slot in range(rig.n_agents):
            cell = game_map.cell(int(seen.x[slot]), int(seen.y[slot]))
            cells[cell] += codes.n_grounds * (1 + 4 * slot + seen.heading[slot])
        grid = cells.reshape(-1, game_map.stride)[maps.MARGIN : -maps.MARGIN, maps.MARGIN : -maps.MARGIN]
        np.testing.assert_array_equal(view_renderer.world(known, grid), picture)


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=40)
@given(
    ids=arrays.arrays(np.int32, arrays.array_shapes(min_dims=2, max_dims=4, max_side=12), elements=st.integers(0, 4)),
    dtype=st.sampled_from([torch.int16, torch.int32, torch.int64]),
)
def test_pictures_are_tiles_side_by_side(compiled, ids, dtype):
    bank = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    *lead, rows, columns = ids.shape
    wanted = np.zeros((*lead, 8 * rows, 8 * columns, 3), np.uint8)
    for place in np.ndindex(*ids.shape):
        *at, row, column = place
        wanted[(*at, slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8))] = bank[ids[place]]
    got = ViewRenderer(bank, compiled=compiled).expand(torch.from_numpy(ids).to(dtype))
    np.testing.assert_array_equal(got.numpy(), wanted)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("games", [1, 60, 401])
def test_a_given_output_is_written_whole(compiled, games):
    """Small batches and such as threads share and as are written past the caches; transposed numbers too."""
    bank = np.random.default_rng(0).integers(0, 256, (300, 8, 8, 3), dtype=np.uint8)
    ids = np.random.default_rng(1).integers(0, 300, (games, 11, 7), dtype=np.int32)
    out = torch.full((games, 56, 88, 3), 7, dtype=torch.uint8)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        painter = ViewRenderer(bank, compiled=compiled)
        for _ in range(2):
            assert painter.expand(torch.from_numpy(ids).transpose(1, 2), out=out) is out
            wanted = bank[ids.transpose(0, 2, 1)].transpose(0, 1, 3, 2, 4, 5).reshape(out.shape)
            np.testing.assert_array_equal(out.numpy(), wanted)
            ids = ids[::-1].copy()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("compiled", [True, False])
def test_wrong_arguments_are_refused(compiled):
    painter = ViewRenderer(np.zeros((4, 8, 8, 3), np.uint8), compiled=compiled)
    ids = torch.zeros(2, 11, 11, dtype=torch.int32)
    with pytest.raises(ValueError, match="out must be"):
        painter.expand(ids, out=torch.empty(2, 88, 88, 4, dtype=torch.uint8))
    for wrong in (4, -9):
        with pytest.raises(IndexError):
            painter.expand(ids + wrong)
    with pytest.raises(ConfigError, match="bank"):
        ViewRenderer(np.zeros((4, 16, 16, 3), np.uint8))


def test_without_a_compiler_pytorch_paints(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for compiler in ("no-such-compiler", "false"):
        monkeypatch.setenv("CXX", compiler)
        assert tile_copy_cpp.load.__wrapped__() is None
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_plain_tiles_need_no_package(substrate, monkeypatch):
    def load(name):
        raise AssertionError("the package was asked for")

    monkeypatch.setattr(install, "load", load)
    monkeypatch.setattr(install, "missing", lambda: ["dm-meltingpot"])
    game_map = maps.parse(substrate, OWN_MAPS[substrate])
    codes = number(game_map, 15)
    known = tiles(substrate, game_map.text, 15, "auto")
    assert known is tiles(substrate, game_map.text, 15, "plain")
    ground, _, beam = codes.parts()
    assert not known.bank[0].any() and (known.player[:, ground == 0] == 0).all()
    # Everything that matters can be told from the rest: what lies there, who stands there, and where they face.
    for heading in range(4):
        for one in range(1, codes.n_grounds):
            others = (ground == one) & (beam == 0)
            assert len(set(known.player[heading, others])) == codes.n_avatars
    looks = {codes.grounds[one]: known.world[one] for one in range(codes.n_grounds)}
    waters = {stack: look for stack, look in looks.items() if stack and stack[0] in ("water_2", "water_4")}
    assert len(set(looks.values())) >= len(looks) - len(waters) // 2


@pytest.mark.parametrize("source", [pytest.param("melting_pot", marks=pytest.mark.meltingpot), "plain"])
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_tiles_differ_from_each_other_and_are_made_once(substrate, source):
    text = OWN_MAPS[substrate]
    known = tiles(substrate, text, 15, source)
    assert len({tile.tobytes() for tile in known.bank}) == len(known.bank)
    assert set(np.unique(known.player)) == set(range(len(known.bank)))
    assert tiles(substrate, text, 15, source) is known
    with pytest.raises(ValueError, match="read-only"):
        known.bank[0] = 1


def test_players_turn_against_the_view():
    """Somebody who faces east is seen facing to the right by who looks north, and from behind by who looks east."""
    codes = number(maps.parse("harvest", OWN_MAPS["harvest"]), 2)
    known = tiles("harvest", OWN_MAPS["harvest"], 2, "plain")
    floor = codes.grounds.index(("floor",))

    def mark(viewer, heading):
        tile = known.bank[known.player[viewer, floor + codes.n_grounds * (1 + heading)]]
        return np.argwhere((tile == 255).all(-1)).mean(0)

    marked = np.array([[mark(viewer, heading) for heading in range(4)] for viewer in range(4)])
    up, right, down, left = marked[0]
    assert up[0] < 3 and down[0] > 4 and right[1] > 4 and left[1] < 3
    for viewer in range(4):
        for heading in range(4):
            np.testing.assert_array_equal(marked[viewer, heading], marked[0, (heading - viewer) % 4])


def test_blending_rounds_as_the_engine_does():
    every = np.arange(256)
    below, alpha, above = np.meshgrid(every, every, (0, 1, 99, 254, 255), indexing="ij")
    wanted = ((255 - alpha) * below + alpha * above + 127) // 255
    rgba = np.stack([above, above, above, alpha], -1).astype(np.uint8)
    got = blend(np.stack([below] * 3, -1).astype(np.uint8), rgba)
    np.testing.assert_array_equal(got, np.stack([wanted] * 3, -1))


@pytest.mark.meltingpot
def test_more_players_than_colours_are_refused():
    assert len(sprites.load("cleanup", 40, "melting_pot").avatars) == 40
    assert len(sprites.load("harvest", 200, "plain").avatars) == 200
    with pytest.raises(ConfigError, match=r"n_agents=200.*env\.tiles=plain"):
        sprites.load("cleanup", 200, "melting_pot")
    with pytest.raises(ConfigError, match=r"env\.tiles=pretty"):
        sprites.load("cleanup", 7, "pretty")
