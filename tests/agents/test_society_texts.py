"""Texts for players of Clean Up and Harvest match their pictures."""

import json

import numpy as np
import pytest

from llmrl.core.seeding import Seeds
from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
from llmrl.envs.substrate import install
from llmrl.envs.substrate.grid_text import SpriteEncoder, describe_observation
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.envs.substrate.substrate_rules import SUBSTRATES
from some import mark_long_except

pytestmark = pytest.mark.meltingpot


def game(substrate="cleanup", render=False, **options):
    settings = SubstrateSettings(substrate, 1, observe=["pixels", "text", "vector"], **options)
    return MeltingPotEnv(settings, Seeds(0), render)


@pytest.mark.slow
@pytest.mark.parametrize("substrate", mark_long_except(["cleanup"], ["cleanup", "harvest"]))
def test_example_has_observation_length(substrate):
    """Compare lengths, because costs are estimated from the example."""
    env = game(substrate, n_agents=7, horizon=5)
    observation_text = [len(text) for text in env.reset(seed=0)["text"][0]]
    env.close()
    example = env.spec.text.example
    assert json.loads(example).keys() >= {"map", "apples", "players"}
    assert max(observation_text) <= len(example) <= 3 * np.mean(observation_text)


def read(observation, player):
    return json.loads(observation["text"][0, player])


@pytest.mark.slow
def test_map_matches_substrate():
    """Check that each map is a part of the full map: all players start on a known cell and face north."""
    env = game(rules="legislative", n_agents=7, horizon=5)
    observation = env.reset(seed=0)
    map_rows = install.import_substrate("clean_up")[1].ASCII_MAP.strip("\n").split("\n")
    signs = dict.fromkeys("W", "#") | dict.fromkeys("HS~", "~") | {"F": "x"}
    # Apple sites are full at the start; what else there is is sand.
    signs |= dict.fromkeys("BT", "a") | dict.fromkeys("s^;,", ",")
    for player, (x, y) in enumerate(SUBSTRATES["cleanup"].spawn_cells):
        view = read(observation, player)["map"]
        for row, line in enumerate(view):
            for column, sign in enumerate(line):
                cy, cx = y - 9 + row, x - 5 + column
                in_map = 0 <= cy < len(map_rows) and 0 <= cx < len(map_rows[0])
                if (row, column) == (9, 5):
                    assert sign == "@"
                elif not sign.isdigit():  # somebody stands there
                    assert sign == (signs.get(map_rows[cy][cx], ".") if in_map else " ")
        other_positions = {(x2 - x, y - y2) for x2, y2 in SUBSTRATES["cleanup"].spawn_cells if (x2, y2) != (x, y)}
        positions = {
            (player_facts["right"], player_facts["ahead"]) for player_facts in read(observation, player)["players"]
        }
        assert positions == {(right, dy) for right, dy in other_positions if abs(right) <= 5 and -1 <= dy <= 9}
        assert all(
            player_facts["facing"] == "the way you face" for player_facts in read(observation, player)["players"]
        )
    env.close()


@pytest.mark.slow
def test_map_rotates_with_player():
    """Compare the colors of the picture with the symbols of the map, cell by cell, for each heading."""
    env = game(n_agents=3, horizon=60)
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    color_samples, n_checked = {}, 0
    for _ in range(40):
        step = env.step(rng.choice([1, 3, 4, 5, 6], size=(1, 3)))
        for player in range(3):
            cells = step.observation["pixels"][0, player].reshape(11, 8, 11, 8, 3)
            for row, line in enumerate(read(step.observation, player)["map"]):
                for column, sign in enumerate(line):
                    # Of walls and outside every pixel tells; sand, grass and water differ in their mean.
                    mean = cells[row, :, column].reshape(-1, 3).mean(0)
                    if sign in " #.,~x":
                        color_samples.setdefault(sign, []).append(mean)
                        n_checked += 1
    centers = {sign: np.median(means, axis=0) for sign, means in color_samples.items() if len(means) > 50}
    assert {" ", "#", ".", ",", "~", "x"} == set(centers) and n_checked > 5000
    names = list(centers)
    for sign, means in color_samples.items():
        distance = np.linalg.norm(np.array(means)[:, None] - np.array([centers[n] for n in names]), axis=-1)
        assert (np.array(names)[distance.argmin(1)] == sign).all(), sign
    env.close()


@pytest.mark.slow
def test_numbers_accompany_map():
    env = game(n_agents=2, horizon=20)
    observation = env.reset(seed=0)
    for player in range(2):
        view = read(observation, player)
        lines = np.array([list(line) for line in view["map"]])
        assert view["dirt"] == (lines == "x").sum() and view["apples"] == (lines == "a").sum()
        if view["dirt"]:
            nearest = view["nearest_dirt"]
            assert lines[9 - nearest["ahead"], 5 + nearest["right"]] == "x"
        assert view["can_zap"] is bool(observation["vector"][0, player, 0])
    env.close()


@pytest.mark.slow
def test_removed_player_receives_no_map():
    env = game(n_agents=15, horizon=200, render=False)
    env.reset(seed=0)
    has_zapped = False
    rng = np.random.default_rng(1)
    for _ in range(120):
        step = env.step(rng.choice([7, 1, 5], p=[0.6, 0.2, 0.2], size=(1, 15)))
        texts, dark = step.observation["text"][0], ~step.observation["pixels"][0].any((1, 2, 3))
        assert [text == "" for text in texts] == dark.tolist()
        has_zapped |= dark.any()
        if has_zapped:
            break
    assert has_zapped
    env.close()


def test_text_describes_initial_game():
    cleanup, harvest = (game(name, n_agents=2, horizon=5).spec.text for name in ("cleanup", "harvest"))
    assert "river" in cleanup.goal and "river" not in harvest.goal
    assert dict(cleanup.actions)["clean"] and "clean" not in dict(harvest.actions)
    assert "dirt" in dict(cleanup.observation) and "dirt" not in dict(harvest.observation)


def test_shows_topmost_object():
    codes = SpriteEncoder(["", "Sand.N", "Apple.N", "Avatar2.E", "water_1.N", "ShadowN.N", "BeamZap.N"])
    layers = np.zeros((11, 11, 3), dtype=np.int32)
    layers[:, :, 0] = 1
    layers[0, 0] = (1, 2, 5)
    layers[2, 7] = (1, 2, 3)
    layers[3, 3] = (4, 6, 0)
    view = json.loads(describe_observation(codes(layers, 0), "cleanup", "upstream", (1.0, 2.0)))
    assert view["map"][0] == "a.........." and view["map"][3][3] == "~"
    assert view["players"] == [{"player": 2, "ahead": 7, "right": 2, "facing": "to your right"}]
    assert view["nearest_apple"] == {"ahead": 9, "right": -5} and view["others_who_cleaned"] == 2
