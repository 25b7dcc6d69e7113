"""Heuristic rules: their returns, and errors for environments without a rule."""

import gymnasium
import numpy as np
import pytest

from environments import make_env
from llmrl.agents.heuristic_agent import HEURISTICS, HeuristicAgent
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.rollout.collector import Collector, evaluate_policy

GAMES = {
    # Gymnasium's id, arguments, episodes, mean return of at least
    "acrobot": ("Acrobot-v1", {}, 20, -150),
    "blackjack": ("Blackjack-v1", {"sab": True}, 3000, -0.1),
    "cartpole": ("CartPole-v1", {}, 20, 500),
    "cliff_walking": ("CliffWalking-v1", {}, 2, -13),
    "frozen_lake": ("FrozenLake-v1", {}, 600, 0.68),
    "lunar_lander": ("LunarLander-v3", {}, 10, 200),
    "mountain_car": ("MountainCar-v0", {}, 20, -125),
    "taxi": ("Taxi-v4", {}, 60, 6.5),
}


COMMONS = {"fishery", "pasture", "pollution"}
"""Their rule: tests/envs/test_commons.py."""


def test_all_rules_are_covered():
    """Check all rules; the rule of the tax economy is tested in tests/envs/test_tax_economy.py."""
    assert {*GAMES, *COMMONS, "tax_economy"} == set(HEURISTICS)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_rules_reach_reference_returns(name):
    id, kwargs, episodes, min_return = GAMES[name]
    env = make_env("gymnasium", id=id, kwargs=kwargs, n_envs=20 if episodes > 20 else 10, text=name)
    returns = evaluate_policy(
        Collector(env, HeuristicAgent(env.spec, env.env_factory).policy, "cpu"), episodes, Seeds(1)
    )
    assert np.mean([episode.returns[0] for episode in returns]) >= min_return
    env.close()


def test_taxi_paths_are_shortest():
    """Compare with breadth-first search over Gymnasium's own transition table."""
    game = gymnasium.make("Taxi-v4").unwrapped
    steps = {s: 0 for s in game.P for move in game.P[s] if game.P[s][move][0][3]}
    arrive = dict.fromkeys(steps, 1)
    while True:
        new = {
            s: 1 + min(arrive.get(game.P[s][move][0][1], 10**6) for move in game.P[s])
            for s in game.P
            if s not in arrive and any(game.P[s][move][0][1] in arrive for move in game.P[s])
        }
        if not new:
            break
        arrive |= new
    env = make_env("gymnasium", id="Taxi-v4", n_envs=1)
    policy = HeuristicAgent(env.spec).policy
    starts = np.flatnonzero(game.initial_state_distrib)
    for state in starts[::7].tolist():
        at, n_steps = state, 0
        while True:
            action = int(policy.rule.choose_actions(np.array([[at]]), None, ())[0, 0])
            [(_, at, _, done)] = game.P[at][action]
            n_steps += 1
            if done:
                break
        assert n_steps == arrive[state]


@pytest.mark.parametrize("text", ["frozen_lake", None])
def test_lake_rule(text):
    """Check a small map, with and without text, and the known value 0.82 of the optimal policy on the slippery lake."""
    firm = {"desc": ["SFF", "HHF", "FFG"], "is_slippery": False}
    assert choose_on_lake(firm, text, np.array([0, 1, 2, 5])).tolist() == [2, 2, 1, 1]
    game = gymnasium.make("FrozenLake-v1").unwrapped
    moves = choose_on_lake({}, text, np.arange(16))
    value = np.zeros(16)
    for _ in range(3000):
        value = np.array(
            [sum(p * (r + value[s] * (not done)) for p, s, r, done in game.P[k][moves[k]]) for k in game.P]
        )
    assert value[0] == pytest.approx(0.8235, abs=1e-3)


def choose_on_lake(kwargs, text, states):
    env = make_env("gymnasium", id="FrozenLake-v1", kwargs=kwargs, n_envs=1, text=text)
    return HeuristicAgent(env.spec, env.env_factory).policy.rule.choose_actions(states[:, None], None, ())[:, 0]


class TestRefusals:
    def spec(self, name, channels=None):
        channels = {"vector": Channel((4,), "float32"), **(channels or {})}
        return EnvSpec(name, 1, 1, channels, 2, ("a", "b"), 10)

    def test_environment_needs_rule(self):
        with pytest.raises(ConfigError, match=r"env=hopper.*acrobot, blackjack"):
            HeuristicAgent(self.spec("hopper"))

    def test_rejects_missing_channel(self):
        with pytest.raises(ConfigError, match="'state'"):
            HeuristicAgent(self.spec("taxi"))

    def test_rejects_custom_lake(self):
        with pytest.raises(ConfigError, match="Gymnasium"):
            HeuristicAgent(self.spec("frozen_lake", {"state": Channel((), "int64")}))
