"""The vectorized rooms: spec, rewards and ends, layouts by address, checkpoints, pictures and options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.envs.rooms.grid_world import DONE, FORWARD, LEFT
from llmrl.envs.rooms.tasks import DoorKey, LavaDoorKey, RoomTask, SimpleDoorKey
from llmrl.envs.rooms.vec_env import RoomsEnv, draw_frame
from room_games import copy_game, layout_rng, make_reference, reset_reference, solve

ALL_CHANNELS = ["grid", "view", "direction"]


def make(task: RoomTask | None = None, n_envs: int = 4, **options: Any) -> RoomsEnv:
    return RoomsEnv(Seeds(0), task or SimpleDoorKey(), n_envs, **options)


def observations_equal(x: dict[str, np.ndarray], y: dict[str, np.ndarray]) -> bool:
    return x.keys() == y.keys() and all(np.array_equal(x[name], y[name]) for name in x)


def play(env: RoomsEnv, steps: int, seed: int = 0) -> list[Any]:
    """Return observations and outcomes of `steps` steps of a random player, with resets."""
    rng = np.random.default_rng(seed)
    history: list[Any] = []
    for _ in range(steps):
        step = env.step(rng.integers(7, size=(env.spec.n_envs, 1)))
        done = step.terminated | step.truncated
        history.append((step.observation, step.reward, done, env.reset(done)))
    return history


@pytest.fixture(scope="module")
def configs():
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        yield lambda *overrides: OmegaConf.to_container(compose("train", [*overrides]).env, resolve=True)


@pytest.mark.parametrize(
    ("name", "shapes", "horizon"),
    [
        ("simple_doorkey", {"grid": (10, 10, 4)}, 150),
        ("lava_doorkey", {"grid": (10, 10, 4)}, 150),
        ("colored_doorkey", {"grid": (10, 10, 4)}, 150),
        ("two_door", {"grid": (20, 20, 4)}, 150),
        ("doorkey", {"view": (7, 7, 3), "direction": (4,)}, 640),
        ("unlock_pickup", {"grid": (11, 6, 4)}, 288),
    ],
)
def test_options(configs, name: str, shapes: dict[str, tuple[int, ...]], horizon: int) -> None:
    env = Builder({"seeds": Seeds(0)}).build(configs(f"env={name}"), "env")
    assert isinstance(env, VecEnv)
    assert (env.spec.name, env.spec.n_envs, env.spec.n_agents, env.spec.horizon) == (name, 16, 1, horizon)
    assert {key: channel.shape for key, channel in env.spec.observation.items()} == shapes
    assert set(env.spec.metrics) == ({"success", "lava"} if name == "lava_doorkey" else {"success"})
    assert env.spec.action_names == ("left", "right", "forward", "pickup", "drop", "toggle", "done")
    observation = env.reset()
    for key, channel in env.spec.observation.items():
        assert observation[key].shape == (16, 1, *channel.shape)
        assert observation[key].dtype == channel.dtype
        assert channel.low <= observation[key].min() <= observation[key].max() <= channel.high
    assert play(env, 3)[-1][1].shape == (16, 1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.agent_view_size=4"], "agent_view_size=4"),
        (["env.agent_view_size=33"], "agent_view_size=33.*3.*31"),
        (["env.observe=[]"], r"env.observe"),
        (["env.observe=[pixels]"], "env.observe"),
        (["env.task.min_size=11"], "max_size=10.*min_size=11"),
        (["env.n_envs=0"], "env.n_envs=0"),
        (["+env.task.n_keys=3"], "env.task.*'n_keys'"),
    ],
)
def test_error_names_impossible_options(configs, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Builder({"seeds": Seeds(0)}).build(configs("env=simple_doorkey", *overrides), "env")


def test_invalid_actions_and_calls() -> None:
    env = make()
    with pytest.raises(ValueError, match="reset"):
        env.step(np.zeros((4, 1), dtype=int))
    env.reset(np.array([True, False, True, True]))
    with pytest.raises(ValueError, match="reset"):
        env.step(np.zeros((4, 1), dtype=int))
    with pytest.raises(ConfigError, match="reset"):
        env.render(1)
    env.reset()
    for bad in (np.full((4, 1), 7), np.full((4, 1), -1), np.zeros((4, 2), dtype=int), np.zeros(4, dtype=int)):
        with pytest.raises(ValueError, match="actions of"):
            env.step(bad)
    with pytest.raises(ConfigError, match="no mechanism"):
        env.set_mechanism(np.zeros(1))
    with pytest.raises(ConfigError, match="no contexts"):
        env.set_context(0)


def test_solved_game_rewards_once() -> None:
    env = make(n_envs=2, horizon=100)
    env.reset()
    plan = solve(copy_game(env._world, 0), SimpleDoorKey())
    assert plan is not None
    for action in plan:
        step = env.step(np.array([[action], [DONE]]))
    assert step.reward.tolist() == [[pytest.approx(1 - 0.9 * len(plan) / 100)], [0]]
    assert step.info["success"].tolist() == [1, 0]
    assert step.terminated.tolist() == [True, False]
    picture = env.render()
    waiting = env.step(np.array([[LEFT], [LEFT]]))
    assert waiting.reward.tolist() == [[0], [0]]
    assert waiting.info["success"].tolist() == [0, 0]
    assert waiting.terminated.tolist() == [True, False]
    assert np.array_equal(env.render(), picture)


def test_lava_terminates_with_zero_reward() -> None:
    env = make(LavaDoorKey(), n_envs=300)
    env.reset()
    terminated = np.zeros(300, dtype=bool)
    for _ in range(5):
        previous_terminated = terminated
        step = env.step(np.full((300, 1), FORWARD))
        terminated = step.terminated
        assert (step.info["lava"] == (terminated & ~previous_terminated)).all()
        assert not step.reward.any()
    assert 0 < terminated.sum() < 300


def test_horizon_truncates() -> None:
    env = make(horizon=3)
    env.reset()
    flags = [env.step(np.full((4, 1), LEFT)) for _ in range(4)]
    assert [step.truncated.all() for step in flags] == [False, False, True, True]
    assert not any(step.terminated.any() for step in flags)
    assert np.array_equal(flags[2].observation["grid"], flags[3].observation["grid"])


def test_actions_keep_layouts() -> None:
    """Compare the k-th layouts of two players who end their episodes after 3 and 7 steps."""
    history = []
    for horizon in (3, 7):
        env = make(horizon=horizon)
        games = [env.reset(seed=5)["grid"]]
        for _ in range(3):
            for _ in range(horizon):
                step = env.step(np.full((4, 1), LEFT))
            games.append(env.reset(step.truncated)["grid"])
        history.append(np.stack(games))
    assert np.array_equal(*history)
    assert len({game.tobytes() for row in history[0] for game in row}) > 10  # of 16; some begin with the same sight


def test_games_follow_seed() -> None:
    x, y = make(observe=ALL_CHANNELS, horizon=9), make(observe=ALL_CHANNELS, horizon=9)
    assert observations_equal(x.reset(), y.reset())
    assert not observations_equal(x.reset(), y.reset(seed=1))
    x.reset(seed=1)
    for step_a, step_b in zip(play(x, 30), play(y, 30), strict=True):
        assert observations_equal(step_a[0], step_b[0])
        assert observations_equal(step_a[3], step_b[3])
        assert np.array_equal(step_a[1], step_b[1])
    assert not observations_equal(make(observe=["grid"]).reset(), RoomsEnv(Seeds(1), SimpleDoorKey(), 4).reset())


def test_paired_games_share_layouts() -> None:
    env = make(n_envs=6)
    env.reset()
    env.reset(np.arange(6) < 2)  # some games are further in their series than others
    env.share_random_numbers(2)
    for _ in range(3):
        grid = env.reset()["grid"]
        assert np.array_equal(grid[:3], grid[3:])
        assert len({game.tobytes() for game in grid}) == 3
    env.share_random_numbers(1)
    assert len({game.tobytes() for game in env.reset()["grid"]}) == 6
    with pytest.raises(ConfigError, match="equal groups"):
        env.share_random_numbers(4)


@pytest.mark.parametrize("task", [LavaDoorKey(), DoorKey(6)], ids=lambda task: task.name)
def test_state_dict_goes_on_exactly(task: RoomTask) -> None:
    env = make(task, observe=ALL_CHANNELS, horizon=20)
    env.reset(seed=3)
    env.share_random_numbers(2)
    play(env, 33)
    state = env.state_dict()
    first = play(env, 60, seed=1)
    copy = RoomsEnv(Seeds(99), type(task)(), 4, 3, 20, ALL_CHANNELS) if isinstance(task, LavaDoorKey) else env
    for _ in range(2):  # the second time tells whether playing on changed the snapshot
        copy.load_state_dict(state)
        for step_a, step_b in zip(first, play(copy, 60, seed=1), strict=True):
            assert observations_equal(step_a[0], step_b[0])
            assert observations_equal(step_a[3], step_b[3])
            assert np.array_equal(step_a[1], step_b[1])
            assert np.array_equal(step_a[2], step_b[2])


def test_state_dict_survives_checkpoint() -> None:
    from llmrl.run.checkpoints import _decode, _encode

    env = make()
    env.reset()
    play(env, 5)
    copy = make()
    copy.load_state_dict(_decode(_encode(env.state_dict(), "env")))
    assert observations_equal(play(env, 5)[-1][0], play(copy, 5)[-1][0])


def test_observations_are_not_overwritten() -> None:
    env = make(observe=ALL_CHANNELS)
    first = env.reset()
    first_copy = {name: value.copy() for name, value in first.items()}
    play(env, 5)
    assert observations_equal(first, first_copy)


def test_view_picture_matches_minigrid() -> None:
    env, reference_env = make(DoorKey(8), agent_view_size=7, observe=["view"]), make_reference(DoorKey(8), 7, 640)
    env.reset(seed=2)
    reset_reference(reference_env, DoorKey(8), layout_rng(2, 3, 0))
    for action in (LEFT, FORWARD, LEFT, FORWARD, FORWARD):
        env.step(np.full((4, 1), action))
        reference_env.step(action)
        assert np.array_equal(env.render(3), reference_env.get_frame())


def test_map_picture_hides_unexplored_cells() -> None:
    env = make()
    explored = env.reset()["grid"][0, 0, ..., 0] > 0
    image = env.render()
    assert image.shape == (320, 320, 3)
    assert image.dtype == np.uint8
    tiles = image.reshape(10, 32, 10, 32, 3).transpose(2, 0, 1, 3, 4)
    assert (tiles[~explored] == 200).all()
    assert all((tile != 200).any() for tile in tiles[explored])
    full_picture = draw_frame(
        env._world.grid[0], (int(env._world.position[0][0]), int(env._world.position[1][0])), 0, None
    )
    assert (
        not (full_picture.reshape(10, 32, 10, 32, 3).transpose(2, 0, 1, 3, 4)[~explored] == 200)
        .all(axis=(1, 2, 3))
        .any()
    )
