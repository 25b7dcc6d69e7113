"""Observers of rollouts receive all events in order and do not change the rollout."""

import numpy as np
import pytest
import torch

from llmrl.agents.random_agent import RandomPolicy
from llmrl.core.errors import ConfigError
from llmrl.core.observers import Observer
from llmrl.core.records import to_numpy
from llmrl.core.seeding import Seeds
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector, evaluate_policy
from recall_game import RecallGame


def recall():
    return RecallGame([3, 5, 7, 16], n_agents=2, seed=0)


def make_policy(spec):
    return SocietyPolicy(
        spec, [ActorCritic(spec, Seeds(0).torch("weights"), NetworkSettings(16, [16], []))], core_frozen=False
    )


class Diary(Observer):
    def __init__(self):
        self.told, self.rewards = [], []

    def on_reset(self, games, observation):
        self.told.append(("reset", games.tolist()))

    def on_step(self, transition):
        self.told.append(("step", transition.ended.tolist()))
        self.rewards.append(to_numpy(transition.step.reward))

    def on_episode_end(self, episode):
        self.told.append(("end", episode.game))

    def on_rollout(self, rollout):
        self.told.append(("rollout", len(rollout.reward)))


def test_observer_events_are_ordered():
    env, diary = recall(), Diary()
    collector = Collector(env, make_policy(env.spec), "cpu", observers=[diary])
    collector.reset(0)
    rollouts = [collector.collect(6, torch.Generator().manual_seed(i)) for i in range(2)]
    resets = [games for event, games in diary.told if event == "reset"]
    assert resets[0] == [True] * env.spec.n_envs
    assert np.array_equal(np.array(diary.rewards), torch.cat([r.reward for r in rollouts]).numpy())
    steps = np.array([ends for event, ends in diary.told if event == "step"])
    ends = torch.cat([r.terminated | r.truncated for r in rollouts]).numpy()
    assert np.array_equal(steps, ends) and ends.any()
    # A game that is over begins anew before the next step, and nowhere else.
    assert resets[1:] == [row.tolist() for row in ends[:-1] if row.any()]
    assert [game for event, game in diary.told if event == "end"] == [e.game for r in rollouts for e in r.episodes]
    kinds = [event for event, _ in diary.told]
    assert kinds.count("rollout") == 2 and kinds[-1] == "rollout" and kinds[-2] == "end"


def test_observers_keep_rollout_unchanged():
    rollouts = []
    for observers in ([], [Diary(), Diary()]):
        env = recall()
        collector = Collector(env, make_policy(env.spec), "cpu", observers=observers)
        collector.reset(3)
        rollouts.append(collector.collect(9, torch.Generator().manual_seed(1)))
    for name in ("action", "log_prob", "value", "reward", "terminated", "next_value"):
        assert torch.equal(getattr(rollouts[0], name), getattr(rollouts[1], name))
    assert [e.returns.tolist() for e in rollouts[0].episodes] == [e.returns.tolist() for e in rollouts[1].episodes]


def test_spans_list_observers():
    """Evaluations between rollouts are not observed, and temporary observers are removed."""
    env, always, sometimes = recall(), Diary(), Diary()
    policy = make_policy(env.spec)
    collector = Collector(env, policy, "cpu", observers=[always])
    with collector.add_observers(sometimes):
        collector.reset(0)
        collector.collect(2, torch.Generator())
        assert always.told == sometimes.told != []
        n_events = len(always.told)
        with collector.disable_observers():
            evaluate_policy(collector, 1, Seeds(0))
        assert len(always.told) == len(sometimes.told) == n_events
    with pytest.raises(RuntimeError), collector.add_observers(sometimes):
        raise RuntimeError
    collector.reset(0)
    assert len(always.told) == n_events + 1 and len(sometimes.told) == n_events


def test_policy_is_notified_before_observers():
    order = []

    class NotifiedPolicy(RandomPolicy):
        def on_reset(self, games, observation):
            order.append("policy")

        def on_step(self, transition):
            order.append("policy")

    class Watch(Observer):
        def on_reset(self, games, observation):
            order.append("observer")

        def on_step(self, transition):
            order.append("observer")

    env = recall()
    collector = Collector(env, NotifiedPolicy(env.spec), "cpu", observers=[Watch()])
    collector.reset(0)
    collector.collect(1, torch.Generator(), learn=False)
    assert order == ["policy", "observer"] * 2


def test_observer_channels_are_requested():
    class OnRequest(RecallGame):
        provided = ()

        def provide(self, channels):
            self.provided = (*self.provided, *channels)

    env, watch = OnRequest([3]), Observer()
    watch.channels = ("vector",)
    collector = Collector(env, RandomPolicy(env.spec), "cpu")
    assert not env.provided
    with collector.add_observers(watch):
        assert env.provided == ("vector",)
    watch.channels = ("smell",)
    with pytest.raises(ConfigError, match=r"env=recall_game.*'smell'"):
        Collector(env, RandomPolicy(env.spec), "cpu", observers=[watch])
