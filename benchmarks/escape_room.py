"""CPU seconds of a training episode (a rollout of 5 steps and a PPO update) in the Contextual Escape Room.

Compares 2048 vectorized games with a single game. Measurements of both alternate. The published implementation needs
0.03 to 0.05 CPU seconds per episode on a comparable core (measured separately; it is not run here). The last column is
the ratio to 0.03 s. Target: at least 100.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from plain_ppo import PPO_SETTINGS, build_ppo_agent

from llmrl.api.environments import make_env
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector

PUBLISHED_SECONDS = 0.03
"""CPU seconds of a training episode of the published implementation."""


class Setting:
    """Society in `n_envs` games.

    Args:
        n_envs: number of games.
        minibatch_size: number of samples of a minibatch.
        freeze: frozen part of the network: `core`, as published, or `none`.
    """

    def __init__(self, n_envs: int, minibatch_size: int, freeze: str) -> None:
        seeds = Seeds(0)
        self.seeds, self.n_envs, self.freeze = seeds, n_envs, freeze
        env = make_env("escape_room", n_envs=n_envs)
        ppo = replace(PPO_SETTINGS, minibatch_size=minibatch_size)
        self.agent = build_ppo_agent(env.spec, seeds.child("agent"), ppo, features=64, freeze=freeze)
        self.collector = Collector(env, self.agent.policy, "cpu")

    def measure_episode_seconds(self, rounds: int) -> float:
        """Return CPU seconds per training episode, averaged over `rounds` updates."""
        start = time.process_time()
        for i in range(rounds):
            self.collector.reset(i)
            rollout = self.collector.collect(5, self.seeds.torch("actions"))
            self.agent.update(rollout, self.seeds.torch("minibatches"))
        return (time.process_time() - start) / rounds / self.n_envs


def main() -> None:
    torch.set_num_threads(1)
    for freeze in ("core", "none"):
        single, vectorized = Setting(1, 128, freeze), Setting(2048, 12800, freeze)
        single.measure_episode_seconds(5), vectorized.measure_episode_seconds(1)  # warm up
        pairs = [(single.measure_episode_seconds(40), vectorized.measure_episode_seconds(3)) for _ in range(5)]
        single_seconds, vectorized_seconds = (sorted(column)[2] for column in zip(*pairs, strict=True))
        print(
            f"freeze={freeze:5} one game {single_seconds * 1e3:6.2f} ms   "
            f"2048 games {vectorized_seconds * 1e3:6.3f} ms   "
            f"ratio {single_seconds / vectorized_seconds:5.0f}   ratio to the published "
            f"{PUBLISHED_SECONDS * 1e3:.0f} ms: {PUBLISHED_SECONDS / vectorized_seconds:5.0f} (target >= 100)"
        )


if __name__ == "__main__":
    main()
