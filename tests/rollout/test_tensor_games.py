"""Environments with tensors on a device: equal rollouts and no synchronization during steps."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from environments import make_env
from llmrl.core.observers import Observer
from llmrl.core.seeding import Seeds
from llmrl.envs.adapters.parallel import ParallelAdapter
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector, evaluate_policy
from llmrl.rollout.trajectory_writers import make_trajectory_writer
from llmrl.run import trajectories
from llmrl.run.checkpoints import CheckpointStore
from recall_game import RecallGame
from tensor_games import TensorEnv

INCENTIVES = np.array([0.3, 1.0, 0.0, 2.5, 0.1])


def escape_room(seed=0):
    env = make_env("escape_room", Seeds(seed), n_envs=4, n_agents=3, show_mechanism=True)
    env.set_mechanism(INCENTIVES)
    return env


def recall(seed=0):
    """Return games of different lengths."""
    return RecallGame([3, 5, 7, 16], n_agents=2, seed=seed)


def make_policy(spec, remembers=False, core_frozen=False):
    generator = Seeds(0).torch("weights")
    network = ActorCritic(spec, generator, NetworkSettings(16, [16], [], memory=8 if remembers else None))
    return SocietyPolicy(spec, [network], core_frozen)


def check_episodes(actual, reference):
    assert [(e.game, e.length, e.summaries) for e in actual] == [(e.game, e.length, e.summaries) for e in reference]
    for name in ("returns", "base_returns", "n_gain_steps", "gain_step_sums"):
        np.testing.assert_array_equal([getattr(e, name) for e in actual], [getattr(e, name) for e in reference])


def check_rollout(actual, reference):
    """Assert that two rollouts are equal."""
    for field in fields(actual):
        x, y = getattr(actual, field.name), getattr(reference, field.name)
        if field.name == "episodes":
            check_episodes(x, y)
        elif isinstance(y, dict):
            assert set(x) == set(y) and all(type(x[n]) is type(y[n]) for n in y)
            assert all(np.array_equal(x[n], y[n]) for n in y), field.name
        else:
            assert (x is None and y is None) or (x.dtype == y.dtype and torch.equal(x, y)), field.name


@pytest.mark.parametrize("make", [escape_room, recall])
@pytest.mark.parametrize("remembers", [False, True])
def test_rollouts_match_arrays(make, remembers):
    env, tensors = make(), TensorEnv(make())
    policy = make_policy(env.spec, remembers)
    players = [Collector(env, policy, "cpu", ("vector",)) for env in (env, tensors)]
    for collector in players:
        collector.reset(5)
    for n_steps in (9, 4, 1, 12):
        reference, actual = (
            collector.collect(
                n_steps, Seeds(n_steps).torch("actions"), keep_reward_jacobian=env.spec.has_reward_jacobian
            )
            for collector in players
        )
        assert n_steps < 9 or reference.episodes
        check_rollout(actual, reference)
    assert all(torch.is_tensor(action) and action.dtype == torch.int64 for action in tensors.actions)


@pytest.mark.parametrize("make", [escape_room, recall])
def test_evaluations_match_arrays(make):
    env, tensors = make(), TensorEnv(make())
    policy = make_policy(env.spec)
    evaluations = [evaluate_policy(Collector(env, policy, "cpu"), 11, Seeds(2), exactly=True) for env in (env, tensors)]
    assert len(evaluations[0]) == 11
    check_episodes(evaluations[1], evaluations[0])


def test_rollout_survives_next_rollout():
    env = TensorEnv(escape_room())
    collector = Collector(env, make_policy(env.spec), "cpu")
    collector.reset(0)
    rollout = collector.collect(5, Seeds(1).torch("actions"), keep_reward_jacobian=True).copy()
    original = replace(rollout, info={n: x.copy() for n, x in rollout.info.items()}).copy()
    for name in ("reward", "base_reward", "reward_jacobian", "terminated", "truncated", "episode_start"):
        setattr(original, name, getattr(original, name).clone())
    after = collector.collect(5, Seeds(2).torch("actions"), keep_reward_jacobian=True)
    check_rollout(rollout, original)
    assert not torch.equal(after.reward, original.reward)


@pytest.mark.parametrize("make", [escape_room, recall])
def test_resume_is_bit_exact(make, tmp_path):
    env = TensorEnv(make())
    policy = make_policy(env.spec, remembers=True)
    collector = Collector(env, policy, "cpu")
    collector.reset(3)
    collector.collect(8, Seeds(1).torch("actions"))
    store = CheckpointStore(tmp_path)
    state = store.load(store.save(1, collector.state_dict()))[1]
    second_collector = Collector(TensorEnv(make(seed=8)), policy, "cpu")
    second_collector.load_state_dict(state)
    for i in range(2, 4):
        reference, actual = (
            collector.collect(9, Seeds(i).torch("actions")) for collector in (collector, second_collector)
        )
        check_rollout(actual, reference)


def test_checkpoint_returns_to_environment_device():
    env = TensorEnv(recall())
    collector = Collector(env, make_policy(env.spec), "cpu")
    collector.reset(0)
    collector.collect(4, Seeds(0).torch("actions"))
    meta_env = TensorEnv(recall(), "meta")
    second_collector = Collector(meta_env, make_policy(meta_env.spec), "cpu")
    second_collector.load_state_dict(collector.state_dict())
    assert (
        second_collector._observation["vector"].is_meta and second_collector._accumulator.state_dict()["sums"].is_meta
    )


@pytest.mark.slow
@pytest.mark.parametrize("core_frozen", [False, True])
@pytest.mark.parametrize("make", [escape_room, recall])
def test_no_step_waits_for_the_device(make, core_frozen):
    """Tensors on `meta` have no values, so reading one before the end of the rollout raises an error."""
    env = TensorEnv(make(), "meta")
    collector = Collector(env, make_policy(env.spec, not core_frozen, core_frozen).to("meta"), "meta")
    collector.reset(0)
    steps, ends = [], []

    class Watch(Observer):
        def on_step(self, transition):
            steps.append(env.actions[-1])
            ends.append(transition.ended.any())

    with pytest.raises(NotImplementedError, match="meta tensor"), collector.add_observers(Watch()):
        collector.collect(12, Seeds(0).torch("actions"), keep_reward_jacobian=env.spec.has_reward_jacobian)
    assert len(steps) == 12 and all(action.is_meta for action in steps) and any(ends)


def test_writers_match_arrays(tmp_path):
    env, tensors = recall(), TensorEnv(recall())
    policy = make_policy(env.spec)
    for name, env_ in (("arrays", env), ("tensors", tensors)):
        collector = Collector(env_, policy, "cpu", observers=[make_trajectory_writer(env_, policy, tmp_path / name)])
        evaluate_policy(collector, 8, Seeds(1))
        collector.close()
    reference, actual = (trajectories.read_trajectories(tmp_path / name) for name in ("arrays", "tensors"))
    assert len(reference) > 50
    for field in fields(reference):
        x, y = getattr(actual, field.name), getattr(reference, field.name)
        assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f") if isinstance(x, np.ndarray) else x == y


def test_tensor_game_supports_pettingzoo():
    adapter = ParallelAdapter(TensorEnv(make_env("escape_room", n_envs=1, n_agents=3)))
    observation, _ = adapter.reset(seed=1)
    assert all(adapter.observation_space(agent).contains(observation) for agent, observation in observation.items())
    _, reward, _, truncated, info = adapter.step(dict.fromkeys(adapter.agents, 1))
    assert reward == dict.fromkeys(reward, -1.0) and not any(truncated.values())
    assert info["player_0"]["agents_at_lever_1"] == 3.0
