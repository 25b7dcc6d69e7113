"""Continuations of restored games: independent for different seeds, equal for equal ones."""

import numpy as np
import pytest

import llmrl
from llmrl.core.protocols import Forkable

ENVS = {
    "blackjack": {},
    "frozen_lake": {"kwargs": {"is_slippery": True}},
    "taxi": {},
    "harvest": {},
    "cleanup": {},
    "tax_economy": {},
    "escape_room": {},
    "simple_doorkey": {},
    "fishery": {},
}
STOCHASTIC = ("blackjack", "frozen_lake", "harvest", "cleanup", "fishery")
"""Games that draw random numbers after their start."""
STEPS = 60


def make(name):
    env = llmrl.make_env(name, n_envs=8, **ENVS[name])
    return getattr(env, "env", env)


def observe(step_or_observation):
    observation = getattr(step_or_observation, "observation", step_or_observation)
    return {name: np.asarray(x) for name, x in observation.items() if np.asarray(x).dtype != object}


def continuation(env, state, seed):
    """Return observations and rewards of a continuation with a fixed sequence of actions."""
    env.fork(state, seed)
    rng = np.random.default_rng(0)
    trace = []
    for _ in range(STEPS):
        action = rng.integers(env.spec.n_actions, size=(8, env.spec.n_agents))
        step = env.step(action)
        trace.append(np.concatenate([np.asarray(x, float).ravel() for x in (*observe(step).values(), step.reward)]))
    return np.stack(trace)


@pytest.mark.parametrize("name", ENVS)
def test_forks(name):
    env = make(name)
    if not isinstance(env, Forkable):
        pytest.fail(f"env={name} cannot be forked")
    env.reset(seed=3)
    env.step(np.ones((8, env.spec.n_agents), dtype=np.int64))
    state = env.state_dict()
    traces = [continuation(env, state, seed) for seed in (1, 2, 1)]
    np.testing.assert_array_equal(traces[0], traces[2])
    assert (traces[0] != traces[1]).any() == (name in STOCHASTIC)
    # The state itself is not changed, and restoring it without a fork repeats one future.
    futures = []
    for _ in range(2):
        env.load_state_dict(state)
        futures.append(np.asarray(env.step(np.ones((8, env.spec.n_agents), dtype=np.int64)).reward))
    np.testing.assert_array_equal(*futures)
    env.close()


@pytest.mark.parametrize("name", ENVS)
def test_fork_state_is_restorable(name):
    env = make(name)
    env.reset(seed=3)
    action = np.ones((8, env.spec.n_agents), dtype=np.int64)
    for seed in (1, 2):
        env.step(action)
        env.fork(env.state_dict(), seed)
    env.step(action)
    state, futures = env.state_dict(), []
    for _ in range(2):
        env.load_state_dict(state)
        futures.append([np.asarray(env.step(action).reward) for _ in range(5)])
    env.load_state_dict(state)
    np.testing.assert_array_equal(*futures)
    other = make(name)
    other.load_state_dict(state)
    np.testing.assert_array_equal([np.asarray(other.step(action).reward) for _ in range(5)], futures[0])
    env.close()
    other.close()


def test_continuations_estimate_state_values():
    """In blackjack, mean returns of continuations agree with independent episodes from the same hands."""
    env = make("blackjack")
    env.reset(seed=0)
    state = env.state_dict()
    returns = []
    for seed in range(300):
        env.fork(state, seed)
        returns.append(np.asarray(env.step(np.zeros((8, 1), dtype=np.int64)).reward)[:, 0])
    mean = np.mean(returns, axis=0)
    assert np.std(mean) > 0.1  # hands differ in value
    assert (np.std(returns, axis=0) > 0.3).sum() >= 7  # and hands without a natural have several outcomes
