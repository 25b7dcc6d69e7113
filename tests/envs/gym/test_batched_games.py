"""Batched games are Gymnasium's environments, step for step and bit for bit."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.batched import BATCHED
from llmrl.envs.gym.batched.generators import generators
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.interfaces import Games

N = 5
HORIZON = {"CliffWalking-v1": 80, "CliffWalkingSlippery-v1": 80}
VARIANTS = [
    ("FrozenLake-v1", {"is_slippery": False}),
    ("FrozenLake-v1", {"desc": ["SFFH", "FFFF", "HFFG"], "success_rate": 0.7, "reward_schedule": [5, -1, 0.1]}),
    ("Taxi-v4", {"is_rainy": True, "rainy_probability": 0.6}),
    ("CartPole-v1", {"sutton_barto_reward": True}),
    ("MountainCar-v0", {"goal_velocity": 0.02}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.02}),
    ("llmrl/Maze-v0", {"parity": True}),
    ("llmrl/Nim-v0", {"takes": [0, 1, 2]}),
]
CASES = [(name, {}) for name in BATCHED] + VARIANTS


def skilled(name: str, games: Games, seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Actions that get somewhere, so that ends and walls are met: half of the time good ones, else random ones."""
    n = len(seen)
    if name.startswith("MountainCarContinuous"):
        force = np.where(seen[:, 1] >= 0, 1.0, -1.0) * rng.uniform(0.5, 1.5, n)
        return np.where(rng.random(n) < 0.9, force, rng.uniform(-2, 2, n)).astype(np.float32)[:, None]
    random = rng.integers(games.action_space.n, size=n)
    if name.startswith("CartPole"):
        return np.where(rng.random(n) < 0.8, seen[:, 2] + seen[:, 3] > 0, random).astype(np.int64)
    if name.startswith("MountainCar"):
        return np.where(rng.random(n) < 0.95, np.where(seen[:, 1] >= 0, 2, 0), random)
    if name.endswith("Navigation-v0"):
        ahead = np.where(seen[:, 2] > 1.0, 0, np.where(seen[:, 4] > seen[:, 0], 1, 2))
        return np.where(rng.random(n) < 0.95, ahead, random)
    if name.endswith("Pong-v0"):
        return np.where(np.arange(n) % 2, np.where(seen[:, 2] > seen[:, 0], 1, 0), random)
    return random


def compare(name: str, kwargs: dict, seed: int, steps: int) -> int:
    """Play both engines with the same actions and compare all that they give; returns how many episodes ended."""
    env_factory = {"id": name, "kwargs": kwargs, "horizon": HORIZON.get(name)}
    stock, batched = (
        EnvFactory(**env_factory, engine="stock").make(N),
        EnvFactory(**env_factory, engine="batched").make(N),
    )
    assert stock.observation_space == batched.observation_space
    assert stock.action_space == batched.action_space
    assert stock.horizon == batched.horizon
    rng = np.random.default_rng(seed)
    over, ended = np.ones(N, dtype=bool), 0
    for _ in range(steps):
        if over.any():
            seeds = rng.integers(2**31, size=N)
            seen, other = stock.reset(seeds, over), batched.reset(seeds, over)
            over = np.zeros(N, dtype=bool)
        # Games that wait for a while go on as if nothing had been.
        playing = ~over & (rng.random(N) < 0.9)
        action = skilled(name, batched, np.asarray(other), rng)
        seen, *given_ = stock.step(action, playing)
        other, *got = batched.step(action, playing)
        for mine, theirs in zip(other, seen, strict=True):
            assert np.array_equal(mine, theirs)
            assert np.asarray(mine).dtype == np.asarray(theirs).dtype
        for mine, theirs in zip(got, given_, strict=True):
            assert np.array_equal(mine, theirs)
        for mine, theirs in zip(batched.infos, stock.infos, strict=True):
            assert ("action_mask" in mine) == ("action_mask" in theirs)
            assert np.array_equal(mine.get("action_mask"), theirs.get("action_mask"))
        over |= got[1] | got[2]
        ended += int((got[1] | got[2]).sum())
    return ended


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=[f"{name}{kwargs or ''}" for name, kwargs in CASES])
def test_equal_to_gymnasium(name, kwargs):
    assert compare(name, kwargs, seed=0, steps=400) > 0


