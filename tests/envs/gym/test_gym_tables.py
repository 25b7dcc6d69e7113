"""Tabular rules: complete episodes, expected returns and optimal policies."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.envs.gym.batched.tabular_games import TabularGames
from llmrl.envs.gym.batched.transition_table import TransitionTable, play
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.tasks import nim

CHAIN = {0: {0: [(1.0, 1, -1.0, False)], 1: [(1.0, 0, -1.0, False)]}, 1: {a: [(1.0, 1, 5.0, True)] for a in range(2)}}


@st.composite
def random_rules(draw):
    """Draw rules of 1 to 4 states and 1 to 3 actions whose probabilities add up to about 1."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n_states, n_actions = draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def outcomes():
        k = rng.integers(1, 4)
        chances = np.round(rng.dirichlet(np.ones(k)), 1) if rng.random() < 0.5 else np.full(k, 1 / k)
        rewards = rng.integers(-3, 4, size=k) / 10
        return [
            (float(p), int(rng.integers(n_states)), float(r), bool(rng.random() < 0.2))
            for p, r in zip(chances, rewards, strict=True)
        ]

    rules = {s: {a: outcomes() for a in range(n_actions)} for s in range(n_states)}
    return rules, rng.dirichlet(np.ones(n_states)), rng


@settings(max_examples=80)
@given(random_rules())
def test_full_episodes_match_single_steps(case):
    rules, start, rng = case
    table = TransitionTable.of(rules, start)
    policies = rng.integers(table.n_actions, size=(2, table.n_states))
    seeds, horizon = rng.integers(2**31, size=3), int(rng.integers(1, 30))
    done = play(table, policies, seeds, horizon)
    for i, (policy, seed) in enumerate(itertools.product(policies, seeds.tolist())):
        # As Gymnasium's toy-text environments do it.
        source = np.random.default_rng(seed)
        state, rewards, is_terminal = int(np.argmax(np.cumsum(start) > source.random())), [], False
        while not is_terminal and len(rewards) < horizon:
            row = rules[state][int(policy[state])]
            outcome = np.argmax(np.cumsum([p for p, *_ in row]) > source.random())
            _, state, reward, is_terminal = row[outcome]
            rewards.append(reward)
        total = 0.0
        for reward in rewards:
            total += reward
        assert done.returned[i] == total
        assert done.length[i] == len(rewards)
        assert done.best_reward[i] == max(rewards)
        assert done.terminated[i] == is_terminal


def test_expected_return_matches_average():
    games = EnvFactory("FrozenLake-v1", engine="batched").make(1)
    assert isinstance(games, TabularGames)
    policy = np.array([0, 3, 0, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0])
    returns = play(games.table, policy[None], np.arange(20_000), 100).returned
    assert abs(games.table.expected_return(policy, 100) - returns.mean()) < 4 * returns.std() / np.sqrt(len(returns))


def test_chain_values_match_hand_calculation():
    table = TransitionTable.of(CHAIN, np.array([1.0, 0.0]))
    assert table.expected_return(np.array([0, 0]), 10) == 4.0
    assert table.expected_return(np.array([1, 0]), 10) == -10.0
    assert table.expected_return(np.array([0, 0]), 1) == -1.0
    assert table.best_policy().tolist() == [0, 0]


def test_best_policy_is_optimal_in_small_game():
    table = TransitionTable.of(nim.rules(), np.eye(11)[10])
    best = table.expected_return(table.best_policy(), 10)
    rng = np.random.default_rng(0)
    assert all(table.expected_return(rng.integers(3, size=11), 10) <= best for _ in range(200))


@pytest.mark.parametrize("action", [-1, 2])
def test_rejects_invalid_actions(action):
    table = TransitionTable.of(CHAIN, np.eye(2)[0])
    with pytest.raises(ValueError, match=r"actions.*0.*1"):
        play(table, np.array([[0, 1], [0, action]]), np.arange(2), 5)
