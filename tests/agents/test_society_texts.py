"""What players of Clean Up and Harvest are told is what their pictures show."""

import json

import numpy as np
import pytest

from llmrl.core.seeding import Seeds
from llmrl.envs.melting_pot import install
from llmrl.envs.melting_pot.env_spec import SubstrateSettings
from llmrl.envs.melting_pot.grid_text import SpriteCodes, told
from llmrl.envs.melting_pot.substrate_rules import SUBSTRATES
from llmrl.envs.melting_pot.vec_env import MeltingPotEnv

pytestmark = pytest.mark.meltingpot


def game(substrate="cleanup", render=False, **options):
    settings = SubstrateSettings(substrate, 1, observe=["pixels", "text", "vector"], **options)
    return MeltingPotEnv(settings, Seeds(0), render)


@pytest.mark.slow
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_the_example_is_as_long_as_what_is_told(substrate):
    """Costs are estimated from it before there is a game."""
    env = game(substrate, n_agents=7, horizon=5)
    told = [len(text) for text in env.reset(seed=0)["text"][0]]
    env.close()
    example = env.spec.text.example
    assert json.loads(example).keys() >= {"map", "apples", "players"}
    assert max(told) <= len(example) <= 3 * np.mean(told)


def read(observation, player):
    return json.loads(observation["text"][0, player])


@pytest.mark.slow
def test_the_map_is_the_substrates():
    """Everybody starts on a known cell and faces north: each map is a piece of the drawn one."""
    env = game(rules="legislative", n_agents=7, horizon=5)
    observation = env.reset(seed=0)
    drawn = install.load("clean_up")[1].ASCII_MAP.strip("\n").split("\n")
    signs = dict.fromkeys("W", "#") | dict.fromkeys("HS~", "~") | {"F": "x"}
    # Apple sites are full at the start; what else there is is sand.
    signs |= dict.fromkeys("BT", "a") | dict.fromkeys("s^;,", ",")
    for player, (x, y) in enumerate(SUBSTRATES["cleanup"].spawn_cells):
        shown = read(observation, player)["map"]
        for row, line in enumerate(shown):
            for column, sign in enumerate(line):
                cy, cx = y - 9 + row, x - 5 + column
                inside = 0 <= cy < len(drawn) and 0 <= cx < len(drawn[0])
                if (row, column) == (9, 5):
                    assert sign == "@"
                elif not sign.isdigit():  # somebody stands there
                    assert sign == (signs.get(drawn[cy][cx], ".") if inside else " ")
        others = {(x2 - x, y - y2) for x2, y2 in SUBSTRATES["cleanup"].spawn_cells if (x2, y2) != (x, y)}
        seen = {(other["right"], other["ahead"]) for other in read(observation, player)["players"]}
        assert seen == {(right, ahead) for right, ahead in others if abs(right) <= 5 and -1 <= ahead <= 9}
        assert all(other["facing"] == "the way you face" for other in read(observation, player)["players"])
    env.close()


@pytest.mark.slow
def test_it_turns_with_the_player():
    """Cell by cell the colours of the picture are those of the signs, whichever way the player looks."""
    env = game(n_agents=3, horizon=60)
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    colour, checked = {}, 0
    for _ in range(40):
        step = env.step(rng.choice([1, 3, 4, 5, 6], size=(1, 3)))
        for player in range(3):
            cells = step.observation["pixels"][0, player].reshape(11, 8, 11, 8, 3)
            for row, line in enumerate(read(step.observation, player)["map"]):
                for column, sign in enumerate(line):
                    # Of walls and outside every pixel tells; sand, grass and water differ in their mean.
                    mean = cells[row, :, column].reshape(-1, 3).mean(0)
                    if sign in " #.,~x":
                        colour.setdefault(sign, []).append(mean)
                        checked += 1
    centres = {sign: np.median(means, axis=0) for sign, means in colour.items() if len(means) > 50}
    assert {" ", "#", ".", ",", "~", "x"} == set(centres) and checked > 5000
    names = list(centres)
    for sign, means in colour.items():
        distance = np.linalg.norm(np.array(means)[:, None] - np.array([centres[n] for n in names]), axis=-1)
        assert (np.array(names)[distance.argmin(1)] == sign).all(), sign
    env.close()


@pytest.mark.slow
def test_numbers_beside_the_map():
    env = game(n_agents=2, horizon=20)
    observation = env.reset(seed=0)
    for player in range(2):
        shown = read(observation, player)
        lines = np.array([list(line) for line in shown["map"]])
        assert shown["dirt"] == (lines == "x").sum() and shown["apples"] == (lines == "a").sum()
        if shown["dirt"]:
            nearest = shown["nearest_dirt"]
            assert lines[9 - nearest["ahead"], 5 + nearest["right"]] == "x"
        assert shown["can_zap"] is bool(observation["vector"][0, player, 0])
    env.close()


@pytest.mark.slow
def test_who_is_out_of_the_game_is_told_nothing():
    env = game(n_agents=15, horizon=200, render=False)
    env.reset(seed=0)
    zapped = False
    rng = np.random.default_rng(1)
    for _ in range(120):
        step = env.step(rng.choice([7, 1, 5], p=[0.6, 0.2, 0.2], size=(1, 15)))
        texts, dark = step.observation["text"][0], ~step.observation["pixels"][0].any((1, 2, 3))
        assert [text == "" for text in texts] == dark.tolist()
        zapped |= dark.any()
        if zapped:
            break
    assert zapped
    env.close()


def test_of_the_game_before_it_begins():
    cleanup, harvest = (game(name, n_agents=2, horizon=5).spec.text for name in ("cleanup", "harvest"))
    assert "river" in cleanup.goal and "river" not in harvest.goal
    assert dict(cleanup.actions)["clean"] and "clean" not in dict(harvest.actions)
    assert "dirt" in dict(cleanup.observation) and "dirt" not in dict(harvest.observation)


def test_what_lies_on_top():
    codes = SpriteCodes(["", "Sand.N", "Apple.N", "Avatar2.E", "water_1.N", "ShadowN.N", "BeamZap.N"])
    layers = np.zeros((11, 11, 3), dtype=np.int32)
    layers[:, :, 0] = 1
    layers[0, 0] = (1, 2, 5)
    layers[2, 7] = (1, 2, 3)
    layers[3, 3] = (4, 6, 0)
    shown = json.loads(told(codes(layers, 0), "cleanup", "upstream", (1.0, 2.0)))
    assert shown["map"][0] == "a.........." and shown["map"][3][3] == "~"
    assert shown["players"] == [{"player": 2, "ahead": 7, "right": 2, "facing": "to your right"}]
    assert shown["nearest_apple"] == {"ahead": 9, "right": -5} and shown["others_who_cleaned"] == 2
