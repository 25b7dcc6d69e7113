"""The vectorised rooms: spec, rewards and ends, layouts by address, checkpoints, pictures, options."""

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
from llmrl.envs.rooms.grid_rendering import draw
from llmrl.envs.rooms.grid_world import DONE, FORWARD, LEFT
from llmrl.envs.rooms.minigrid_tasks import DoorKey
from llmrl.envs.rooms.tasks import ColoredDoorKey, LavaDoorKey, RoomTask, SimpleDoorKey
from llmrl.envs.rooms.vec_env import RoomsEnv
from room_games import IDS, begin, numbers, one_game, reference, solve

EVERYTHING = ["grid", "view", "direction"]


def make(task: RoomTask | None = None, n_envs: int = 4, **options: Any) -> RoomsEnv:
    return RoomsEnv(Seeds(0), task or SimpleDoorKey(), n_envs, **options)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def play(env: RoomsEnv, steps: int, seed: int = 0) -> list[Any]:
    """What a random player sees and gets in `steps` steps, with resets."""
    rng = np.random.default_rng(seed)
    seen: list[Any] = []
    for _ in range(steps):
        step = env.step(rng.integers(7, size=(env.spec.n_envs, 1)))
        ended = step.terminated | step.truncated
        seen.append((step.observation, step.reward, ended, env.reset(ended)))
    return seen


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
        (["env.agent_view_size=4"], "agent_view_size=4 must be odd"),
        (["env.agent_view_size=33"], "agent_view_size=33 must be odd and 3 to 31"),
        (["env.observe=[]"], r"observe=\[\] must name"),
        (["env.observe=[grid,grid]"], "each once"),
        (["env.observe=[pixels]"], "env.observe"),
        (["env.task.min_size=11"], "max_size=10 is below min_size=11"),
        (["env.n_envs=0"], "env.n_envs=0"),
        (["+env.task.n_keys=3"], "env.task has no option 'n_keys'"),
    ],
)
def test_impossible_options_are_named(configs, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Builder({"seeds": Seeds(0)}).build(configs("env=simple_doorkey", *overrides), "env")


def test_bad_actions_and_calls() -> None:
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
        with pytest.raises(ValueError, match="actions must be"):
            env.step(bad)
    with pytest.raises(ConfigError, match="no mechanism"):
        env.set_mechanism(np.zeros(1))
    with pytest.raises(ConfigError, match="no contexts"):
        env.set_context(0)


def test_a_solved_game_pays_once_and_waits() -> None:
    env = make(n_envs=2, horizon=100)
    env.reset()
    plan = solve(one_game(env._world, 0), SimpleDoorKey())
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


def test_lava_ends_the_game_and_pays_nothing() -> None:
    env = make(LavaDoorKey(), n_envs=300)
    env.reset()
    terminated = np.zeros(300, dtype=bool)
    for _ in range(5):
        before = terminated
        step = env.step(np.full((300, 1), FORWARD))
        terminated = step.terminated
        assert (step.info["lava"] == (terminated & ~before)).all()
        assert not step.reward.any()
    assert 0 < terminated.sum() < 300


def test_the_horizon_cuts() -> None:
    env = make(horizon=3)
    env.reset()
    flags = [env.step(np.full((4, 1), LEFT)) for _ in range(4)]
    assert [step.truncated.all() for step in flags] == [False, False, True, True]
    assert not any(step.terminated.any() for step in flags)
    assert np.array_equal(flags[2].observation["grid"], flags[3].observation["grid"])


def test_layouts_do_not_depend_on_what_is_played() -> None:
    """The k-th game of every place is the same, though one player gives up after 3 steps and the other after 7."""
    seen = []
    for horizon in (3, 7):
        env = make(horizon=horizon)
        games = [env.reset(seed=5)["grid"]]
        for _ in range(3):
            for _ in range(horizon):
                step = env.step(np.full((4, 1), LEFT))
            games.append(env.reset(step.truncated)["grid"])
        seen.append(np.stack(games))
    assert np.array_equal(*seen)
    assert len({game.tobytes() for row in seen[0] for game in row}) > 10  # of 16; some begin with the same sight


def test_seeds_decide_everything() -> None:
    a, b = make(observe=EVERYTHING, horizon=9), make(observe=EVERYTHING, horizon=9)
    assert same(a.reset(), b.reset())
    assert not same(a.reset(), b.reset(seed=1))
    a.reset(seed=1)
    for one, other in zip(play(a, 30), play(b, 30), strict=True):
        assert same(one[0], other[0])
        assert same(one[3], other[3])
        assert np.array_equal(one[1], other[1])
    assert not same(make(observe=["grid"]).reset(), RoomsEnv(Seeds(1), SimpleDoorKey(), 4).reset())


def test_paired_games_are_laid_out_alike() -> None:
    env = make(n_envs=6)
    env.reset()
    env.reset(np.arange(6) < 2)  # some games are further in their series than others
    env.pair_games(2)
    for _ in range(3):
        grid = env.reset()["grid"]
        assert np.array_equal(grid[:3], grid[3:])
        assert len({game.tobytes() for game in grid}) == 3
    env.pair_games(1)
    assert len({game.tobytes() for game in env.reset()["grid"]}) == 6
    with pytest.raises(ConfigError, match="equal groups"):
        env.pair_games(4)


@pytest.mark.parametrize("task", [LavaDoorKey(), DoorKey(6)], ids=lambda task: task.name)
def test_state_dict_goes_on_exactly(task: RoomTask) -> None:
    env = make(task, observe=EVERYTHING, horizon=20)
    env.reset(seed=3)
    env.pair_games(2)
    play(env, 33)
    state = env.state_dict()
    first = play(env, 60, seed=1)
    copy = RoomsEnv(Seeds(99), type(task)(), 4, 3, 20, EVERYTHING) if isinstance(task, LavaDoorKey) else env
    for _ in range(2):  # the second time tells whether playing on changed the snapshot
        copy.load_state_dict(state)
        for one, other in zip(first, play(copy, 60, seed=1), strict=True):
            assert same(one[0], other[0])
            assert same(one[3], other[3])
            assert np.array_equal(one[1], other[1])
            assert np.array_equal(one[2], other[2])


def test_state_dict_goes_through_a_checkpoint() -> None:
    from llmrl.run.checkpoints import _decode, _encode

    env = make()
    env.reset()
    play(env, 5)
    copy = make()
    copy.load_state_dict(_decode(_encode(env.state_dict(), "env")))
    assert same(play(env, 5)[-1][0], play(copy, 5)[-1][0])


def test_what_was_observed_is_not_changed_by_later_steps() -> None:
    env = make(observe=EVERYTHING)
    first = env.reset()
    kept = {name: value.copy() for name, value in first.items()}
    play(env, 5)
    assert same(first, kept)


def test_a_picture_of_the_view_is_minigrid_s() -> None:
    env, it = make(DoorKey(8), agent_view_size=7, observe=["view"]), reference(DoorKey(8), 7, 640)
    env.reset(seed=2)
    begin(it, DoorKey(8), numbers(2, 3, 0))
    for action in (LEFT, FORWARD, LEFT, FORWARD, FORWARD):
        env.step(np.full((4, 1), action))
        it.step(action)
        assert np.array_equal(env.render(3), it.get_frame())


def test_a_picture_of_the_map_hides_what_was_never_seen() -> None:
    env = make()
    seen = env.reset()["grid"][0, 0, ..., 0] > 0
    image = env.render()
    assert image.shape == (320, 320, 3)
    assert image.dtype == np.uint8
    tiles = image.reshape(10, 32, 10, 32, 3).transpose(2, 0, 1, 3, 4)
    assert (tiles[~seen] == 200).all()
    assert all((tile != 200).any() for tile in tiles[seen])
    whole = draw(env._world.grid[0], (int(env._world.position[0][0]), int(env._world.position[1][0])), 0, None)
    assert not (whole.reshape(10, 32, 10, 32, 3).transpose(2, 0, 1, 3, 4)[~seen] == 200).all(axis=(1, 2, 3)).any()


def test_every_option_has_a_reference() -> None:
    assert {"colored_doorkey", ColoredDoorKey.name, DoorKey.name} < set(IDS)
