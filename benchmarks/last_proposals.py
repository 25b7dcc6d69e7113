"""Reevaluation of the last proposals of `llmrl-train env=cleanup principal=llm`.

    python benchmarks/last_proposals.py [--env cleanup] [--principals llm random] [--seeds 3] [--output DIR]

For each principal and seed, the proposals of the last fifth of the steps and the absence of a mechanism are evaluated
again, in parallel, with new societies in games with new seeds, and validated in 16 episodes. Runs are `llmrl-train`
runs in DIR; finished runs are reused. The principal `llm` uses llm=scripted, which is a fixed rule and not a language
model. Societies share their pre-training (seed 0), so that results do not include its variance.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from llmrl.statistics.estimators import mean, standard_error

EPISODES = 16
SEED_OFFSET = 1000
"""Difference between the seed of the reevaluation and the seed of the run."""


def run(*overrides: str) -> None:
    """Run an experiment unless it is finished."""
    command = [sys.executable, "-m", "llmrl.cli.train", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def read_summary(folder: Path) -> dict:
    summary: dict = json.loads((folder / "summary.json").read_text())
    return summary


def reevaluate_proposals(env: str, principal: str, seed: int, root: Path) -> tuple[list[float], float]:
    """Return new objectives of the last proposals of a run, [n], and the objective without a mechanism."""
    run(f"env={env}", f"principal={principal}", f"seed={seed}", f"output_root={root}")
    [run_folder] = (root / env).glob(f"*principal_{principal}-*/s{seed}")
    history = read_summary(run_folder)["history"]
    steps = history[-1]["step"]
    last = [list(row["mechanism"].values()) for row in history if row["step"] > steps - max(1, steps // 5)]
    vectors = [[0.0] * len(last[0]), *last]
    principal_overrides = ("principal=listed", f"principal.vectors={vectors}", f"design.candidates={len(vectors)}")
    design_overrides = (
        "design.steps=1",
        "design.confirm_steps=0",
        "design.evaluations=0",
        "design.references=0",
        f"design.validate_episodes={EPISODES}",
    )
    name = f"{env}_{principal}_{seed}_again"
    run(
        f"env={env}",
        *principal_overrides,
        *design_overrides,
        f"seed={SEED_OFFSET + seed}",
        f"name={name}",
        f"output_root={root}",
    )
    [new_run] = (root / name).glob(f"*/s{SEED_OFFSET + seed}")
    baseline, *objectives = [row["objective"] for row in read_summary(new_run)["history"]]
    return objectives, baseline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="cleanup")
    parser.add_argument("--principals", nargs="+", default=["llm", "random"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs/last_proposals"))
    args = parser.parse_args()
    print(f"{args.env}, {EPISODES} new games per proposal, by seed, and mean ± s.e. over {args.seeds} seeds")
    for principal in args.principals:
        measurements = [
            reevaluate_proposals(args.env, principal, seed, args.output.resolve()) for seed in range(args.seeds)
        ]
        last = np.array([np.mean(objectives) for objectives, _ in measurements])
        baseline = np.array([objective for _, objective in measurements])
        difference = last - baseline
        error = standard_error(difference)
        for label, x in (("last fifth of the proposals", last), ("no mechanism", baseline), ("difference", difference)):
            seed_values = ", ".join(f"{value:.1f}" for value in x)
            print(f"{principal:>10} {label:<28} {seed_values:<24} {mean(x):.1f} ± {standard_error(x):.1f}")
        print(f"{'':>10} difference exceeds three standard errors: {'yes' if mean(difference) > 3 * error else 'no'}")


if __name__ == "__main__":
    main()
