"""Evaluations count every game's first episode, so that short ones are not over-represented."""

import numpy as np
import torch

from llmrl.agents.random_agent import RandomPolicy
from llmrl.core.records import PolicyOutput
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.rollout.collector import Collector, evaluate_policy
from recall_game import RecallGame


class ConstantPolicy(RandomPolicy):
    """Policy that always takes the same action."""

    def __init__(self, spec, action=0):
        super().__init__(spec)
        self.action = action

    def act(self, observation, state=None, generator=None, greedy=False):
        return PolicyOutput(torch.full((self.n_envs, self.n_agents), self.action))


def test_single_episode_per_game_round():
    env = RecallGame([1, 2, 16])
    episodes = evaluate_policy(Collector(env, RandomPolicy(env.spec), "cpu"), 5, Seeds(0))
    assert [e.length for e in episodes] == [1, 2, 16] * 2


def test_players_share_games():
    """With the same first signals, the constant actions 0 and 1 are correct in complementary games."""
    returns = []
    for action in (0, 1):
        env = RecallGame([3] * 8)
        returns.append(evaluate_policy(Collector(env, ConstantPolicy(env.spec, action), "cpu"), 16, Seeds(4)))
    first, second = (np.array([e.summaries["correct"] for e in episodes]) for episodes in returns)
    assert (first + second == 1).all() and 0 < first.mean() < 1


def test_rounds_differ():
    env = RecallGame([3] * 8)
    episodes = evaluate_policy(Collector(env, ConstantPolicy(env.spec), "cpu"), 32, Seeds(4))
    rounds = np.array([e.summaries["correct"] for e in episodes]).reshape(4, 8)
    assert len({tuple(r) for r in rounds.tolist()}) > 1


def test_random_players_respect_device_mask():
    spec = EnvSpec("toy", 2, 1, {"action_mask": Channel((3,), "bool", 0, 1)}, 3, tuple("abc"), 10)
    mask = torch.tensor([[[True, False, False]], [[False, False, True]]])
    assert RandomPolicy(spec).act({"action_mask": mask}, generator=Seeds(0).torch("a")).action.tolist() == [[0], [2]]
    assert RandomPolicy(spec).act({"action_mask": mask.to("meta")}).action.device.type == "meta"
