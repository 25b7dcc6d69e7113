"""Tabular rules: episodes, expected returns and optimal policies."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from environments import make_env
from llmrl.agents.search_agent import TabularAgent
from llmrl.envs.gym.batched.tabular_games import TabularGames, TransitionTable
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.evaluator import EpisodeRules, GymEvaluator
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
def test_games_match_gymnasium_loop(case):
    rules, start, rng = case
    table = TransitionTable.from_rules(rules, start)
    policies = rng.integers(table.n_actions, size=(6, table.n_states))
    seeds, horizon = rng.integers(2**31, size=6), int(rng.integers(1, 30))
    games = TabularGames(6, table, lambda state, action: np.zeros((1, 1, 3), np.uint8), horizon)
    state, playing = games.reset(seeds, np.ones(6, dtype=bool)), np.ones(6, dtype=bool)
    returned, length, is_terminated = np.zeros(6), np.zeros(6, dtype=int), np.zeros(6, dtype=bool)
    while playing.any():
        length += playing
        state, reward, terminated, truncated = games.step(policies[np.arange(6), state], playing)
        returned += reward
        is_terminated |= terminated
        playing &= ~(terminated | truncated)
    for i, (policy, seed) in enumerate(zip(policies, seeds.tolist(), strict=True)):
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
        assert (returned[i], length[i], is_terminated[i]) == (total, len(rewards), is_terminal)


def test_expected_return_matches_average():
    env_factory = EnvFactory("FrozenLake-v1", engine="batched")
    games = env_factory.make(1)
    assert isinstance(games, TabularGames)
    policy = np.array([0, 3, 0, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0])
    controller = TabularAgent(make_env("gymnasium", id="FrozenLake-v1", n_envs=1).spec).controller
    with GymEvaluator(EpisodeRules(env_factory), workers=1) as evaluator:
        returns = evaluator.evaluate(controller, policy[None], np.arange(5_000)).returns
    expected = games.table.expected_return(policy, 100)
    assert abs(expected - returns.mean()) < 4 * returns.std() / np.sqrt(returns.size)


def test_chain_values_match_hand_calculation():
    table = TransitionTable.from_rules(CHAIN, np.array([1.0, 0.0]))
    assert table.expected_return(np.array([0, 0]), 10) == 4.0
    assert table.expected_return(np.array([1, 0]), 10) == -10.0
    assert table.expected_return(np.array([0, 0]), 1) == -1.0
    assert table.best_policy().tolist() == [0, 0]


def test_best_policy_is_optimal_in_small_game():
    table = TransitionTable.from_rules(nim.build_rules(), np.eye(11)[10])
    best = table.expected_return(table.best_policy(), 10)
    rng = np.random.default_rng(0)
    assert all(table.expected_return(rng.integers(3, size=11), 10) <= best for _ in range(200))
