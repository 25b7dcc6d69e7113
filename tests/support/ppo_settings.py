"""Default PPO settings for tests; use `dataclasses.replace` to change some of them."""

from __future__ import annotations

from llmrl.algorithms.ppo import PPOSettings

PLAIN = PPOSettings(
    learning_rate=3e-3,
    adam_eps=1e-5,
    gamma=0.9,
    gae_lambda=0.95,
    epochs=4,
    minibatch_size=64,
    clip=0.2,
    value_clip=0.2,
    normalize_advantage=True,
    entropy_coefficient=0.01,
    value_coefficient=0.5,
    max_grad_norm=0.5,
    target_kl=None,
    bootstrap_truncation=True,
)
