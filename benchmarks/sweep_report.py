"""The statistics against rliable's, what their intervals are worth, and the time to summarise a large sweep.

    python benchmarks/sweep_report.py [--runs 1000] [--groups 20] [--lines 200]
    python benchmarks/sweep_report.py --rliable <python with rliable 1.2.0> [--resamples 10000]
    python benchmarks/sweep_report.py --coverage
    python benchmarks/sweep_report.py --levels

The first writes made-up run folders (a status, and lines of metrics, every third with the main objective) and reads
them. The second needs an environment with rliable, which `tests/support/rliable_reference.py --venv <folder>` makes;
both sides find the 95% interval of the interquartile mean of 10 x 8 scores, stratified by task. The third counts how
often 95% intervals of normally distributed scores hold the truth, the last the same where runs share a pre-training.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from llmrl.analysis.aggregate import ReportSettings, summarize
from llmrl.analysis.bootstrap import bootstrap_bands, bootstrap_interval
from llmrl.analysis.statistics import Levels, interquartile_mean, mean
from llmrl.run.status import RunProgress, Status

RLIABLE = """
import json, sys, time
import numpy as np
from rliable import library, metrics
scores, resamples = np.array(json.loads(sys.argv[1])), int(sys.argv[2])
start = time.perf_counter()
library.get_interval_estimates({"x": scores}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=resamples)
print(time.perf_counter() - start)
"""


def against_rliable(python: str, resamples: int, rounds: int = 5) -> None:
    """Alternate the two, so that a machine that slows down slows both."""
    scores = np.random.default_rng(0).normal(size=(10, 8))
    ours, theirs = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(10):
            bootstrap_interval(scores.T, resamples=resamples)
        ours.append((time.perf_counter() - start) / 10)
        command = [python, "-c", RLIABLE, json.dumps(scores.tolist()), str(resamples)]
        theirs.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    a, b = float(np.median(ours)), float(np.median(theirs))
    print(f"IQM interval, 10 runs x 8 tasks, {resamples:,} resamples, median of {rounds}:")
    print(f"  llmrl {a:.3f} s, rliable {b:.2f} s, ratio {b / a:.0f}")


def coverage(experiments: int = 1500, resamples: int = 1000) -> None:
    """Of 95% intervals, by number of runs; standard error 1.3% at 50%, 0.6% at 95%."""
    rng = np.random.default_rng(0)
    for runs in (2, 3, 4, 5, 8, 10, 20, 30):
        shares = []
        for statistic in (mean, interquartile_mean):
            intervals = [
                bootstrap_interval(scores, statistic, resamples=resamples, seed=i)
                for i, scores in enumerate(rng.normal(size=(experiments, runs)))
            ]
            shares.append(np.mean([interval.low <= 0 <= interval.high for interval in intervals]))
        print(f"{runs:3d} runs: mean {shares[0]:.0%}, IQM {shares[1]:.0%}")


def coverage_of_levels(experiments: int = 400, resamples: int = 600) -> None:
    """Of 95% intervals of a mean, by pre-training runs, runs of each, societies of each and episodes of each; standard
    error at most 2.5%. Independent: what runs share is not heeded."""
    rng = np.random.default_rng(0)
    print("| pre-training runs x runs x societies x episodes | as independent runs | by levels |\n|---|---|---|")
    for shape in ((1, 5, 1, 8), (2, 5, 1, 8), (3, 3, 1, 8), (5, 3, 1, 8), (5, 3, 2, 8), (10, 2, 2, 4), (20, 1, 1, 8)):
        held = np.zeros(2)
        for i in range(experiments):
            spread = (1.0 if shape[0] > 1 else 0.0, 0.5, 0.5, 1.0)
            sizes = [shape[: k + 1] + (1,) * (3 - k) for k in range(4)]
            values = sum(s * rng.normal(size=size) for s, size in zip(spread, sizes, strict=True)) + np.zeros(shape)
            scores = values.mean((2, 3)).ravel()
            labels = np.repeat(np.arange(shape[0]), shape[1]).tolist()
            levels = Levels(labels, [list(run) for run in values.reshape(-1, *shape[2:])])
            for k, each in enumerate((None, [levels])):
                band = bootstrap_bands(scores, {"": mean}, resamples=resamples, seed=i, levels=each)[""]
                held[k] += band.low <= 0 <= band.high
        flat, by_levels = held / experiments
        print(f"| {' x '.join(map(str, shape))} | {flat:.0%} | {by_levels:.0%} |")


def made_up_sweep(root: Path, runs: int, groups: int, lines: int) -> None:
    """Finished runs of a sweep over `principal.rate`, without computing anything."""
    rng = np.random.default_rng(0)
    names = ["loss/policy", "loss/value", "loss/entropy", "loss/kl", "train/return", "train/length", "train/paid"]
    for i in range(runs):
        group, seed = i % groups, i // groups
        folder = root / "made_up" / f"rate_{group}-{group:08x}" / f"s{seed}"
        folder.mkdir(parents=True)
        result = float(rng.normal(group / groups))
        progress = RunProgress(lines, lines, "steps")
        overrides = [f"principal.rate={group}", f"seed={seed}"]
        Status("finished", overrides=overrides, progress=progress, result=result).write(folder)
        with (folder / "metrics.jsonl").open("w") as file:
            for k in range(lines):
                place = {"kind": "update", "x": "updates", "updates": k, "env_steps": 160 * k}
                rows = [place | dict(zip(names, rng.normal(size=len(names)), strict=True))]
                if k % 3 == 2:
                    place = {"kind": "proposal", "x": "proposals", "proposals": k // 3 + 1, "env_steps": 160 * k}
                    rows.append(place | {"principal/objective": result + float(rng.normal())})
                file.writelines(json.dumps(row) + "\n" for row in rows)


def large_sweep(runs: int, groups: int, lines: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        made_up_sweep(Path(root), runs, groups, lines)
        start = time.perf_counter()
        report = summarize(Path(root), ReportSettings())
        seconds = time.perf_counter() - start
    assert report.counted == runs
    what = f"{runs:,} finished runs in {groups} groups, {lines} lines of metrics each"
    print(f"{what}: read and summarised in {seconds:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rliable", default="", help="Python of an environment with rliable 1.2.0")
    parser.add_argument("--coverage", action="store_true", help="how often intervals hold the truth")
    parser.add_argument("--levels", action="store_true", help="the same, where runs share a pre-training")
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--lines", type=int, default=200)
    args = parser.parse_args()
    if args.rliable:
        against_rliable(args.rliable, args.resamples)
    elif args.coverage:
        coverage()
    elif args.levels:
        coverage_of_levels()
    else:
        large_sweep(args.runs, args.groups, args.lines)
