"""Effects of incentives and of reading the prompt in the escape room (`experiment=regimes/escape_room`).

    python benchmarks/escape_room_reading.py [--seeds 3] [--output DIR] [--only landscape contexts principals]

* `landscape` compares proposals while lever 0 works, with four societies per seed.
* `contexts` compares three proposals in each of the six contexts.
* `principals` compares numerical principals with rules that read more or less of the prompt
  (tests/support/reading_rules.py; no language models), by steps of a run.

Runs are `llmrl-train` runs in DIR; finished runs are reused. Confidence intervals are 95 % t intervals over seeds, and
require at least five seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.results.table_format import format_estimate
from llmrl.statistics.estimators import standard_error
from llmrl.statistics.intervals import mean_interval

TESTS = Path(__file__).parents[1] / "tests"
SUPPORT = str(TESTS / "support")
LEVERS, GAMES, SOCIETIES = 6, 32, 4
SOLVED_OBJECTIVE = 100.0
"""Objective above which the door is open almost always."""

READING = ("principal=llm", "llm=reading_rule", "trusted_modules=[reading_rules]")
PRINCIPALS: dict[str, Sequence[str]] = {
    "rule that reads context and rewards": (*READING, "llm.uses=context_and_rewards"),
    "rule that reads only the context": (*READING, "llm.uses=context"),
    "rule that reads only the rewards": (*READING, "llm.uses=rewards"),
    "no incentives": ("principal=listed", f"principal.vectors=[{[0] * (LEVERS + 2)}]"),
    "llm=scripted (fixed rules)": ("principal=llm", "llm=scripted"),
    "random": ("principal=random",),
    "ucb, points=3": ("principal=ucb", "principal.points=3"),
    "thompson, points=3": ("principal=thompson", "principal.points=3"),
    "gp": ("principal=gp",),
    "cmaes": ("principal=cmaes",),
    "cmaes, 150 steps": ("principal=cmaes", "design.steps=150"),
}


def make_incentives(
    lever_0: float = 0, lever_1: float = 0, door: float = 0, start: float = 0, other_levers: float = 0
) -> list[float]:
    """Return the vector of incentives: of each lever, of the door and of the start."""
    return [lever_0, lever_1, *[other_levers] * (LEVERS - 2), door, start]


LANDSCAPE: dict[str, list[float]] = {
    "no incentives": make_incentives(),
    **{f"{x:g} at the working lever": make_incentives(x) for x in (1, 1.5, 2, 3, 4, 6, 8, 10, 11, 12)},
    "3 at another lever": make_incentives(0, 3),
    "12 at another lever": make_incentives(0, 12),
    "3 at the door": make_incentives(door=3),
    "12 at the door": make_incentives(door=12),
    "3 at the start": make_incentives(start=3),
    "12 at the start": make_incentives(start=12),
    "4 at the working lever, 1 at another": make_incentives(4, 1),
    "4 at the working lever, 2 at another": make_incentives(4, 2),
    "4 at the working lever, 3 at another": make_incentives(4, 3),
    "4 at the working lever, 4 at another": make_incentives(4, 4),
    "4 at the working lever, 1 at the door": make_incentives(4, door=1),
    "4 at the working lever, 3 at the door": make_incentives(4, door=3),
    "4 at the working lever, 3 at the start": make_incentives(4, start=3),
    "12 at the working lever, 6 at the door": make_incentives(12, door=6),
    "6 at the working lever, 3 everywhere else": make_incentives(6, 3, 3, 3, 3),
    "3 at every lever": make_incentives(3, 3, other_levers=3),
    "1 everywhere": make_incentives(1, 1, 1, 1, 1),
    "6 everywhere (middle of the range)": make_incentives(6, 6, 6, 6, 6),
    "12 everywhere": make_incentives(12, 12, 12, 12, 12),
}


def run_experiment(folder: Path, overrides: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    """Run the regime with overrides in `folder`, and return the summary of each seed."""
    command = [sys.executable, "-m", "llmrl.cli.train", "--config-dir", str(TESTS / "reading_conf"), "--multirun"]
    arguments = [
        "experiment=regimes/escape_room",
        *overrides,
        "design.confirm_steps=0",
        "design.evaluations=0",
        f"seed={','.join(map(str, range(seeds)))}",
        f"output_root={folder}",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([SUPPORT, os.environ.get("PYTHONPATH", "")]),
    }
    subprocess.run([*command, *arguments], check=True, capture_output=True, env=environment)
    return [json.loads(next(folder.rglob(f"s{seed}/summary.json")).read_text()) for seed in range(seeds)]


def measure_vectors(folder: Path, vectors: Sequence[list[float]], seeds: int, *overrides: str) -> np.ndarray:
    """Return the mean objective over episodes of each vector and society, [vectors, seeds * SOCIETIES]."""
    n = len(vectors)
    common = (
        "principal=listed",
        f"principal.vectors={json.dumps(vectors)}",
        f"design.candidates={n}",
        "design.steps=1",
    )
    games = (f"design.replicates={SOCIETIES}", f"env.n_envs={n * SOCIETIES * GAMES}")
    histories = [summary["history"] for summary in run_experiment(folder, (*common, *games, *overrides), seeds)]
    means = [[np.reshape(row["values"], (SOCIETIES, -1)).mean(axis=1) for row in history] for history in histories]
    return np.concatenate(means, axis=1)


def print_header(*columns: str) -> None:
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")


def format_with_error(societies: np.ndarray) -> str:
    return f"{societies.mean():.1f} ± {standard_error(societies):.1f}"


def print_landscape(folder: Path, seeds: int) -> None:
    """Print objectives of the vectors of `LANDSCAPE`."""
    vectors, objectives = list(LANDSCAPE.values()), {}
    for title, options in {
        "objective": (),
        "without the cost": ("design.spending_cost=0",),
        "untrained": ("design.adapt_rounds=0",),
    }.items():
        overrides = ("env.fixed_context=0", *options)
        objectives[title] = measure_vectors(folder / "landscape" / title.replace(" ", "_"), vectors, seeds, *overrides)
    print(f"\nLever 0 works; mean and standard error over {seeds * SOCIETIES} societies\n")
    print_header("incentives per step", "objective", "lowest, highest society", "without the cost", "untrained agents")
    for i, name in enumerate(LANDSCAPE):
        x = objectives["objective"][i]
        cells = [format_with_error(x), f"{x.min():.0f}, {x.max():.0f}"]
        cells += [format_with_error(objectives[title][i]) for title in ("without the cost", "untrained")]
        print(f"| {name} | {' | '.join(cells)} |")
    best = objectives["objective"][list(LANDSCAPE).index("3 at the working lever")]
    difference = best - objectives["objective"][0]
    n_standard_errors = difference.mean() / max(float(standard_error(difference)), 1e-9)
    print(
        f"\n3 at the working lever minus no incentives: {format_with_error(difference)}, "
        f"{n_standard_errors:.0f} standard errors (paired)"
    )


def compare_contexts(folder: Path, seeds: int) -> None:
    """Print objectives of three vectors in each context."""
    print(f"\nIn each context; mean and standard error over {seeds * SOCIETIES} societies\n")
    print_header("context", "no incentives", "3 at the working lever", "3 at the next lever")
    for lever in range(LEVERS):
        targets = (-1, lever, (lever + 1) % LEVERS)
        vectors = [[3.0 * (position == target) for position in range(LEVERS + 2)] for target in targets]
        objectives = measure_vectors(folder / "contexts" / str(lever), vectors, seeds, f"env.fixed_context={lever}")
        print(f"| lever_{lever}_works | " + " | ".join(map(format_with_error, objectives)) + " |")


def count_proposals_until_solved(summary: dict[str, Any]) -> list[int | None]:
    """Return the number of proposals until an objective above `SOLVED_OBJECTIVE`, or None, for each context."""
    objectives_by_context: dict[Any, list[float]] = {}
    for row in summary["history"]:
        objectives_by_context.setdefault(row["context"], []).append(row["objective"])
    solved = [np.flatnonzero(np.array(x) > SOLVED_OBJECTIVE) for x in objectives_by_context.values()]
    return [int(indices[0]) + 1 if len(indices) else None for indices in solved]


def compare_principals(folder: Path, seeds: int) -> None:
    """Print the performance of each principal by steps of a run."""
    print(f"\nMean objective of proposals; {seeds} seeds\n")
    solved_title = f"contexts with an objective above {SOLVED_OBJECTIVE:g}, by seed"
    print_header(
        "principal",
        "first proposal",
        "steps 1 to 10",
        "last fifth of the steps",
        solved_title,
        "proposals until this objective (median)",
    )
    for name, overrides in PRINCIPALS.items():
        runs = run_experiment(folder / "principals" / re.sub(r"\W+", "_", name), overrides, seeds)
        objectives = [np.array([row["objective"] for row in run["history"]]) for run in runs]
        n = len(objectives[0]) // runs[0]["principal_steps"]
        means = [[x[:count].mean() for x in objectives] for count in (1, 10 * n)]
        cells = [format_interval(np.array(scores)) for scores in (*means, [run["online_performance"] for run in runs])]
        counts_by_seed = [count_proposals_until_solved(run) for run in runs]
        n_solved = ", ".join(f"{sum(x is not None for x in counts)} of {len(counts)}" for counts in counts_by_seed)
        solved_counts = [x for counts in counts_by_seed for x in counts if x is not None]
        median = f"{np.median(solved_counts):g}" if solved_counts else "-"
        print(f"| {name} | " + " | ".join([*cells, n_solved, median]) + " |")


def format_interval(scores: np.ndarray) -> str:
    return format_estimate(mean_interval(scores), "{:.0f}".format)


PARTS = {"landscape": print_landscape, "contexts": compare_contexts, "principals": compare_principals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="folder for the runs (default: temporary)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in args.only:
            PARTS[part](args.output or Path(folder), args.seeds)


if __name__ == "__main__":
    main()
