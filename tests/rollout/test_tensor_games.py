"""Games that keep their numbers on a device: the same rollouts as of arrays, and no step that waits for the device."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from llmrl.core.observers import Observer
from llmrl.core.seeding import Seeds
from llmrl.core.summaries import Entropy
from llmrl.envs.adapters.parallel import ParallelAdapter
from llmrl.envs.escape_room import EscapeRoom
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector
from llmrl.rollout.evaluate_policy import evaluate_policy
from llmrl.rollout.trajectory_writers import trajectory_observers
from llmrl.run import trajectories
from llmrl.run.checkpoints import CheckpointStore
from recall_game import RecallGame
from tensor_games import OnDevice

INCENTIVES = np.array([0.3, 1.0, 0.0, 2.5, 0.1])


def escape_room(seed=0):
    env = EscapeRoom(Seeds(seed), n_envs=4, n_agents=3, show_mechanism=True)
    env.set_mechanism(INCENTIVES)
    return env


def recall(seed=0):
    """Games of different lengths, of which is told how sure of themselves the players were."""
    env = RecallGame([3, 5, 7, 16], n_agents=2, seed=seed)
    env.spec = replace(env.spec, metrics={"entropy": Entropy(), **env.spec.metrics})
    return env


def make_policy(spec, remembers=False, core_frozen=False):
    generator = Seeds(0).torch("weights")
    network = ActorCritic(spec, generator, NetworkSettings(16, [16], [], memory=8 if remembers else None))
    return SocietyPolicy(spec, [network], core_frozen)


def same_episodes(got, expected):
    assert [(e.game, e.length, e.summaries) for e in got] == [(e.game, e.length, e.summaries) for e in expected]
    for name in ("returns", "base_returns", "gains", "gain_times"):
        np.testing.assert_array_equal([getattr(e, name) for e in got], [getattr(e, name) for e in expected])


def same(got, expected):
    """Two rollouts, number for number."""
    for field in fields(got):
        x, y = getattr(got, field.name), getattr(expected, field.name)
        if field.name == "episodes":
            same_episodes(x, y)
        elif isinstance(y, dict):
            assert set(x) == set(y) and all(type(x[n]) is type(y[n]) for n in y)
            assert all(np.array_equal(x[n], y[n]) for n in y), field.name
        else:
            assert (x is None and y is None) or (x.dtype == y.dtype and torch.equal(x, y)), field.name


@pytest.mark.parametrize("make", [escape_room, recall])
@pytest.mark.parametrize("remembers", [False, True])
def test_rollouts_are_those_of_arrays(make, remembers):
    env, tensors = make(), OnDevice(make())
    policy = make_policy(env.spec, remembers)
    players = [Collector(each, policy, "cpu", ("vector",)) for each in (env, tensors)]
    for each in players:
        each.reset(5)
    for n_steps in (9, 4, 1, 12):
        expected, got = (
            each.collect(n_steps, Seeds(n_steps).torch("actions"), keep_reward_jacobian=env.spec.has_reward_jacobian)
            for each in players
        )
        assert n_steps < 9 or expected.episodes
        same(got, expected)
    assert all(torch.is_tensor(action) and action.dtype == torch.int64 for action in tensors.actions)


@pytest.mark.parametrize("make", [escape_room, recall])
def test_evaluations_are_those_of_arrays(make):
    env, tensors = make(), OnDevice(make())
    policy = make_policy(env.spec)
    found = [evaluate_policy(Collector(each, policy, "cpu"), 11, Seeds(2), exactly=True) for each in (env, tensors)]
    assert len(found[0]) == 11
    same_episodes(found[1], found[0])


def test_a_rollout_outlives_the_next_one_but_for_what_copy_copies():
    env = OnDevice(escape_room())
    collector = Collector(env, make_policy(env.spec), "cpu")
    collector.reset(0)
    rollout = collector.collect(5, Seeds(1).torch("actions"), keep_reward_jacobian=True).copy()
    before = replace(rollout, info={n: x.copy() for n, x in rollout.info.items()}).copy()
    for name in ("reward", "base_reward", "reward_jacobian", "terminated", "truncated", "episode_start"):
        setattr(before, name, getattr(before, name).clone())
    after = collector.collect(5, Seeds(2).torch("actions"), keep_reward_jacobian=True)
    same(rollout, before)
    assert not torch.equal(after.reward, before.reward)


@pytest.mark.parametrize("make", [escape_room, recall])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(make, tmp_path):
    env = OnDevice(make())
    policy = make_policy(env.spec, remembers=True)
    collector = Collector(env, policy, "cpu")
    collector.reset(3)
    collector.collect(8, Seeds(1).torch("actions"))
    store = CheckpointStore(tmp_path)
    state = store.load(store.save(1, collector.state_dict()))[1]
    other = Collector(OnDevice(make(seed=8)), policy, "cpu")
    other.load_state_dict(state)
    for i in range(2, 4):
        expected, got = (each.collect(9, Seeds(i).torch("actions")) for each in (collector, other))
        same(got, expected)


def test_a_checkpoint_returns_to_the_device_of_the_environment():
    env = OnDevice(recall())
    collector = Collector(env, make_policy(env.spec), "cpu")
    collector.reset(0)
    collector.collect(4, Seeds(0).torch("actions"))
    elsewhere = OnDevice(recall(), "meta")
    other = Collector(elsewhere, make_policy(elsewhere.spec), "cpu")
    other.load_state_dict(collector.state_dict())
    assert other._observation["vector"].is_meta and other._running.state_dict()["sums"].is_meta


@pytest.mark.slow
@pytest.mark.parametrize("core_frozen", [False, True])
@pytest.mark.parametrize("make", [escape_room, recall])
def test_no_step_waits_for_the_device(make, core_frozen):
    """Tensors on `meta` have no numbers, so whoever asks for one fails: nobody may before all steps are played."""
    env = OnDevice(make(), "meta")
    collector = Collector(env, make_policy(env.spec, not core_frozen, core_frozen).to("meta"), "meta")
    collector.reset(0)
    steps, ended = [], []

    class Watch(Observer):
        def on_step(self, transition):
            steps.append(env.actions[-1])
            ended.append(transition.ended.any())

    with pytest.raises(NotImplementedError, match="meta tensor"), collector.observed(Watch()):
        collector.collect(12, Seeds(0).torch("actions"), keep_reward_jacobian=env.spec.has_reward_jacobian)
    assert len(steps) == 12 and all(action.is_meta for action in steps) and any(ended)


def test_what_is_written_of_tensors_is_what_is_written_of_arrays(tmp_path):
    env, tensors = recall(), OnDevice(recall())
    policy = make_policy(env.spec)
    for name, each in (("arrays", env), ("tensors", tensors)):
        with trajectory_observers(each, policy, tmp_path / name) as writers:
            evaluate_policy(Collector(each, policy, "cpu", observers=writers(each)), 8, Seeds(1))
    expected, got = (trajectories.read(tmp_path / name) for name in ("arrays", "tensors"))
    assert len(expected) > 50
    for field in fields(expected):
        x, y = getattr(got, field.name), getattr(expected, field.name)
        assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f") if isinstance(x, np.ndarray) else x == y


def test_a_tensor_game_is_a_pettingzoo_environment():
    adapter = ParallelAdapter(OnDevice(EscapeRoom(Seeds(0), n_envs=1, n_agents=3)))
    observation, _ = adapter.reset(seed=1)
    assert all(adapter.observation_space(agent).contains(seen) for agent, seen in observation.items())
    _, reward, _, truncated, info = adapter.step(dict.fromkeys(adapter.agents, 1))
    assert reward == dict.fromkeys(reward, -1.0) and not any(truncated.values())
    assert info["player_0"]["agents_at_lever_1"] == 3.0
