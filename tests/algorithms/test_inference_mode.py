"""Rollouts in inference mode do not change training, and their tensors never reach autograd."""

from __future__ import annotations

import pytest
import torch

from llmrl.algorithms.ppo import PPO
from llmrl.core.seeding import Seeds
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector
from ppo_settings import PLAIN

KINDS = {"shared": {}, "a network each": {"share": False}, "memory": {"memory": 4}, "frozen core": {"freeze": True}}


def train(env, share=True, memory=None, freeze=False):
    """Collect three rollouts with updates; return the rollouts and the final weights."""
    generator, n = Seeds(0).torch("weights"), 1 if share else env.spec.n_agents
    shape = NetworkSettings(8, [8], [], memory=memory)
    policy = SocietyPolicy(env.spec, [ActorCritic(env.spec, generator, shape) for _ in range(n)], freeze)
    ppo, collector = PPO(policy, PLAIN), Collector(env, policy, "cpu")
    collector.reset(0)
    actions, minibatches = Seeds(0).torch("actions"), Seeds(0).torch("minibatches")
    rollouts = []
    for _ in range(3):
        rollout = collector.collect(5, actions)
        tensors = {name: x.clone() for name, x in vars(rollout).items() if isinstance(x, torch.Tensor)}
        rollouts.append(tensors | {f"observed/{name}": x.clone() for name, x in rollout.observation.items()})
        inference = [x for x in (*vars(rollout).values(), *rollout.observation.values()) if torch.is_tensor(x)]
        assert inference and not any(x.is_inference() for x in inference)
        ppo.update(rollout, minibatches)
    return rollouts, policy.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_inference_mode_keeps_training(kind, signal_game, monkeypatch):
    rollouts, weights = train(signal_game(horizon=4), **KINDS[kind])
    for name in ("act", "values"):
        wrapped = getattr(SocietyPolicy, name).__wrapped__
        monkeypatch.setattr(SocietyPolicy, name, torch.no_grad()(wrapped))
    reference_rollouts, reference_weights = train(signal_game(horizon=4), **KINDS[kind])
    for actual, reference in zip(rollouts, reference_rollouts, strict=True):
        assert actual.keys() == reference.keys()
        for name, x in actual.items():
            assert torch.equal(x, reference[name]), name
    for name, x in weights.items():
        assert torch.equal(x, reference_weights[name]), name
