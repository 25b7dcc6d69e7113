"""New measurements of the last proposals of `llmrl-train env=cleanup principal=llm`.

    python benchmarks/last_proposals.py [--env cleanup] [--principals llm random] [--seeds 3] [--output DIR]

For each principal and seed, the proposals of the last fifth of the steps and no mechanism are tried once more, side by
side, by new societies in games that no step has seen, and validated in 16 episodes. Runs are ordinary ones of
`llmrl-train` under DIR: a second call finds those that are finished. `llm` is llm=scripted, fixed rules and not a
language model. Societies share their pre-training (seed 0), so nothing is said of how pre-training differs.
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
FRESH = 1000
"""Added to the seed of a run: that of its proposals' second measurement."""


def run(*overrides: str) -> None:
    """Run an experiment, or find it finished."""
    command = [sys.executable, "-m", "llmrl.cli.train", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def summary(folder: Path) -> dict:
    measurements: dict = json.loads((folder / "summary.json").read_text())
    return measurements


def measure_again(env: str, principal: str, seed: int, root: Path) -> tuple[list[float], float]:
    """Return new objectives of the last proposals of a run, [n], and of no mechanism, one."""
    run(f"env={env}", f"principal={principal}", f"seed={seed}", f"output_root={root}")
    [run_folder] = (root / env).glob(f"*principal_{principal}-*/s{seed}")
    history = summary(run_folder)["history"]
    steps = history[-1]["step"]
    last = [list(row["mechanism"].values()) for row in history if row["step"] > steps - max(1, steps // 5)]
    vectors = [[0.0] * len(last[0]), *last]
    listed = ("principal=listed", f"principal.vectors={vectors}", f"design.candidates={len(vectors)}")
    once = (
        "design.steps=1",
        "design.confirm_steps=0",
        "design.evaluations=0",
        "design.references=0",
        f"design.validate_episodes={EPISODES}",
    )
    name = f"{env}_{principal}_{seed}_again"
    run(f"env={env}", *listed, *once, f"seed={FRESH + seed}", f"name={name}", f"output_root={root}")
    [new_run] = (root / name).glob(f"*/s{FRESH + seed}")
    none, *objectives = [row["objective"] for row in summary(new_run)["history"]]
    return objectives, none


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="cleanup")
    parser.add_argument("--principals", nargs="+", default=["llm", "random"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("outputs/last_proposals"))
    args = parser.parse_args()
    print(f"{args.env}, {EPISODES} fresh games a proposal, by seed, and mean ± s.e. over {args.seeds} seeds")
    for principal in args.principals:
        measurements = [measure_again(args.env, principal, seed, args.output.resolve()) for seed in range(args.seeds)]
        last = np.array([np.mean(objectives) for objectives, _ in measurements])
        none = np.array([without for _, without in measurements])
        difference = last - none
        error = standard_error(difference)
        for label, x in (("last fifth of the proposals", last), ("no mechanism", none), ("difference", difference)):
            each = ", ".join(f"{value:.1f}" for value in x)
            print(f"{principal:>10} {label:<28} {each:<24} {mean(x):.1f} ± {standard_error(x):.1f}")
        print(f"{'':>10} beyond three standard errors: {'yes' if mean(difference) > 3 * error else 'no'}")


if __name__ == "__main__":
    main()
