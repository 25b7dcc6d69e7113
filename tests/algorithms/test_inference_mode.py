"""Acting in inference mode changes no number of what is learned, and no tensor of it reaches autograd."""

from __future__ import annotations

import pytest
import torch

from llmrl.algorithms.ppo import PPO
from llmrl.core.seeding import Seeds
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector
from ppo_settings import PLAIN

KINDS = {"shared": {}, "a network each": {"share": False}, "memory": {"memory": 4}, "frozen core": {"frozen": True}}


def trained(env, share=True, memory=None, frozen=False):
    """Three rollouts and updates: rollouts, and weights after them."""
    generator, n = Seeds(0).torch("weights"), 1 if share else env.spec.n_agents
    shape = NetworkSettings(8, [8], [], memory=memory)
    policy = SocietyPolicy(env.spec, [ActorCritic(env.spec, generator, shape) for _ in range(n)], frozen)
    ppo, collector = PPO(policy, PLAIN), Collector(env, policy, "cpu")
    collector.reset(0)
    actions, minibatches = Seeds(0).torch("actions"), Seeds(0).torch("minibatches")
    rollouts = []
    for _ in range(3):
        rollout = collector.collect(5, actions)
        kept = {name: x.clone() for name, x in vars(rollout).items() if isinstance(x, torch.Tensor)}
        rollouts.append(kept | {f"observed/{name}": x.clone() for name, x in rollout.observation.items()})
        inference = [x for x in (*vars(rollout).values(), *rollout.observation.values()) if torch.is_tensor(x)]
        assert inference and not any(x.is_inference() for x in inference)
        ppo.update(rollout, minibatches)
    return rollouts, policy.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_without_it(kind, signal_game, monkeypatch):
    rollouts, weights = trained(signal_game(horizon=4), **KINDS[kind])
    for name in ("act", "values"):
        inside = getattr(SocietyPolicy, name).__wrapped__
        monkeypatch.setattr(SocietyPolicy, name, torch.no_grad()(inside))
    expected_rollouts, expected_weights = trained(signal_game(horizon=4), **KINDS[kind])
    for found, expected in zip(rollouts, expected_rollouts, strict=True):
        assert found.keys() == expected.keys()
        for name, x in found.items():
            assert torch.equal(x, expected[name]), name
    for name, x in weights.items():
        assert torch.equal(x, expected_weights[name]), name
