"""Table of the results of finished policy searches, with the published results of ProPS.

    llmrl-train --multirun name=policy_search seed=0,1,2,3,4 principal=cmaes,cem         experiment=search/linear
    env=cartpole,mountain_car_continuous,inverted_pendulum,swimmer python benchmarks/policy_search_table.py
    outputs/policy_search

Prints a Markdown table with a row for each config; runs that differ only in their seed share a row, and the config hash
distinguishes rows with equal labels. Columns contain means and standard deviations over runs of

* the mean return of the best proposal on new seeds, with a 95 % t interval of the mean;
* the highest mean return of a single measurement, which is biased by noise;
* the mean over the last tenth of the iterations;
* the mean over all iterations (area under the curve);
* the published results: 10 runs of GPT-4o in the environments of the authors, most likely the mean of the best
  iteration of each run.

The method includes the name of the language model that proposes.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.results.run_records import find_runs, read_run
from llmrl.run.config_hash import config_hash
from llmrl.statistics.intervals import describe

PUBLISHED = {
    "mountain_car_continuous": ("SAC 86.65 ± 0.84", "87.21 ± 29.28", "89.16 ± 29.72"),
    "inverted_pendulum": ("TRPO 571.31 ± 358.88", "1000 ± 0", "1000 ± 0"),
    "inverted_double_pendulum": ("TRPO 3609.37 ± 4000.04", "128.17 ± 24.52", "148.39 ± 48.65"),
    "reacher": ("PPO -7.32 ± 0.38", "-11.32 ± 1.37", "-18.15 ± 22.06"),
    "swimmer": ("TRPO 52.96 ± 18.86", "218.83 ± 58.45", "227.30 ± 56.23"),
    "hopper": ("TRPO 716.90 ± 385.20", "284.16 ± 165.62", "356.22 ± 292.35"),
    "walker2d": ("TRPO 519.38 ± 73.15", "147.17 ± 81.20", "126.75 ± 136.44"),
    "frozen_lake": ("TRPO 0.22 ± 0.05", "0.57 ± 0.17", "0.19 ± 0.05"),
    "cliff_walking": ("TRPO -66.60 ± 13.61", "-100.00 ± 0.00", "-96.40 ± 22.90"),
    "maze": ("A2C 0.97 ± 0.00", "0.55 ± 0.00", "0.97 ± 0.00"),
    "nim": ("A2C 0.58 ± 0.10", "0.33 ± 0.29", "0.97 ± 0.09"),
    "mountain_car": ("DQN -194.36 ± 1.47", "-126.11 ± 21.67", "-116.71 ± 15.20"),
    "navigation": ("TRPO 4223.51 ± 19.70", "2587.30 ± 707.55", "2779.55 ± 270.65"),
    "pong": ("PPO 2.29 ± 0.91", "2.80 ± 0.26", "2.99 ± 0.03"),
    "cartpole": ("TRPO 465.34 ± 62.32", "478.27 ± 65.17", "500 ± 0"),
}
"""Published (best RL algorithm, ProPS, ProPS+) by environment (project page of arXiv 2511.21928)."""

COLUMNS = ("incumbent_return", "highest_return", "final_return", "area")


def describe_method(config: dict[str, dict[str, object]], llm: str) -> str:
    """Return the label of a search method.

    Args:
        config: config of a run.
        llm: label of the language model, or an empty string.
    """
    target = config["principal"].get("_target_")
    if target is None:
        return f"{config['agent'].get('algorithm', 'none')} (Stable-Baselines3)"
    name = str(target).split(".")[-2].rstrip("_")
    policy = str(config["agent"]["_target_"]).rpartition(".")[2].removesuffix("Agent").lower()
    suffix = ", actions not clipped" if config["agent"].get("clip_actions") is False else ""
    return f"{name}{f' {llm}' if llm else ''}, {policy}{suffix}"


def main() -> None:
    import yaml

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of runs, e.g. outputs/policy_search")
    args = parser.parse_args()
    groups: dict[tuple[str, str, str, str], list[dict[str, float]]] = defaultdict(list)
    try:
        runs = find_runs(args.folder)
    except RunFolderError as error:
        raise SystemExit(str(error)) from error
    for run in runs:
        if not (run / "summary.json").is_file():
            continue
        summary = json.loads((run / "summary.json").read_text())
        config = yaml.safe_load((run / "config.yaml").read_text())
        if "incumbent_return" in summary:
            budget = (
                f"{config['search']['iterations']} x {config['search']['candidates'] * config['search']['episodes']}"
            )
            method = describe_method(config, read_run(run).llm)
            groups[config["env"]["name"], method, budget, config_hash(config)].append(summary)
    if not groups:
        raise SystemExit(f"no policy search has finished in {args.folder}")
    titles = "best proposal, new seeds | highest measurement | last tenth | all iterations"
    print(f"| task | method | iterations x episodes | runs | {titles} | best RL, published | ProPS | ProPS+ |")
    print("|---" * 11 + "|")
    label_counts = Counter(key[:3] for key in groups)
    for (task, method, budget, digest), summaries in sorted(groups.items()):
        label = f"{method} ({digest})" if label_counts[task, method, budget] > 1 else method
        cells = [format_mean([summary[name] for summary in summaries]) for name in COLUMNS]
        cells[0] += format_interval([summary[COLUMNS[0]] for summary in summaries])
        published = PUBLISHED.get(task, ("-", "-", "-"))
        print(f"| {' | '.join([task, label, budget, str(len(summaries)), *cells, *published])} |")


def format_mean(values: list[float]) -> str:
    """Format the mean and the standard deviation over runs."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def format_interval(values: list[float]) -> str:
    """Format the 95 % t interval of the mean over runs; return an empty string for fewer than five runs."""
    summary = describe(np.array(values))
    return "" if summary["low"] is None else f" [{summary['low']:.4g}, {summary['high']:.4g}]"


if __name__ == "__main__":
    main()
