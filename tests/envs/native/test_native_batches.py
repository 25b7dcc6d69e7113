"""Native games in a batch: random numbers, backends, waiting games, lifetime of pictures, memory and maps."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from llmrl.config.input_digests import with_digests
from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.records import to_numpy
from llmrl.core.seeding import Seeds
from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
from llmrl.envs.native.engine import GameSetup
from llmrl.envs.native.hashed_random import derive_game_keys
from llmrl.envs.substrate import maps
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector
from native_games import SUBSTRATES, flatten_step, make_native_env, sample_actions
from stepped_engine import HashedRandom, SteppedEngine

pytestmark = pytest.mark.slow


def test_game_numbers_are_uniform() -> None:
    keys = torch.from_numpy(derive_game_keys(np.full(64, 7), np.arange(64), np.zeros(64, np.int64)))
    t = torch.zeros(64, dtype=torch.int32)
    draws = HashedRandom(keys)
    u = torch.cat([draws.uniform("grow", t + step, 500) for step in range(40)])
    assert ((u >= 0) & (u < 1)).all() and abs(u.mean() - 0.5) < 4 * (1 / 12) ** 0.5 / u.numel() ** 0.5
    counts = torch.histc(u, 64, 0, 1)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 63 + 4 * (2 * 63) ** 0.5
    assert torch.equal(u[:64], HashedRandom(keys).uniform("grow", t, 500))
    assert not torch.equal(u[:64], draws.uniform("order", t, 500))
    pairs = torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()])
    assert abs(torch.corrcoef(pairs)[0, 1]) < 0.01


@pytest.mark.slow
def test_rejects_oversized_rollouts() -> None:
    env = make_native_env("harvest", 64, observe=["pixels"])
    network = ActorCritic(env.spec, torch.Generator(), NetworkSettings(None, [], []))
    collector = Collector(env, SocietyPolicy(env.spec, [network], core_frozen=False), "cpu")
    collector.reset(1)
    with pytest.raises(ConfigError, match=r"GiB.*env\.n_envs"):
        collector.collect(10**5, torch.Generator())


def test_respawn_conflict_is_random() -> None:
    """Let two of three players respawn on one free cell; the third stands at its start."""
    engine = SteppedEngine(GameSetup(maps.parse_map("harvest", "WWWWWW\nWQQPAW\nWWWWWW"), 3))
    draws = HashedRandom(
        torch.from_numpy(derive_game_keys(np.full(4000, 1), np.arange(4000), np.zeros(4000, np.int64)))
    )
    start = engine.start(draws)
    due = torch.tensor([True, False, True]).expand(4000, 3)
    state = dataclasses.replace(
        start, alive=~due, steps_until_return=due.to(torch.int32), pos=torch.where(due, 0, start.pos)
    )
    after, _ = engine.step(state, torch.zeros((4000, 3), dtype=torch.int64), draws)
    respawned = after.alive & due
    assert (respawned.sum(1) == 1).all() and after.alive[:, 1].all()
    assert (after.pos[respawned] == engine.setup.game_map.spawn_cells[0]).all()
    assert abs(respawned[:, 0].float().mean() - 0.5) < 4 * 0.5 / 4000**0.5


def test_default_map_and_tiles_need_no_melting_pot(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(maps.install, "list_missing_requirements", lambda: ["dmlab2d"])
    env = make_native_env("harvest", 1, observe=["pixels"])
    assert "env.map=own" in caplog.text
    assert env.engine.setup.game_map.text == maps.load_map("harvest", "own").text
    picture = env.reset(seed=1)["pixels"]
    assert picture.shape == (1, 7, 88, 88, 3) and len(picture.unique()) > 5
    maps._load_melting_pot_map.cache_clear()
    with pytest.raises(EngineError, match="not installed"):
        make_native_env("harvest", 1, map="melting_pot")


@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_active_game_ignores_waiting_games(substrate: str) -> None:
    single, double = make_native_env(substrate, 1), make_native_env(substrate, 2, horizon=120)
    single.reset(seed=3), double.reset(seed=3)
    for _ in range(60):  # the second game is over while the first, begun anew, is half way
        double.step(np.zeros((2, 7), np.int64))
    single.reset(), double.reset(mask=np.array([True, False]))
    for t, action in enumerate(sample_actions(double, 110)):
        left_outputs, b = flatten_step(single.step(action[:1])), flatten_step(double.step(action))
        for name, x in left_outputs.items():
            if name != "truncated":
                assert np.array_equal(x, b[name][:1]), (t, name)
    assert b["truncated"].tolist() == [False, True]


def test_waiting_games_are_restored_exactly() -> None:
    env, second_env = (
        make_native_env("cleanup", 3, seed=seed, horizon=40, observe=["grid", "vector"]) for seed in (0, 1)
    )
    env.reset(seed=1)
    actions = sample_actions(env, 60)
    for t, action in enumerate(actions):
        if t == 25:
            env.reset(mask=np.array([True, False, False]))
        done = env.step(action).truncated
        if done.any():
            break
    second_env.load_state_dict(env.state_dict())
    left_outputs, b = env.reset(mask=done), second_env.reset(mask=done)
    assert left_outputs["grid"][..., 3].any() or left_outputs["vector"][..., 1].any()  # beams, and who cleaned
    for name in left_outputs:
        assert torch.equal(left_outputs[name], b[name]), name
    assert np.array_equal(env.render(0), second_env.render(0))


def test_players_observe_episode_end() -> None:
    env = make_native_env("harvest", 1, observe=["text", "grid"], horizon=2)
    env.reset(seed=1)
    env.step(np.zeros((1, 7), np.int64))
    last = env.step(np.zeros((1, 7), np.int64))
    assert last.truncated.all() and all(last.observation["text"][0])
    assert not any(env.step(np.zeros((1, 7), np.int64)).observation["text"][0])


def test_pictures_are_valid_for_two_steps() -> None:
    env = make_native_env("cleanup", 2, observe=["pixels"])
    first = env.reset(seed=1)["pixels"]
    first_copy = first.clone()
    second = env.step(np.full((2, 7), 6)).observation["pixels"]
    env.reset(mask=np.array([True, False]))
    assert torch.equal(first, first_copy) and not torch.equal(second, first)
    assert np.array_equal(env.render_players(1), to_numpy(second)[1])


@pytest.mark.meltingpot
def test_auto_backend_is_resolved_per_run(monkeypatch: Any, tmp_path: Any) -> None:
    """Check that a run keeps its map when a package is installed or a file is edited."""

    def config(**env: Any) -> dict[str, Any]:
        usual = {"engine": "native", "map": "auto", "tiles": "auto", "observe": ["grid"]}
        target = {"_target_": "llmrl.envs.substrate.factory.substrate_env"}
        return {"prompts": None, "llm": {}, "env": {**target, **usual, **env}}

    assert with_digests(config())["map_digest"] == "melting_pot"
    assert "map_digest" not in with_digests(config(map="own"))
    assert "map_digest" not in with_digests(config(engine="meltingpot"))
    assert with_digests(config(map="own", observe=["pixels"]))["map_digest"] == "melting_pot"
    file = tmp_path / "room.txt"
    file.write_text("WWWW\nWPAW\nWWWW")
    drawn_config = with_digests(config(map=str(file)))
    file.write_text("WWWW\nWAPW\nWWWW")
    with pytest.raises(ConfigError, match="changed"):
        with_digests(drawn_config)
    installed = with_digests(config())
    monkeypatch.setattr(maps.install, "list_missing_requirements", lambda: ["dmlab2d"])
    assert with_digests(config())["map_digest"] == "own"
    with pytest.raises(ConfigError, match="changed"):
        with_digests(installed)


@pytest.mark.meltingpot
@pytest.mark.parametrize("room", ["WWWWWW\nWPPPAW\nWWWWWW", "WWWWWW\nWQQPAW\nWWWWWW"])
def test_engines_share_drawn_map(room: str) -> None:
    real = MeltingPotEnv(SubstrateSettings("harvest", 1, n_agents=3, observe=["grid"], map=room), Seeds(0))
    custom_env = make_native_env("harvest", 1, n_agents=3, observe=["grid"], map=room)
    try:
        cell_counts = [
            np.unique(to_numpy(env.reset(seed=1)["grid"])[..., 0], return_counts=True) for env in (real, custom_env)
        ]
        assert real.spec.observation == custom_env.spec.observation
        assert set(cell_counts[0][0]) == set(cell_counts[1][0])
        assert real.step(np.zeros((1, 3), np.int64)).reward.shape == (1, 3)
    finally:
        real.close()


def test_steps_inside_inference_mode() -> None:
    env = make_native_env("harvest", 2, observe=["grid", "pixels"])
    with torch.inference_mode():
        env.reset(seed=1)
        env.step(np.zeros((2, 7), np.int64))
    for _ in range(4):
        step = env.step(np.zeros((2, 7), np.int64))
    assert not step.observation["grid"].is_inference()
