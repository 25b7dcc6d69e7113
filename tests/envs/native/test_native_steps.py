"""Episodes of the real engine, replayed on the native one, which must agree after each step."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import scripted
from engine_games import GameSettings, play
from llmrl.envs.native.hashed_random import derive_game_keys
from llmrl.envs.substrate.maps import PACKAGE_MAPS, parse_map
from replays import make_engine, replay_recordings
from some import mark_long_except
from statistics_of_games import make_engine_policy
from stepped_engine import HashedRandom

pytestmark = pytest.mark.meltingpot
EPISODES = {
    "cleanup": (GameSettings("cleanup"), "uniform"),
    "cleanup, clean start": (GameSettings("cleanup", clean=True), "uniform"),
    "cleanup, foragers and cleaners": (GameSettings("cleanup"), "mixed"),
    "cleanup, legislative": (GameSettings("cleanup", rules="legislative"), "uniform"),
    "harvest": (GameSettings("harvest"), "uniform"),
    "harvest, foragers": (GameSettings("harvest"), "mixed"),
    "harvest, legislative": (GameSettings("harvest", rules="legislative"), "uniform"),
    "harvest, two players": (GameSettings("harvest", n_agents=2), "uniform"),
    "cleanup, fifteen players": (GameSettings("cleanup", n_agents=15), "uniform"),
    "cleanup, our map": (GameSettings("cleanup", PACKAGE_MAPS["cleanup"]), "mixed"),
    "harvest, our map": (GameSettings("harvest", PACKAGE_MAPS["harvest"]), "uniform"),
    "harvest, our map, legislative": (GameSettings("harvest", PACKAGE_MAPS["harvest"], rules="legislative"), "mixed"),
}
ALWAYS = ("moves", "moves into a wall or a player")
HAPPENS = {
    "cleanup": (*ALWAYS, "zap hits", "returns", "cells cleaned", "dirt spawned"),
    "harvest": (*ALWAYS, "zap hits", "returns", "apples eaten", "apples grown"),
}
"""What a few hundred steps must not go without."""


def episodes(name, games, steps, seed=0):
    game_settings, policy = EPISODES[name]
    script = scripted.SCRIPTS[policy](parse_map(game_settings.substrate, game_settings.map), game_settings.actions)
    return [play(game_settings, make_engine_policy(script), steps, seed + i) for i in range(games)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", mark_long_except(["harvest"], ["cleanup, clean start", "harvest", "cleanup, legislative"])
)
def test_episode_matches_step_by_step(name):
    replay_result = replay_recordings(episodes(name, 1, 200))
    assert replay_result.steps == 200 and not replay_result.mismatches, replay_result.mismatches[:5]
    assert replay_result.counts["moves"] > 100 and replay_result.counts["apples eaten"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", mark_long_except(["harvest, our map, legislative"], EPISODES))
def test_episodes_match_step_by_step(name):
    game_settings = EPISODES[name][0]
    recordings = episodes(name, 2, 300, seed=100)
    replay_result = replay_recordings(recordings)
    assert replay_result.steps == 600 and not replay_result.mismatches, replay_result.mismatches[:5]
    if game_settings.n_agents == 7 and game_settings.rules == "upstream":
        assert all(replay_result.counts[event] > 0 for event in HAPPENS[game_settings.substrate])


@pytest.mark.parametrize(
    ("substrate", "changes"),
    [
        ("harvest", ("x", "alive", "heading", "reward", "zapped", "zap_wait", "apple", "waits", "dry")),
        pytest.param(
            "cleanup",
            ("x", "alive", "heading", "reward", "cleaned", "others_cleaned", "clean_wait", "dirt", "water"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_replay_detects_differences(substrate, changes):
    """Change one entry of one step of the recording at a time."""
    game_settings = GameSettings(substrate)
    recording = play(
        game_settings,
        lambda observation, rng: rng.integers(0, len(game_settings.actions), game_settings.n_agents),
        40,
        5,
    )
    assert not replay_recordings([recording]).mismatches
    # Where somebody is who is out of the game says nothing, and who is out differs from one recording to the next.
    player = int(recording.states.alive[28:33].all(0).argmax())
    assert recording.states.alive[28:33, player].all()
    for name in changes:
        value = getattr(recording.states, name).copy()
        at = (30, player if value.shape[1] == game_settings.n_agents else 3)
        if name == "waits":  # counts from 3 on are the same
            value[at] = 0 if value[at] < 0 else -1
        else:
            value[at] = ~value[at] if value.dtype == bool else value[at] ^ 1
        changed = dataclasses.replace(recording, states=dataclasses.replace(recording.states, **{name: value}))
        mismatches = replay_recordings([recording, changed]).mismatches
        assert mismatches and all(game == 1 for game, *_ in mismatches), name
        assert min(t for _, t, *_ in mismatches) in (30, 31), name


@pytest.mark.parametrize(
    ("substrate", "change"),
    [
        pytest.param("harvest", {"zap_cooldown": 3}, marks=pytest.mark.long),
        pytest.param("harvest", {"removal_steps": 5}, marks=pytest.mark.long),
        ("cleanup", {"clean_cooldown": 1}),
        pytest.param("cleanup", {"zap_cooldown": 9}, marks=pytest.mark.long),
    ],
)
def test_replay_detects_different_rules(substrate, change):
    game_settings = GameSettings(substrate)
    recording = play(
        game_settings,
        lambda observation, rng: rng.choice([1, 4, 5, 7, len(game_settings.actions) - 1], game_settings.n_agents),
        120,
        6,
    )
    engine = make_engine(recording)
    engine.tables = engine.tables._replace(constants=engine.tables.constants._replace(**change))
    assert replay_recordings([recording], engine).mismatches


@pytest.mark.long
def test_documentation_table_is_printable():
    script = Path(__file__).parents[3] / "benchmarks" / "parity.py"
    command = [sys.executable, str(script), "replay", "--games", "1", "--steps", "20", "--processes", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "| harvest | legislative | uniform | 20 | 0 |" in result.stdout


@pytest.mark.long
def test_engine_start_is_valid():
    """Check that start positions and headings are possible in the native engine, and that apples and dirt are equal."""
    for name in ("cleanup", "harvest", "cleanup, legislative", "harvest, legislative"):
        recording = episodes(name, 1, 1)[0]
        game_map, observation, engine = make_engine(recording).setup.game_map, recording.states, make_engine(recording)
        keys = derive_game_keys(np.zeros(2000, np.int64), np.arange(2000), np.zeros(2000, np.int64))
        start = engine.start(HashedRandom(torch.from_numpy(keys)))
        cells = (observation.y[0] + 9) * game_map.stride + observation.x[0] + 9
        for player, cell in enumerate(cells):
            assert cell in start.pos[:, player] and observation.heading[0, player] in start.heading[:, player]
        np.testing.assert_array_equal(start.apple[0], observation.apple[0])
        np.testing.assert_array_equal(start.dirt[0], observation.dirt[0])
        if recording.game_settings.rules == "legislative":
            assert (start.pos == start.pos[:1]).all() and (start.heading == 0).all()
