"""The PPO agent that benchmarks measure: linear heads, convolutions or an MLP of 64 units, and nothing frozen."""

from __future__ import annotations

from typing import Any

from llmrl.agents.ppo_agent import PPOAgent, PPOAgentSettings
from llmrl.algorithms.ppo import PPOSettings
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec

PPO_SETTINGS = PPOSettings(
    learning_rate=1e-3,
    adam_eps=1e-5,
    gamma=0.998,
    gae_lambda=0.98,
    epochs=4,
    minibatch_size=128,
    clip=0.2,
    value_clip=0.2,
    normalize_advantage=True,
    entropy_coefficient=0.025,
    value_coefficient=0.5,
    max_grad_norm=0.5,
    target_kl=None,
    bootstrap_truncation=True,
)
"""Of a society's learning, as published for Clean Up and Harvest; `dataclasses.replace` changes what is measured."""

AGENT_DEFAULTS: dict[str, Any] = {
    "share_parameters": True,
    "core_hidden": [64],
    "freeze": "none",
    "init_from": None,
    "init_parts": "all",
    "keep_optimizer": False,
}


def plain_ppo(spec: EnvSpec, seeds: Seeds, ppo: PPOSettings, device: str = "cpu", **changes: Any) -> PPOAgent:
    """Make the agent, with other options than `AGENT_DEFAULTS` where `changes` names them."""
    settings = PPOAgentSettings(**{**AGENT_DEFAULTS, **changes, "ppo": ppo})
    return PPOAgent(spec, settings, seeds, device, has_principal=True)
