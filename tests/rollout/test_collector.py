"""Collection of rollouts in a toy game: episodes, bootstrap values, resuming and cached features."""

import numpy as np
import pytest
import torch

from llmrl.core.seeding import Seeds
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector


def make_policy(spec, core_frozen=False, share=True, seed=0):
    generator = Seeds(seed).torch("weights")
    n = 1 if share else spec.n_agents
    return SocietyPolicy(
        spec, [ActorCritic(spec, generator, NetworkSettings(16, [16], [])) for _ in range(n)], core_frozen
    )


def collect(env, policy, n_steps, seed=0, **kwargs):
    collector = Collector(env, policy, "cpu")
    collector.reset(seed)
    return collector, collector.collect(n_steps, Seeds(seed).torch("actions"), **kwargs)


def test_episode_returns_sum_rewards(signal_game):
    env = signal_game(horizon=4)
    _, rollout = collect(env, make_policy(env.spec), 10)
    assert len(rollout.episodes) == 2 * env.spec.n_envs  # 10 steps hold two episodes of 4
    assert all(e.length == 4 for e in rollout.episodes)
    total = sum(e.returns.sum() for e in rollout.episodes)
    assert total == pytest.approx(rollout.reward[:8].sum().item())
    assert rollout.episodes[0].summaries["correct"] == pytest.approx(rollout.info["correct"][:4, 0].sum())
    assert rollout.truncated[3].all() and rollout.truncated[7].all() and rollout.truncated.sum() == 8


def test_episodes_span_rollouts(signal_game):
    env = signal_game(horizon=6)
    policy = make_policy(env.spec)
    collector, first = collect(env, policy, 4)
    second = collector.collect(4, Seeds(1).torch("actions"))
    assert not first.episodes and len(second.episodes) == env.spec.n_envs
    reference = (first.info["correct"].sum(0) + second.info["correct"][:2].sum(0)).tolist()
    assert [e.summaries["correct"] for e in second.episodes] == pytest.approx(reference)


def test_next_value_uses_final_state(signal_game):
    """Compares with values of single states, also at truncated episodes."""
    env, twin = signal_game(horizon=3), signal_game(horizon=3)
    policy = make_policy(env.spec)
    _, rollout = collect(env, policy, 7)
    observation = twin.reset(seed=0)
    for t in range(7):
        value = policy.values({"vector": torch.as_tensor(observation["vector"])})
        torch.testing.assert_close(rollout.value[t], value)
        step = twin.step(rollout.action[t].numpy())
        next_values = policy.values({"vector": torch.as_tensor(step.observation["vector"])})
        torch.testing.assert_close(rollout.next_value[t], next_values)
        observation = twin.reset(mask=step.truncated) if step.truncated.any() else step.observation


def test_mechanism_changes_rewards_but_not_welfare(signal_game):
    env = signal_game()
    env.set_mechanism([2.0])
    _, rollout = collect(env, make_policy(env.spec), 8)
    zeros = (rollout.action == 0).sum().item()
    payments = sum((e.returns - e.base_returns).sum() for e in rollout.episodes)
    assert zeros > 0 and payments == pytest.approx(2.0 * zeros)


def test_state_dict_continues_exactly(signal_game):
    env, second_env = signal_game(horizon=5), signal_game(horizon=5, seed=9)
    policy = make_policy(env.spec)
    collector, _ = collect(env, policy, 7)
    restored = Collector(second_env, policy, "cpu")
    restored.load_state_dict(collector.state_dict())
    reference = collector.collect(6, Seeds(3).torch("actions"))
    actual = restored.collect(6, Seeds(3).torch("actions"))
    assert torch.equal(actual.reward, reference.reward) and torch.equal(actual.value, reference.value)
    assert [e.summaries for e in actual.episodes] == [e.summaries for e in reference.episodes]


def test_frozen_core_stores_features(signal_game):
    env = signal_game()
    policy = make_policy(env.spec, core_frozen=True)
    _, rollout = collect(env, policy, 8)
    assert rollout.features.shape == (8, 4, 2, 16) and not rollout.observation
    logits, value = policy.members[0]({"features": rollout.features})
    torch.testing.assert_close(value, rollout.value)
    assert np.isfinite(logits.detach().numpy()).all()


def test_teacher_gets_channels_with_frozen_core(signal_game):
    env = signal_game()
    collector = Collector(env, make_policy(env.spec, core_frozen=True), "cpu", extra_channels=("vector",))
    collector.reset(0)
    rollout = collector.collect(8, Seeds(0).torch("actions"))
    assert rollout.features is not None and rollout.observation["vector"].shape[:3] == (8, 4, 2)


def test_memory_returns_to_device(signal_game):
    """Checkpoints are loaded to the CPU."""
    env = signal_game()
    collector, _ = collect(env, make_policy(env.spec), 3)
    state = collector.state_dict() | {"state": torch.zeros(4, 2, 6)}
    restored = Collector(signal_game(), make_policy(env.spec), "meta")
    restored.load_state_dict(state)
    assert restored._policy_state.device.type == "meta" and restored._policy_state.shape == (4, 2, 6)


def test_copy_survives_next_rollout(signal_game):
    env = signal_game()
    collector, rollout = collect(env, make_policy(env.spec, core_frozen=True), 8)
    copy = rollout.copy()
    names = ("action", "log_prob", "value", "next_value", "features")
    initial = {name: getattr(copy, name).clone() for name in names}
    collector.collect(8, Seeds(7).torch("actions"))
    assert all(torch.equal(getattr(copy, name), initial[name]) for name in names)
    assert not torch.equal(rollout.action, copy.action)


def test_frozen_learner_stores_nothing(signal_game):
    env = signal_game()
    _, rollout = collect(env, make_policy(env.spec), 8, learn=False)
    assert not rollout.observation and rollout.features is None and len(rollout.episodes) == 4


def test_separate_networks_see_single_agent(signal_game):
    env = signal_game()
    policy = make_policy(env.spec, share=False)
    observation = {"vector": torch.as_tensor(env.reset(seed=0)["vector"])}
    initial = policy.values(observation)
    with torch.no_grad():
        for p in policy.members[0].parameters():
            p.add_(0.1)
    after = policy.values(observation)
    assert not torch.allclose(initial[:, 0], after[:, 0]) and torch.equal(initial[:, 1], after[:, 1])
