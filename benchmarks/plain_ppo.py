"""PPO agent of benchmarks: an MLP of 64 units or convolutions, linear heads, and no frozen parameters."""

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
"""Settings that were published for societies in Clean Up and Harvest."""

AGENT_DEFAULTS: dict[str, Any] = {
    "share_parameters": True,
    "core_hidden": [64],
    "freeze": "none",
    "init_from": None,
    "init_parts": "all",
    "keep_optimizer": False,
}


def build_ppo_agent(spec: EnvSpec, seeds: Seeds, ppo: PPOSettings, device: str = "cpu", **options: Any) -> PPOAgent:
    """Build a PPO agent with the options of `AGENT_DEFAULTS`, updated with `options`."""
    settings = PPOAgentSettings(**{**AGENT_DEFAULTS, **options, "ppo": ppo})
    return PPOAgent(spec, settings, seeds, device, has_principal=True)
