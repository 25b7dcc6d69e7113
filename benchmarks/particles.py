"""Env-steps a second of particle worlds: arrays of many games against the parallel environments of `mpe2`.

    python benchmarks/particles.py [--seconds 1.0] [--rounds 3]

Each round plays random actions for `seconds` in every setting, one setting after the other, starts of episodes
included; printed are medians over the rounds. An env-step is one step of one game, whatever its number of agents.
Columns: one game of `mpe2` through its own interface; ours with 1, 32 and 256 games, each with its ratio to `mpe2`.
Random legal actions are drawn beforehand for both.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from typing import Any

import numpy as np

from llmrl.core.seeding import Seeds
from llmrl.envs.particles.mpe_scenarios import SimpleReference, SimpleSpeakerListener, SimpleSpread, SimpleTag
from llmrl.envs.particles.scenario import Scenario
from llmrl.envs.particles.vec_env import ParticlesEnv

GAMES = (1, 32, 256)
SETTINGS: tuple[tuple[str, Scenario, str, dict[str, Any]], ...] = (
    ("simple_spread, 3 agents", SimpleSpread(), "simple_spread_v3", {}),
    ("simple_spread, 6 agents", SimpleSpread(6), "simple_spread_v3", {"N": 6}),
    ("simple_tag, 3 and 1", SimpleTag(), "simple_tag_v3", {}),
    ("simple_reference", SimpleReference(), "simple_reference_v3", {}),
    ("simple_speaker_listener", SimpleSpeakerListener(), "simple_speaker_listener_v4", {}),
)
EPISODE = 25


def draw_actions(legal: np.ndarray, n_envs: int) -> np.ndarray:
    """Return random legal actions of an episode, [25, n_envs, n_agents]."""
    rng = np.random.default_rng(0)
    return np.stack([rng.choice(np.flatnonzero(row), size=(EPISODE, n_envs)) for row in legal], axis=2)


def measure_batched(scenario: Scenario, n_envs: int, seconds: float) -> float:
    env = ParticlesEnv(Seeds(0), scenario, n_envs)
    shape = (env.spec.n_agents, env.spec.n_actions)
    actions = draw_actions(
        np.ones(shape, dtype=bool) if scenario.legal_actions is None else scenario.legal_actions, n_envs
    )
    start, episodes = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        env.reset()
        for action in actions:
            env.step(action)
        episodes += 1
    return episodes * EPISODE * n_envs / (time.perf_counter() - start)


def measure_mpe2(module: str, options: dict[str, Any], seconds: float) -> float:
    env = importlib.import_module(f"mpe2.{module}").parallel_env(**options)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = [{a: int(rng.integers(env.action_space(a).n)) for a in env.possible_agents} for _ in range(EPISODE)]
    start, episodes = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        env.reset()
        for action in actions:
            env.step(action)
        episodes += 1
    return episodes * EPISODE / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"{'env-steps/s':26}{'mpe2':>9}" + "".join(f"{f'{n} games':>20}" for n in GAMES))
    for title, scenario, module, options in SETTINGS:
        rounds = [
            (
                measure_mpe2(module, options, args.seconds),
                *(measure_batched(scenario, n, args.seconds) for n in GAMES),
            )
            for _ in range(args.rounds)
        ]
        base, *batched_rates = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{title:26}{base:9,.0f}" + "".join(f"{x:12,.0f} ({x / base:4.0f}x)" for x in batched_rates))


if __name__ == "__main__":
    main()
