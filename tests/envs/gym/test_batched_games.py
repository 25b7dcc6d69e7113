"""Batched games equal Gymnasium's environments, step for step and bit for bit."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.batched import BATCHED_GAMES
from llmrl.envs.gym.env_factory import EnvFactory, Games
from some import mark_long_except_every

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
CASES = [(name, {}) for name in BATCHED_GAMES] + VARIANTS


def skilled_action(name: str, games: Games, observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return good actions half of the time and random ones otherwise, so that games reach ends and walls."""
    n = len(observation)
    if name.startswith("MountainCarContinuous"):
        force = np.where(observation[:, 1] >= 0, 1.0, -1.0) * rng.uniform(0.5, 1.5, n)
        return np.where(rng.random(n) < 0.9, force, rng.uniform(-2, 2, n)).astype(np.float32)[:, None]
    random = rng.integers(games.action_space.n, size=n)
    if name.startswith("CartPole"):
        return np.where(rng.random(n) < 0.8, observation[:, 2] + observation[:, 3] > 0, random).astype(np.int64)
    if name.startswith("MountainCar"):
        return np.where(rng.random(n) < 0.95, np.where(observation[:, 1] >= 0, 2, 0), random)
    if name.endswith("Navigation-v0"):
        heading_action = np.where(observation[:, 2] > 1.0, 0, np.where(observation[:, 4] > observation[:, 0], 1, 2))
        return np.where(rng.random(n) < 0.95, heading_action, random)
    if name.endswith("Pong-v0"):
        return np.where(np.arange(n) % 2, np.where(observation[:, 2] > observation[:, 0], 1, 0), random)
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
    mask, n_episodes = np.ones(N, dtype=bool), 0
    for _ in range(steps):
        if mask.any():
            seeds = rng.integers(2**31, size=N)
            observation, batched_observation = stock.reset(seeds, mask), batched.reset(seeds, mask)
            mask = np.zeros(N, dtype=bool)
        # Games that wait for a while go on as if nothing had been.
        playing = ~mask & (rng.random(N) < 0.9)
        action = skilled_action(name, batched, np.asarray(batched_observation), rng)
        observation, *stock_outputs = stock.step(action, playing)
        batched_observation, *batched_outputs = batched.step(action, playing)
        for mine, stock_value in zip(batched_observation, observation, strict=True):
            assert np.array_equal(mine, stock_value)
            assert np.asarray(mine).dtype == np.asarray(stock_value).dtype
        for mine, stock_value in zip(batched_outputs, stock_outputs, strict=True):
            assert np.array_equal(mine, stock_value)
        for mine, stock_value in zip(batched.infos, stock.infos, strict=True):
            assert ("action_mask" in mine) == ("action_mask" in stock_value)
            assert np.array_equal(mine.get("action_mask"), stock_value.get("action_mask"))
        mask |= batched_outputs[1] | batched_outputs[2]
        n_episodes += int((batched_outputs[1] | batched_outputs[2]).sum())
    return n_episodes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kwargs"), mark_long_except_every(3, CASES), ids=[f"{name}{kwargs or ''}" for name, kwargs in CASES]
)
def test_equal_to_gymnasium(name, kwargs):
    assert compare(name, kwargs, seed=0, steps=400) > 0


@settings(max_examples=15)
@given(st.sampled_from(CASES), st.integers(0, 2**31 - 1))
def test_matches_gymnasium_for_any_seed(case, seed):
    compare(*case, seed=seed, steps=60)


def test_comparison_reaches_mountain_car_goals():
    """Check that the comparison covers rewards and ends of these games."""
    for name in ("MountainCar-v0", "MountainCarContinuous-v0"):
        games, rng = EnvFactory(name, engine="batched").make(4), np.random.default_rng(0)
        observation, playing, n_goals = games.reset(np.arange(4), np.ones(4, dtype=bool)), np.ones(4, dtype=bool), 0
        for _ in range(200):
            observation, _, terminated, truncated = games.step(skilled_action(name, games, observation, rng), playing)
            n_goals += int(terminated.sum())
            playing &= ~(terminated | truncated)
        assert n_goals == 4


def test_step_keeps_previous_outputs():
    for name in BATCHED_GAMES:
        games = EnvFactory(name, {}, HORIZON.get(name), "batched").make(2)
        first = games.reset(np.arange(2), np.ones(2, dtype=bool))
        first_copy = np.array(first)
        action = np.zeros((2, *games.action_space.shape), dtype=games.action_space.dtype)
        previous_step = games.step(action, np.ones(2, dtype=bool))
        copies = [np.array(part) for part in previous_step]
        games.step(action, np.ones(2, dtype=bool))
        assert np.array_equal(first, first_copy)
        for part, copy in zip(previous_step, copies, strict=True):
            assert np.array_equal(part, copy)


@pytest.mark.parametrize("action", [-1, 2])
def test_rejects_invalid_action(action):
    games = EnvFactory("CartPole-v1", engine="batched").make(2)
    games.reset(np.arange(2), np.ones(2, dtype=bool))
    with pytest.raises(ValueError, match=r"actions.*0.*1"):
        games.step(np.array([0, action]), np.ones(2, dtype=bool))


def test_pictures_match_gymnasium():
    for name in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "FrozenLake-v1", "Taxi-v4"):
        stock, batched = EnvFactory(name).make(1, render=True), EnvFactory(name, engine="batched").make(2)
        seeds, active = np.array([7, 3]), np.ones(1, dtype=bool)
        stock.reset(seeds[1:], active)
        batched.reset(seeds, np.ones(2, dtype=bool))
        action = np.zeros((2, *batched.action_space.shape), dtype=batched.action_space.dtype)
        stock.step(action[1:], active)
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
def test_rejects_missing_batched_engine(name, kwargs):
    with pytest.raises(ConfigError, match=r"env.engine=stock"):
        EnvFactory(name, kwargs, engine="batched").make(2)


def test_error_names_unknown_arguments():
    for name in ("CartPole-v1", "FrozenLake-v1", "llmrl/Pong-v0"):
        with pytest.raises(ConfigError, match=r"env\.kwargs=\{'wind': 3\}"):
            EnvFactory(name, {"wind": 3}, engine="batched").make(2)


def test_batched_engines_are_registered_with_gymnasium():
    import llmrl.envs.gym.tasks  # noqa: F401  (registers)

    assert set(BATCHED_GAMES) <= set(gymnasium.registry)
