"""Evaluations count every game's first episode, so that short ones are not over-represented."""

import numpy as np
import torch

from llmrl.agents.random_agent import RandomPolicy
from llmrl.core.records import Act
from llmrl.core.seeding import Seeds
from llmrl.learners.rollout import Collector
from llmrl.loops.playing import play_episodes
from recall_game import RecallGame


class Stubborn(RandomPolicy):
    """Always takes action 0."""

    def act(self, observation, state=None, generator=None, greedy=False):
        return Act(torch.zeros(self.n_envs, self.n_agents, dtype=torch.int64))


def test_one_episode_of_every_game_in_every_round():
    env = RecallGame([1, 2, 16])
    episodes = play_episodes(Collector(env, RandomPolicy(env.spec), "cpu"), 5, Seeds(0))
    assert [e.length for e in episodes] == [1, 2, 16] * 2


def test_players_meet_the_same_games():
    """Over the same first signals, naming always 0 and always drawing are right as often as the signals say."""
    found = []
    for kind in (Stubborn, Stubborn):
        env = RecallGame([3] * 8)
        found.append(play_episodes(Collector(env, kind(env.spec), "cpu"), 16, Seeds(4)))
    first, second = ([e.summaries["correct"] for e in episodes] for episodes in found)
    assert first == second and 0 < np.mean(first) < 1


def test_rounds_differ():
    env = RecallGame([3] * 8)
    episodes = play_episodes(Collector(env, Stubborn(env.spec), "cpu"), 32, Seeds(4))
    rounds = np.array([e.summaries["correct"] for e in episodes]).reshape(4, 8)
    assert len({tuple(r) for r in rounds.tolist()}) > 1
