"""Rules are as good as is known of them, and only played where there is one."""

import gymnasium
import numpy as np
import pytest

from llmrl.agents.heuristic_agent import HEURISTICS, HeuristicAgent
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.envs.gym.vec_env import GymnasiumEnv
from llmrl.rollout.collector import Collector
from llmrl.rollout.evaluate_policy import evaluate_policy

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


def test_every_rule_is_tested():
    """That of the tax economy is in tests/envs/test_tax_economy.py."""
    assert {*GAMES, *COMMONS, "tax_economy"} == set(HEURISTICS)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_how_good_they_are(name):
    id, kwargs, episodes, least = GAMES[name]
    env = GymnasiumEnv(Seeds(0), id, kwargs=kwargs, n_envs=20 if episodes > 20 else 10, text=name)
    played = evaluate_policy(
        Collector(env, HeuristicAgent(env.spec, env.env_factory).policy, "cpu"), episodes, Seeds(1)
    )
    assert np.mean([episode.returns[0] for episode in played]) >= least
    env.close()


def test_the_shortest_ways_of_the_taxi():
    """Against breadth-first search over Gymnasium's own table of what follows from what."""
    game = gymnasium.make("Taxi-v4").unwrapped
    steps = {s: 0 for s in game.P for a in game.P[s] if game.P[s][a][0][3]}
    arrive = dict.fromkeys(steps, 1)
    while True:
        new = {
            s: 1 + min(arrive.get(game.P[s][a][0][1], 10**6) for a in game.P[s])
            for s in game.P
            if s not in arrive and any(game.P[s][a][0][1] in arrive for a in game.P[s])
        }
        if not new:
            break
        arrive |= new
    env = GymnasiumEnv(Seeds(0), "Taxi-v4", n_envs=1)
    policy = HeuristicAgent(env.spec).policy
    starts = np.flatnonzero(game.initial_state_distrib)
    for state in starts[::7].tolist():
        at, taken = state, 0
        while True:
            action = int(policy._rule(np.array([at]))[0])
            [(_, at, _, over)] = game.P[at][action]
            taken += 1
            if over:
                break
        assert taken == arrive[state]


@pytest.mark.parametrize("text", ["frozen_lake", None])
def test_the_lake(text):
    """On a map that can be judged by eye, in words or without; the value of the best way over the slippery one is the
    known 0.82."""
    firm = {"desc": ["SFF", "HHF", "FFG"], "is_slippery": False}
    assert lake_rule(firm, text)(np.array([0, 1, 2, 5])).tolist() == [2, 2, 1, 1]
    game = gymnasium.make("FrozenLake-v1").unwrapped
    moves = lake_rule({}, text)(np.arange(16))
    value = np.zeros(16)
    for _ in range(3000):
        value = np.array(
            [sum(p * (r + value[s] * (not over)) for p, s, r, over in game.P[k][moves[k]]) for k in game.P]
        )
    assert value[0] == pytest.approx(0.8235, abs=1e-3)


def lake_rule(kwargs, text):
    env = GymnasiumEnv(Seeds(0), "FrozenLake-v1", kwargs=kwargs, n_envs=1, text=text)
    return HeuristicAgent(env.spec, env.env_factory).policy._rule


class TestRefusals:
    def spec(self, name, channels=None):
        channels = {"vector": Channel((4,), "float32"), **(channels or {})}
        return EnvSpec(name, 1, 1, channels, 2, ("a", "b"), 10)

    def test_an_environment_without_a_rule(self):
        with pytest.raises(ConfigError, match="no rule for env=hopper; there are rules for acrobot, blackjack"):
            HeuristicAgent(self.spec("hopper"))

    def test_a_channel_that_is_not_there(self):
        with pytest.raises(ConfigError, match="reads the channel 'state', and there is only vector"):
            HeuristicAgent(self.spec("taxi"))

    def test_a_lake_that_is_not_gymnasiums(self):
        with pytest.raises(ConfigError, match="computed from Gymnasium's table"):
            HeuristicAgent(self.spec("frozen_lake", {"state": Channel((), "int64")}))
