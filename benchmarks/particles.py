"""Environment steps per second of vectorized particle worlds, compared with the parallel environments of `mpe2`.

    python benchmarks/particles.py [--seconds 1.0] [--rounds 3]

Each round plays random actions for `seconds` in each setting, including resets; prints medians over rounds. An
environment step is a step of one game with all its agents. Columns: a game of `mpe2` with its parallel interface; llmrl
with 1, 32 and 256 games, with the ratio to `mpe2`. Random legal actions are sampled before the measurement.
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
EPISODE_STEPS = 25


def sample_actions(legal: np.ndarray, n_envs: int) -> np.ndarray:
    """Return random legal actions of an episode, [EPISODE_STEPS, n_envs, n_agents].

    Args:
        legal: legal actions of each agent, [n_agents, n_actions].
        n_envs: number of games.
    """
    rng = np.random.default_rng(0)
    return np.stack([rng.choice(np.flatnonzero(row), size=(EPISODE_STEPS, n_envs)) for row in legal], axis=2)


def measure_batched(scenario: Scenario, n_envs: int, seconds: float) -> float:
    """Return environment steps per second of vectorized games."""
    env = ParticlesEnv(Seeds(0), scenario, n_envs)
    shape = (env.spec.n_agents, env.spec.n_actions)
    actions = sample_actions(
        np.ones(shape, dtype=bool) if scenario.legal_actions is None else scenario.legal_actions, n_envs
    )
    start, episodes = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        env.reset()
        for action in actions:
            env.step(action)
        episodes += 1
    return episodes * EPISODE_STEPS * n_envs / (time.perf_counter() - start)


def measure_mpe2(module: str, options: dict[str, Any], seconds: float) -> float:
    """Return environment steps per second of a parallel environment of `mpe2`."""
    env = importlib.import_module(f"mpe2.{module}").parallel_env(**options)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    agents = env.possible_agents
    actions = [{agent: int(rng.integers(env.action_space(agent).n)) for agent in agents} for _ in range(EPISODE_STEPS)]
    start, episodes = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        env.reset()
        for action in actions:
            env.step(action)
        episodes += 1
    return episodes * EPISODE_STEPS / (time.perf_counter() - start)


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