@settings(max_examples=15)
@given(st.sampled_from(CASES), st.integers(0, 2**31 - 1))
def test_equal_to_gymnasium_whatever_the_seeds(case, seed):
    compare(*case, seed=seed, steps=60)


def test_the_goal_of_both_mountain_cars_is_reached_in_these_comparisons():
    """Else the comparison would say nothing about rewards and ends there."""
    for name in ("MountainCar-v0", "MountainCarContinuous-v0"):
        games, rng = EnvFactory(name, engine="batched").make(4), np.random.default_rng(0)
        seen, playing, reached = games.reset(np.arange(4), np.ones(4, dtype=bool)), np.ones(4, dtype=bool), 0
        for _ in range(200):
            seen, _, terminated, truncated = games.step(skilled(name, games, seen, rng), playing)
            reached += int(terminated.sum())
            playing &= ~(terminated | truncated)
        assert reached == 4


def test_a_step_leaves_what_it_gave_before_alone():
    for name in BATCHED:
        games = EnvFactory(name, {}, HORIZON.get(name), "batched").make(2)
        first = games.reset(np.arange(2), np.ones(2, dtype=bool))
        kept = np.array(first)
        action = np.zeros((2, *games.action_space.shape), dtype=games.action_space.dtype)
        before = games.step(action, np.ones(2, dtype=bool))
        copies = [np.array(part) for part in before]
        games.step(action, np.ones(2, dtype=bool))
        assert np.array_equal(first, kept)
        for part, copy in zip(before, copies, strict=True):
            assert np.array_equal(part, copy)


@given(st.lists(st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 2**33), st.just(0)), max_size=5))
def test_generators_are_those_of_numpy(seeds):
    made = generators(np.array(seeds, dtype=np.int64))
    assert [source.bit_generator.state for source in made] == [
        np.random.default_rng(seed).bit_generator.state for seed in seeds
    ]


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="must not be negative, got -3"):
        generators(np.array([1, -3]))


@pytest.mark.parametrize("action", [-1, 2])
def test_an_action_that_does_not_exist_is_refused(action):
    games = EnvFactory("CartPole-v1", engine="batched").make(2)
    games.reset(np.arange(2), np.ones(2, dtype=bool))
    with pytest.raises(ValueError, match="actions must be 0 to 1"):
        games.step(np.array([0, action]), np.ones(2, dtype=bool))


def test_pictures_are_those_of_gymnasium():
    for name in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "FrozenLake-v1", "Taxi-v4"):
        stock, batched = EnvFactory(name).make(1, render=True), EnvFactory(name, engine="batched").make(2)
        seeds, one = np.array([7, 3]), np.ones(1, dtype=bool)
        stock.reset(seeds[1:], one)
        batched.reset(seeds, np.ones(2, dtype=bool))
        action = np.zeros((2, *batched.action_space.shape), dtype=batched.action_space.dtype)
        stock.step(action[1:], one)
        batched.step(action, np.ones(2, dtype=bool))
        assert np.array_equal(batched.render(1), stock.render(0))
        stock.close()


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("Pendulum-v1", {}),
        ("Taxi-v4", {"fickle_passenger": True}),
    ],
)
def test_what_has_no_batched_engine_is_refused(name, kwargs):
    with pytest.raises(ConfigError, match=r"no batched engine.*env.engine=stock"):
        EnvFactory(name, kwargs, engine="batched").make(2)


def test_arguments_that_an_environment_does_not_take_are_named():
    for name in ("CartPole-v1", "FrozenLake-v1", "llmrl/Pong-v0"):
        with pytest.raises(ConfigError, match=r"does not take env.kwargs=\{'wind': 3\}"):
            EnvFactory(name, {"wind": 3}, engine="batched").make(2)


def test_every_batched_engine_is_registered_with_gymnasium():
    import llmrl.envs.gym.tasks  # noqa: F401  (registers)

    assert set(BATCHED) <= set(gymnasium.registry)
