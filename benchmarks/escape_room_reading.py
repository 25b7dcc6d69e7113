"""The regime of the escape room (`experiment=regimes/escape_room`): what incentives do, and what reading is worth.

    python benchmarks/escape_room_reading.py [--seeds 3] [--output DIR] [--only landscape contexts principals]

`landscape`: proposals side by side while lever 0 works, four societies of each seed. `contexts`: three proposals in
each of the six contexts. `principals`: those that see numbers, and rules that take more or less out of the prompt
(tests/support/reading_rules.py; no language models), by the steps of a run. Runs are ordinary ones of `llmrl-train`
under DIR: a second call finds those that are finished. Intervals are 95 % t intervals over seeds, from five seeds on.
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
LEVERS, HIGHEST, GAMES, SOCIETIES = 6, 12.0, 32, 4
GOOD = 100.0
"""An objective above it: the door is open nearly all the time."""

READING = ("principal=llm", "llm=reading_rule", "trusted_modules=[reading_rules]")
PRINCIPALS: dict[str, Sequence[str]] = {
    "rule that reads context and rewards": (*READING, "llm.uses=context_and_rewards"),
    "rule that reads the context alone": (*READING, "llm.uses=context"),
    "rule that reads the rewards alone": (*READING, "llm.uses=rewards"),
    "nothing, whatever happens": ("principal=listed", f"principal.vectors=[{[0] * (LEVERS + 2)}]"),
    "llm=scripted (fixed rules)": ("principal=llm", "llm=scripted"),
    "random": ("principal=random",),
    "ucb, points=3": ("principal=ucb", "principal.points=3"),
    "thompson, points=3": ("principal=thompson", "principal.points=3"),
    "gp": ("principal=gp",),
    "cmaes": ("principal=cmaes",),
    "cmaes, 150 steps": ("principal=cmaes", "design.steps=150"),
}


def incentives(working: float = 0, other: float = 0, door: float = 0, start: float = 0, rest: float = 0) -> list[float]:
    """Return incentives while lever 0 works: at it, at lever 1, at the door, at the start, and at all other levers."""
    return [working, other, *[rest] * (LEVERS - 2), door, start]


LANDSCAPE: dict[str, list[float]] = {
    "nothing": incentives(),
    **{f"{x:g} at the lever that works": incentives(x) for x in (1, 1.5, 2, 3, 4, 6, 8, 10, 11, 12)},
    "3 at another lever": incentives(0, 3),
    "12 at another lever": incentives(0, 12),
    "3 at the door": incentives(door=3),
    "12 at the door": incentives(door=12),
    "3 at the start": incentives(start=3),
    "12 at the start": incentives(start=12),
    "4 at it, 1 at another lever": incentives(4, 1),
    "4 at it, 2 at another lever": incentives(4, 2),
    "4 at it, 3 at another lever": incentives(4, 3),
    "4 at it, 4 at another lever": incentives(4, 4),
    "4 at it, 1 at the door": incentives(4, door=1),
    "4 at it, 3 at the door": incentives(4, door=3),
    "4 at it, 3 at the start": incentives(4, start=3),
    "12 at it, 6 at the door": incentives(12, door=6),
    "6 at it, 3 everywhere else": incentives(6, 3, 3, 3, 3),
    "3 at every lever": incentives(3, 3, rest=3),
    "1 everywhere": incentives(1, 1, 1, 1, 1),
    "6 everywhere (the middle)": incentives(6, 6, 6, 6, 6),
    "12 everywhere": incentives(12, 12, 12, 12, 12),
}


def run_and_read(folder: Path, words: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    """Return summaries of the preset under `words`, by seed, from runs in `folder`."""
    command = [sys.executable, "-m", "llmrl.cli.train", "--config-dir", str(TESTS / "reading_conf"), "--multirun"]
    format_seeds = ",".join(map(str, range(seeds)))
    words = [
        "experiment=regimes/escape_room",
        *words,
        "design.confirm_steps=0",
        "design.evaluations=0",
        f"seed={format_seeds}",
        f"output_root={folder}",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([SUPPORT, os.environ.get("PYTHONPATH", "")]),
    }
    subprocess.run([*command, *words], check=True, capture_output=True, env=environment)
    return [json.loads(next(folder.rglob(f"s{seed}/summary.json")).read_text()) for seed in range(seeds)]


def measure_vectors(folder: Path, vectors: Sequence[list[float]], seeds: int, *words: str) -> np.ndarray:
    """Return objectives of `vectors`, a mean over episodes for every society, [vectors, seeds * SOCIETIES]."""
    n = len(vectors)
    common = (
        "principal=listed",
        f"principal.vectors={json.dumps(vectors)}",
        f"design.candidates={n}",
        "design.steps=1",
    )
    games = (f"design.replicates={SOCIETIES}", f"env.n_envs={n * SOCIETIES * GAMES}")
    rows = [s["history"] for s in run_and_read(folder, (*common, *games, *words), seeds)]
    each = [[np.reshape(row["values"], (SOCIETIES, -1)).mean(axis=1) for row in history] for history in rows]
    return np.concatenate(each, axis=1)


def print_header(*columns: str) -> None:
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")


def format_with_error(societies: np.ndarray) -> str:
    return f"{societies.mean():.1f} ± {standard_error(societies):.1f}"


def print_landscape(folder: Path, seeds: int) -> None:
    vectors, cell = list(LANDSCAPE.values()), {}
    for title, words in {
        "objective": (),
        "without the cost": ("design.spending_cost=0",),
        "untrained": ("design.adapt_rounds=0",),
    }.items():
        overrides = ("env.fixed_context=0", *words)
        cell[title] = measure_vectors(folder / "landscape" / title.replace(" ", "_"), vectors, seeds, *overrides)
    print(f"\nLever 0 works; mean and standard error over {seeds * SOCIETIES} societies\n")
    print_header("paid per step", "objective", "lowest, highest society", "without the cost", "untrained agents")
    for i, name in enumerate(LANDSCAPE):
        own = cell["objective"][i]
        rest = f"{format_with_error(cell['without the cost'][i])} | {format_with_error(cell['untrained'][i])}"
        print(f"| {name} | {format_with_error(own)} | {own.min():.0f}, {own.max():.0f} | {rest} |")
    best, none = cell["objective"][list(LANDSCAPE).index("3 at the lever that works")], cell["objective"][0]
    n_standard_errors = (best - none).mean() / max(float(standard_error(best - none)), 1e-9)
    print(
        f"\n3 at the lever that works less nothing: {format_with_error(best - none)}, "
        f"{n_standard_errors:.0f} standard errors (paired)"
    )


def compare_contexts(folder: Path, seeds: int) -> None:
    print(f"\nIn each context; mean and standard error over {seeds * SOCIETIES} societies\n")
    print_header("context", "nothing", "3 at the lever that works", "3 at the next")
    for lever in range(LEVERS):
        vectors = [[3.0 * (place == at) for place in range(LEVERS + 2)] for at in (-1, lever, (lever + 1) % LEVERS)]
        found = measure_vectors(folder / "contexts" / str(lever), vectors, seeds, f"env.fixed_context={lever}")
        print(f"| lever_{lever}_works | " + " | ".join(format_with_error(societies) for societies in found) + " |")


def proposals_until_good(summary: dict[str, Any]) -> list[int | None]:
    """Return the number of proposals until the first good one in each context that occurred; None if there was none."""
    by_context: dict[Any, list[float]] = {}
    for row in summary["history"]:
        by_context.setdefault(row["context"], []).append(row["objective"])
    good = [np.flatnonzero(np.array(objectives) > GOOD) for objectives in by_context.values()]
    return [int(places[0]) + 1 if len(places) else None for places in good]


def compare_principals(folder: Path, seeds: int) -> None:
    print(f"\nMean objective of the proposals of some steps; {seeds} seeds\n")
    solved = f"contexts with a proposal above {GOOD:g}, by seed"
    print_header(
        "principal",
        "first proposal",
        "steps 1 to 10",
        "last fifth of the steps",
        solved,
        "proposals until then (median)",
    )
    for name, words in PRINCIPALS.items():
        runs = run_and_read(folder / "principals" / re.sub(r"\W+", "_", name), words, seeds)
        objectives = [np.array([row["objective"] for row in run["history"]]) for run in runs]
        n = len(objectives[0]) // runs[0]["principal_steps"]
        parts = [[each[:count].mean() for each in objectives] for count in (1, 10 * n)]
        cells = [format_interval(np.array(scores)) for scores in (*parts, [run["online_performance"] for run in runs])]
        tries_by_seed = [proposals_until_good(run) for run in runs]
        found = ", ".join(f"{sum(x is not None for x in each)} of {len(each)}" for each in tries_by_seed)
        successful_tries = [x for each in tries_by_seed for x in each if x is not None]
        median = f"{np.median(successful_tries):g}" if successful_tries else "-"
        print(f"| {name} | " + " | ".join([*cells, found, median]) + " |")


def format_interval(scores: np.ndarray) -> str:
    return format_estimate(mean_interval(scores), "{:.0f}".format)


PARTS = {"landscape": print_landscape, "contexts": compare_contexts, "principals": compare_principals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="where runs are kept; none: nowhere")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in args.only:
            PARTS[part](args.output or Path(folder), args.seeds)


if __name__ == "__main__":
    main()
