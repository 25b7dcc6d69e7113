"""Groups of episodes with equal initial states and independent continuations."""

import numpy as np
import torch

import llmrl
from llmrl.core.records import PolicyOutput
from llmrl.core.seeding import Seeds
from llmrl.loops.continuations import EpisodeGroups
from llmrl.loops.executor import serve
from llmrl.rollout.collector import Collector


class HitPolicy:
    """Agent that learns from groups of four, and its policy, which always draws another card."""

    channels = ("text",)
    group_size, n_continuations, gamma = 4, 0, 1.0

    def __init__(self, n_envs):
        self.policy, self.n_envs, self.first = self, n_envs, []

    def act(self, observation, state=None, generator=None, greedy=False):
        self.first = self.first or [str(observation["text"][game, 0]) for game in range(self.n_envs)]
        return PolicyOutput(torch.ones(self.n_envs, 1, dtype=torch.int64))

    def pause_recording(self): ...

    def truncate_episodes(self): ...

    def set_state_values(self, values): ...


def test_groups_start_equally_and_continue_independently():
    env = llmrl.make_env("blackjack", n_envs=64)
    env = getattr(env, "env", env)
    agent = HitPolicy(64)
    groups = EpisodeGroups(Collector(env, agent, "cpu"), agent, 30)
    rollout, n_steps = serve(groups.play(Seeds(0)))
    for first in range(0, 64, 4):
        assert len(set(agent.first[first : first + 4])) == 1
    assert len(set(agent.first)) > 8
    lengths = {episode.game: episode.length for episode in rollout.episodes}
    assert n_steps == sum(lengths.values())
    spread = [len({lengths[game] for game in range(first, first + 4)}) for first in range(0, 64, 4)]
    assert np.mean(np.array(spread) > 1) > 0.5
