"""Output of the viewer of native games."""

import numpy as np
import pytest
from PIL import Image

from llmrl.core.frames import enlarge
from llmrl.core.seeding import Seeds
from llmrl.envs.native import viewer
from llmrl.envs.native.cell_codes import assign_codes
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.env_spec import SubstrateSettings
from llmrl.envs.substrate.maps import OWN_MAPS, parse

SMALL = """
WWWWWWW
WHF B W
W  PP W
WWWWWWW
"""


def test_world_as_letters():
    game_map = parse("cleanup", SMALL)
    codes = assign_codes(game_map, 2)
    cells = codes.base.copy()
    dirty = game_map.cell(2, 1)
    cells[dirty] += 4
    cells[game_map.cell(4, 1)] += 1  # an apple
    cells[game_map.cell(3, 2)] += codes.n_grounds * (1 + 4 * 1 + 3)  # player 2, to the west
    cells[game_map.cell(2, 2)] += codes.n_grounds * codes.n_avatars * 2  # a zap
    cells[game_map.cell(1, 2)] += codes.n_grounds * codes.n_avatars  # a clean beam
    grid = cells.reshape(-1, game_map.stride)[9:-9, 9:-9]
    assert viewer.ascii_world(codes, grid).splitlines() == [
        "# # # # # # #",
        "# ~ x . a . #",
        "# .+.*2<. . #",
        "# # # # # # #",
    ]


@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_viewer_saves_random_game(substrate, tmp_path, capsys):
    arguments = ["--substrate", substrate, "--steps", "3", "--seed", "4", "--map", "own", "--tiles", "plain"]
    world, view = tmp_path / "world.png", tmp_path / "view.png"
    assert viewer.main([*arguments, "--png", str(world)]) == 0
    output = capsys.readouterr().out
    assert output.count("\nstep ") == 3 and "returns" in output
    rows = OWN_MAPS[substrate].strip("\n").splitlines()
    frame = output.split("start\n")[1].splitlines()[: len(rows)]
    assert [[letter == "#" for letter in row[::2]] for row in frame] == [
        [symbol == "W" for symbol in row] for row in rows
    ]
    for player in range(1, 8):
        assert sum(row.count(f"{player}{arrow}") for row in frame for arrow in viewer.HEADING_SYMBOLS) == 1

    env = NativeEnv(
        SubstrateSettings(substrate, 1, horizon=None, observe=["pixels"], map="own"), Seeds(4), tiles="plain"
    )
    env.reset()
    rng = np.random.default_rng(4)
    for _ in range(3):
        step = env.step(rng.integers(0, env.spec.n_actions, (1, 7)))
    np.testing.assert_array_equal(np.asarray(Image.open(world)), enlarge(env.render(0), 672))
    assert viewer.main([*arguments, "--png", str(view), "--player", "3"]) == 0
    pixels = step.observation["pixels"][0, 2].numpy()
    np.testing.assert_array_equal(np.asarray(Image.open(view)), enlarge(pixels, 672))


def test_reports_unsupported_views(capsys, tmp_path):
    assert viewer.main(["--map", "nowhere.txt"]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert viewer.main(["--player", "8", "--png", str(tmp_path / "a.png")]) == 1
    assert "must be 1 to 7" in capsys.readouterr().err
