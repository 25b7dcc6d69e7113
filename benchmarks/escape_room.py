"""CPU-seconds of a 5-step training episode (rollout and PPO update) in the Contextual Escape Room.

Thousands of games in lock step against one game at a time, in turn, in one run. The published implementation needs
0.03 to 0.05 CPU-seconds an episode on a comparable core (measured apart; it is not installed here), so the last column
quotes the ratio to its better figure. Target: at least 100.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from plain_ppo import PPO_SETTINGS, plain_ppo

from llmrl.api.environments import make_env
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector

PUBLISHED = 0.03  # CPU-seconds per training episode


class Setting:
    """A society in `n_envs` games; `freeze` is the published default (core) or everything trained (none)."""

    def __init__(self, n_envs: int, minibatch_size: int, freeze: str) -> None:
        seeds = Seeds(0)
        self.seeds, self.n_envs, self.freeze = seeds, n_envs, freeze
        env = make_env("escape_room", n_envs=n_envs)
        ppo = replace(PPO_SETTINGS, minibatch_size=minibatch_size)
        self.agent = plain_ppo(env.spec, seeds.child("agent"), ppo, features=64, freeze=freeze)
        self.collector = Collector(env, self.agent.policy, "cpu")

    def seconds_per_episode(self, rounds: int) -> float:
        start = time.process_time()
        for i in range(rounds):
            self.collector.reset(i)
            rollout = self.collector.collect(5, self.seeds.torch("actions"))
            self.agent.update(rollout, self.seeds.torch("minibatches"))
        return (time.process_time() - start) / rounds / self.n_envs


def main() -> None:
    torch.set_num_threads(1)
    for freeze in ("core", "none"):
        one, many = Setting(1, 128, freeze), Setting(2048, 12800, freeze)
        one.seconds_per_episode(5), many.seconds_per_episode(1)  # warm up
        pairs = [(one.seconds_per_episode(40), many.seconds_per_episode(3)) for _ in range(5)]
        a, b = (sorted(column)[2] for column in zip(*pairs, strict=True))
        print(
            f"freeze={freeze:5} one game {a * 1e3:6.2f} ms   2048 games {b * 1e3:6.3f} ms   ratio {a / b:5.0f}   "
            f"ratio to the published {PUBLISHED * 1e3:.0f} ms: {PUBLISHED / b:5.0f} (target >= 100)"
        )


if __name__ == "__main__":
    main()
