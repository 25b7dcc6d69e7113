"""Cost of proposals that are evaluated in parallel (`design.candidates`), compared with sequential evaluation.

    python benchmarks/candidates.py [--rounds 3]

Runs have the same number of proposals, the same principal (random, whose cost is negligible) and the same number of
games per proposal, and evaluate one or several proposals at once. Runs alternate within a round. Prints medians over
rounds of wall-clock and CPU time per proposal, without startup, and their ratios. The effect of parallel proposals on
the value of recommendations is measured by `benchmarks/landscapes.py --candidates 5`.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROPOSALS = 12
SETTINGS = {
    "escape room, 64 games a proposal": ("experiment=legislative/escape_room_small", 64, (1, 3, 6)),
    "Harvest, 200 steps, 1 game a proposal": ("experiment=legislative/harvest_small", 1, (1, 2)),
}


def measure_child_cpu() -> float:
    """Return CPU seconds of exited child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(preset: str, games: int, candidates: int, proposals: int) -> tuple[float, float]:
    """Run an experiment, and return its wall-clock seconds, as logged, and the CPU seconds of the command."""
    cpu_start = measure_child_cpu()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            preset,
            "principal=random",
            "design.references=0",
            f"design.candidates={candidates}",
            f"env.n_envs={games * candidates}",
        ]
        overrides += [f"design.steps={proposals // candidates}", f"design.validate_episodes={games}"]
        command = [sys.executable, "-m", "llmrl.cli.train", *overrides, f"output_root={folder}"]
        subprocess.run(command, check=True, capture_output=True)
        [path] = Path(folder).rglob("metrics.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    return rows[-1]["time/elapsed_s"], measure_child_cpu() - cpu_start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for title, (preset, games, counts) in SETTINGS.items():
        print(f"{title}: {PROPOSALS} proposals")
        results: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
        for _ in range(rounds):
            for count in counts:
                wall, cpu = measure(preset, games, count, PROPOSALS)
                # A run of one step measures startup and one step.
                startup_wall, startup_cpu = measure(preset, games, count, count)
                n_measured = PROPOSALS - count
                results[count].append(((wall - startup_wall) / n_measured, (cpu - startup_cpu) / n_measured))
        medians = {n: [statistics.median(column) for column in zip(*rows, strict=True)] for n, rows in results.items()}
        for count, (wall, cpu) in medians.items():
            print(
                f"  {count} at once: {wall:6.2f} s, {cpu:6.2f} CPU s per proposal   "
                f"{wall / medians[1][0]:.2f} of the time, {cpu / medians[1][1]:.2f} of the CPU time of one at a time"
            )


if __name__ == "__main__":
    main()
