"""Comparison of native games of Clean Up and Harvest with Melting Pot, as printed in docs/native_parity.md.

    python benchmarks/parity.py replay [--steps 500] [--games 12] [--processes 2]
    python benchmarks/parity.py statistics [--games 2048] [--seed 0]
    python benchmarks/parity.py record [--conditions NAME ...] [--seed 20000]

`replay` plays episodes in Melting Pot with random and scripted players, and replays them in the native engine with the
same random outcomes; all other quantities must agree after every step. `statistics` plays native games and compares
their statistics with `tests/envs/native/reference_statistics.json`. `record` plays the scripted conditions of this file
in Melting Pot and writes their statistics to it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from engine_games import GameSettings, play
from replays import replay_recordings
from statistics_of_games import (
    Condition,
    compute_z_scores,
    load_reference,
    make_engine_policy,
    measure_engine_game,
    measure_native_games,
    parse_condition,
    summarize,
    write_reference,
)

REPLAY_CONDITIONS: tuple[tuple[Condition, str], ...] = (
    (Condition("cleanup", "uniform"), "upstream"),
    (Condition("cleanup", "uniform", clean=True), "upstream"),
    (Condition("cleanup", "mixed"), "upstream"),
    (Condition("cleanup", "uniform"), "legislative"),
    (Condition("harvest", "uniform"), "upstream"),
    (Condition("harvest", "mixed"), "upstream"),
    (Condition("harvest", "uniform"), "legislative"),
)
WALK = (0.05, 0.4, 0.05, 0.1, 0.1, 0.1, 0.1, 0.0, 0.1)
RECORD_CONDITIONS: Mapping[str, tuple[Condition, int]] = {
    "cleanup, forager, clean start": (Condition("cleanup", "forager", clean=True, steps=400), 64),
    "cleanup, cleaner": (Condition("cleanup", "cleaner", steps=400), 64),
    "cleanup, mixed": (Condition("cleanup", "mixed", steps=400), 64),
    "harvest, forager": (Condition("harvest", "forager", steps=400), 64),
    "harvest, mixed": (Condition("harvest", "mixed", steps=400), 64),
    "cleanup, walk, clean start, 100 steps": (Condition("cleanup", "drawn", clean=True, steps=100, weights=WALK), 1000),
}
"""Condition, and number of games in Melting Pot, by name."""


def replay_games(condition: Condition, rules: str, games: int, steps: int, seed: int) -> tuple[int, list, Counter[str]]:
    """Play and replay games, and return (number of steps, mismatches, counts of events)."""
    torch.set_num_threads(1)
    game_settings = GameSettings(condition.substrate, rules=rules, clean=condition.clean)
    policy = make_engine_policy(condition.script(game_settings))
    comparison = replay_recordings([play(game_settings, policy, steps, seed + i) for i in range(games)])
    return comparison.steps, comparison.mismatches, comparison.counts


def print_replay(games: int, steps: int, seed: int, processes: int) -> bool:
    """Print a table of replays, and return whether there are no mismatches."""
    all_match, totals = True, {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [
            (condition, rules, pool.submit(replay_games, condition, rules, games, steps, seed + 1000 * i))
            for i, (condition, rules) in enumerate(REPLAY_CONDITIONS)
        ]
        print("| substrate | rules | players | steps | mismatches |\n|---|---|---|---|---|")
        for condition, rules, job in jobs:
            n_steps, mismatches, counts = job.result()
            players = condition.policy + (", clean start" if condition.clean else "")
            print(f"| {condition.substrate} | {rules} | {players} | {n_steps} | {len(mismatches)} |", flush=True)
            for mismatch in mismatches[:10]:
                print("game {}, step {}: {} is {} in Melting Pot and {} in the native engine".format(*mismatch))
            all_match &= not mismatches
            totals.setdefault(condition.substrate, Counter()).update(counts)
    names = list(dict.fromkeys(name for counts in totals.values() for name in counts))
    print("\n| | " + " | ".join(totals) + " |\n|---|" + "---|" * len(totals))
    for name in names:
        print(f"| {name} | " + " | ".join(str(counts.get(name, "")) for counts in totals.values()) + " |")
    return all_match


def print_statistics(games: int, seed: int) -> bool:
    """Print a table of statistics, and return whether they agree: all |z| <= 4, and at most 5 % above 2."""
    scores: list[float] = []
    print("| condition | engine: games, return | native: games, return | compared | largest \\|z\\| | \\|z\\| > 2 |")
    print("|---|---|---|---|---|---|")
    for name, entry in load_reference()["conditions"].items():
        samples = measure_native_games(parse_condition(entry), games, seed)
        z = compute_z_scores(entry["quantities"], samples)
        mean, sd, n = entry["quantities"]["return"]
        worst = max(z, key=lambda quantity: abs(z[quantity]))
        n_above_2 = sum(abs(score) > 2 for score in z.values())
        returns = samples["return"]
        cells = [
            name,
            f"{n}, {mean:.2f} ± {sd:.2f}",
            f"{games}, {returns.mean():.2f} ± {returns.std(ddof=1):.2f}",
            f"{len(z)} of {len(samples)}",
            f"{abs(z[worst]):.2f} ({worst})",
            str(n_above_2),
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
        scores += z.values()
    share = float(np.mean(np.abs(scores) > 2))
    print(f"\n{len(scores)} quantities, largest |z| {max(map(abs, scores)):.2f}, {100 * share:.1f} % beyond 2")
    return max(map(abs, scores)) <= 4 and share <= 0.05


def record(names: Sequence[str], seed: int) -> None:
    """Play conditions in Melting Pot, and write their statistics to the reference file."""
    statistics = load_reference()
    for name in names:
        condition, games = RECORD_CONDITIONS[name]
        start = time.perf_counter()
        game_samples = [measure_engine_game(condition, seed + i) for i in range(games)]
        quantities = summarize(
            {quantity: np.concatenate([sample[quantity] for sample in game_samples]) for quantity in game_samples[0]}
        )
        statistics["conditions"][name] = {
            "condition": {k: v for k, v in vars(condition).items() if v},
            "source": f"benchmarks/parity.py record --conditions '{name}' --seed {seed}",
            "quantities": quantities,
        }
        seconds = time.perf_counter() - start
        print(f"{name}: {games} games in {seconds:.0f} s, return {quantities['return']}", flush=True)
        write_reference(statistics)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["replay", "statistics", "record"])
    parser.add_argument("--games", type=int, help="episodes of each condition")
    parser.add_argument(
        "--conditions",
        nargs="+",
        choices=[*RECORD_CONDITIONS],
        default=[*RECORD_CONDITIONS],
        help="recorded conditions",
    )
    parser.add_argument("--steps", type=int, default=500, help="steps of a replayed episode, at most 1000")
    parser.add_argument("--seed", type=int, default=20000)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "replay":
        return 0 if print_replay(arguments.games or 12, arguments.steps, arguments.seed, arguments.processes) else 1
    if arguments.what == "statistics":
        return 0 if print_statistics(arguments.games or 2048, arguments.seed) else 1
    record(arguments.conditions, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
