"""`NativeEnv` as a `VecEnv`: shapes, seeds, batches, episode ends, states, mechanisms and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from llmrl.core.errors import CheckpointError, ConfigError
from llmrl.core.records import to_numpy
from llmrl.envs.mechanisms import BracketedTax, Incentives
from llmrl.envs.native.engine import GameSetup
from llmrl.envs.native.hashed_random import derive_game_keys
from llmrl.envs.native.vec_env import find_ended_games
from llmrl.envs.substrate import maps
from native_games import SUBSTRATES, flatten_step, make_native_env, sample_actions


@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_step_outputs_match_spec(substrate: str) -> None:
    mechanism = Incentives() if substrate == "cleanup" else BracketedTax()
    env = make_native_env(substrate, 3, observe=["pixels", "grid", "vector"], mechanism=mechanism)
    observation = env.reset(seed=1)
    step = env.step(sample_actions(env, 1)[0])
    for channels in (observation, step.observation):
        assert set(channels) == set(env.spec.observation) == {"pixels", "grid", "vector", "mechanism"}
        for name, channel in env.spec.observation.items():
            assert tuple(channels[name].shape) == (3, 7, *channel.shape)
            assert str(channels[name].dtype) == f"torch.{channel.dtype}"
    codes = step.observation["grid"].reshape(-1, 4).amax(0)
    assert (codes < torch.tensor(env.spec.observation["grid"].codes)).all()
    assert set(step.info) == set(env.spec.per_step)
    assert step.reward.shape == (3, 7) and step.reward.dtype == np.float32
    assert step.reward_jacobian is not None and step.reward_jacobian.shape == (3, 7, 3)
    assert step.terminated.dtype == step.truncated.dtype == np.bool_
    assert env.render(2).dtype == np.uint8


@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_batch_keeps_game(substrate: str) -> None:
    small, large = make_native_env(substrate, 2), make_native_env(substrate, 5)
    actions = sample_actions(large, 80)
    small.reset(seed=3), large.reset(seed=3)
    for action in actions:
        left_outputs, b = flatten_step(small.step(action[:2])), flatten_step(large.step(action))
        for name, x in left_outputs.items():
            assert np.array_equal(x, b[name][:2]), name
    other_outputs = flatten_step(large.step(actions[0]))
    assert not np.array_equal(other_outputs["observation/grid"][0], other_outputs["observation/grid"][1])


@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_games_follow_seeds(substrate: str) -> None:
    env = make_native_env(substrate, 4)
    first = [to_numpy(env.reset(seed=seed)["grid"]).copy() for seed in (5, 6, 5)]
    assert np.array_equal(first[0], first[2]) and not np.array_equal(first[0], first[1])
    second = to_numpy(env.reset()["grid"])  # the next episode of the same stream
    assert not np.array_equal(second, first[2])
    grouped = to_numpy(env.reset(seed=[5, 7])["grid"])
    assert not np.array_equal(
        *np.split(to_numpy(env.reset(seed=5)["grid"]), 2)
    )  # a plain seed: all are their own again
    grouped = to_numpy(env.reset(seed=[5, 7])["grid"])
    games_env = make_native_env(substrate, 2)
    for group, seed in enumerate((5, 7)):
        assert np.array_equal(grouped[2 * group : 2 * group + 2], to_numpy(games_env.reset(seed=seed)["grid"]))
    env.share_random_numbers(2)
    paired_grid = to_numpy(env.reset(seed=5)["grid"])
    assert np.array_equal(paired_grid[:2], paired_grid[2:]) and not np.array_equal(paired_grid[0], paired_grid[1])


@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_restored_batch_is_identical(substrate: str) -> None:
    def mechanism() -> Any:
        return Incentives() if substrate == "cleanup" else BracketedTax()

    env = make_native_env(substrate, 3, mechanism=mechanism(), horizon=60)
    second_env = make_native_env(substrate, 3, seed=9, mechanism=mechanism(), horizon=60)
    env.set_mechanism(np.array([0.5, 0.25, 1.0]))
    actions = sample_actions(env, 90)
    env.reset(seed=1)
    for t, action in enumerate(actions[:45]):
        env.step(action)
        if t == 20:
            env.reset(mask=np.array([False, True, False]))
    second_env.load_state_dict(env.state_dict())
    for action in actions[45:]:
        left_outputs, b = flatten_step(env.step(action)), flatten_step(second_env.step(action))
        for name, x in left_outputs.items():
            assert np.array_equal(x, b[name]), name
        if left_outputs["truncated"].any():
            grids = [to_numpy(env_copy.reset(mask=left_outputs["truncated"])["grid"]) for env_copy in (env, second_env)]
            assert np.array_equal(grids[0], grids[1])


def test_completed_games_wait_with_zero_rewards() -> None:
    env = make_native_env("harvest", 2, horizon=5, mechanism=BracketedTax())
    env.reset(seed=1)
    for _ in range(3):
        env.step(sample_actions(env, 1)[0])
    env.reset(mask=np.array([True, False]))
    for _ in range(2):
        step = env.step(sample_actions(env, 1)[0])
    assert step.truncated.tolist() == [False, True]
    previous_grid = to_numpy(step.observation["grid"]).copy()
    for action in sample_actions(env, 3):
        step = env.step(action)
        assert float(step.info["players_present"][1]) == 0 and not step.reward[1].any()
        assert np.array_equal(to_numpy(step.observation["grid"])[1][..., :3], previous_grid[1][..., :3])
    assert step.truncated.tolist() == [True, True]
    assert not to_numpy(env.reset(mask=np.array([False, True]))["grid"])[0].all()


@pytest.mark.parametrize(("substrate", "chance"), [("cleanup", 0.2), ("harvest", 0.15)])
def test_episodes_end_at_random_as_upstream(substrate: Any, chance: float) -> None:
    setup = GameSetup(maps.load_map(substrate, "own"), 2)
    keys = derive_game_keys(np.full(20_000, 3), np.arange(20_000), np.zeros(20_000, np.int64))
    assert not find_ended_games(np.full(20_000, 1098), None, keys, setup).any()
    assert not find_ended_games(np.full(20_000, 1100), None, keys, setup).any()
    shares = [find_ended_games(np.full(20_000, t), None, keys, setup).mean() for t in (1099, 1199, 4899)]
    assert all(abs(share - chance) < 4 * np.sqrt(chance * (1 - chance) / 20_000) for share in shares)
    assert find_ended_games(np.full(2, 5000), None, keys[:2], setup).all()
    legislative_setup = GameSetup(setup.game_map, 2, "legislative")
    assert not find_ended_games(np.full(20_000, 1099), None, keys, legislative_setup).any()


def test_legislative_rules_disable_zap() -> None:
    env = make_native_env("harvest", 2, rules="legislative")
    assert "zap" not in env.spec.action_names
    first, second = (to_numpy(env.reset(seed=seed)["grid"]) for seed in (1, 2))
    assert np.array_equal(first, second)  # everybody begins on a cell of its own, facing north
    cleanup_env = make_native_env("cleanup", 2, rules="legislative", n_agents=3)
    cleanup_env.reset(seed=1)
    step = cleanup_env.step(np.zeros((2, 3), np.int64))
    assert (step.info["apples_live"] == cleanup_env.engine.n_apple_sites).all()


def test_words_match_grid() -> None:
    env = make_native_env("cleanup", 1, observe=["text", "grid"])
    text = env.reset(seed=1)["text"]
    assert text.shape == (1, 7) and all("map" in map_text for map_text in text[0])


def test_mechanism_payments_match_reference() -> None:
    env = make_native_env("cleanup", 2, mechanism=Incentives(max_incentive=3.0))
    env.set_mechanism(np.array([[0.0, 3.0, 0.0], [0.0, 0.0, 1.0]]))
    env.reset(seed=2)
    for action in sample_actions(env, 60):
        step = env.step(action)
        assert step.reward_jacobian is not None
        payments = step.reward_jacobian * np.array([[0, 3, 0], [0, 0, 1]], dtype=np.float32)[:, None]
        np.testing.assert_allclose(step.reward, step.base_reward + payments.sum(-1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"map": "WWW\nWAW\nWWW"}, r"env\.map .*spawn"),
        ({"map": "WWWW\nWPAW\nWWWW"}, "1 spawn cells"),
        ({"map": "WWWW\nWPXW\nWWWW"}, "'X'.*2.*3"),
        ({"map": "WWW\nWPAW\nWWWW"}, "row 2 .* 4 .*row 1 .* 3"),
        ({"map": "WWWW\nWPPW\nWWWW"}, r"env\.map .*apples"),
        ({"map": "nowhere.txt"}, "nowhere.txt"),
        ({"n_agents": 200}, "env.n_agents=200"),
        ({"n_envs": 10**9}, r"env\.n_envs=1,000,000,000"),
        ({"mechanism": Incentives()}, "no dirt"),
        ({"observe": []}, r"env\.observe .*grid"),
        ({"observe": ["text"], "n_agents": 16}, r"env\.n_agents=16 .*15 players"),
        ({"horizon": 6000}, r"horizon=6000 .*5000"),
        ({"map": "x" * 5000}, r"env\.map=x.* read"),
        ({"n_agents": 300, "map": "\n".join(["P" * 40] * 9 + ["A" * 40])}, "at most 253"),
        ({"rules": "legislative", "n_agents": 8}, "7 players"),
    ],
)
def test_rejects_invalid_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_native_env("harvest", **{"n_envs": 1, **options})


def test_clean_up_needs_river() -> None:
    with pytest.raises(ConfigError, match="no river"):
        make_native_env("cleanup", 1, n_agents=1, map="WWWW\nWPBW\nWWWW")


def test_rejects_invalid_actions() -> None:
    env = make_native_env("harvest", 2)
    with pytest.raises(ValueError, match="reset"):
        env.step(np.zeros((2, 7), np.int64))
    env.reset(seed=1)
    with pytest.raises(ValueError, match=r"0 to 7,.* 0 to 8"):
        env.step(np.full((2, 7), 8) * np.eye(2, 7, dtype=np.int64))
    with pytest.raises(ValueError, match="got shape"):
        env.step(np.zeros((2, 6), np.int64))


def test_rejects_state_of_different_map() -> None:
    env = make_native_env("harvest", 1, map="own")
    env.reset(seed=1)
    with pytest.raises(CheckpointError, match=r"env\.map"):
        make_native_env(
            "harvest", 1, n_agents=7, map=env.engine.setup.game_map.text.replace("Q", "P", 1).replace("Q", "P")
        ).load_state_dict(env.state_dict())


def test_any_map_and_player_count() -> None:
    text = "W" * 12 + "\n" + "\n".join("W" + "PPPPPPPPPA" + "W" for _ in range(5)) + "\n" + "W" * 12
    env = make_native_env("harvest", 2, n_agents=40, map=text)
    env.reset(seed=1)
    for action in sample_actions(env, 30):
        step = env.step(action)
        state = env.state_dict()["state"]
        cells = state["pos"][state["alive"]].reshape(-1)
        assert not torch.from_numpy(env.engine.setup.game_map.is_wall)[cells].any()
        for game in range(2):
            own_cells = state["pos"][game][state["alive"][game]]
            assert len(own_cells.unique()) == len(own_cells)
    assert step.observation["grid"].shape == (2, 40, 11, 11, 4)
