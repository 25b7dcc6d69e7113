"""Cost of the runs of a sweep in separate processes and in batches of runs: 8 principals x 4 seeds of Harvest.

    python benchmarks/sweep_rows.py [--principals 8] [--seeds 4] [--steps 5] [--rows-only] [--pixels]

`llmrl-train --multirun` computes the same runs three times: in 32 processes, two at once; in one process with a batch
of 32 runs; in two processes with batches of 16. Games are Harvest of `env=harvest` with the published schedule: one
game with seven players, five rounds of adaptation and one of validation for each proposal, 1,000 steps each, with the
small network of this option (features of grid cells, 64 features, heads of 64). A run-step is one proposal of one run.

CPU seconds are those of all processes of the command (user and system). Those of the same command with a single run are
subtracted, so that startup, imports and composition are excluded:

    (cpu of 32 runs - cpu of one) / (31 runs x steps)

`--pixels` also measures a run with image observations and the published network in a separate process. Only this run is
comparable with the published code, which takes 190 CPU seconds per run-step (measured separately).
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from launchers import TRAIN, adopt_orphans, run

PRINCIPALS = ("random", "fixed", "egreedy", "ucb", "thompson", "cem", "cmaes", "dual_rl", "gp")
SCHEDULE = (
    *(
        "env=harvest",
        "regime=harvest_published",
        "env.n_envs=1",
        "agent.init_from=null",
        "design.candidates=1",
        "design.adapt_rounds=5",
    ),
    *("design.validate_episodes=1", "design.confirm_steps=0", "design.evaluations=0", "design.references=0"),
)
PIXELS = ("env.observe=[pixels]", "agent.core=auto", "agent.features=512")
PUBLISHED_SECONDS = 190.0
"""CPU seconds of a run-step of the published code."""


@dataclass(frozen=True)
class Cost:
    """Cost of a command.

    Attributes:
        wall, cpu: wall-clock and CPU seconds.
    """

    wall: float
    cpu: float


def measure(*overrides: str) -> Cost:
    """Run `llmrl-train` in an empty folder, and return its cost."""
    with tempfile.TemporaryDirectory() as folder:
        return Cost(*run([*TRAIN, *overrides], Path(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--principals", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows-only", action="store_true", help="skip the separate processes, which are slow")
    parser.add_argument("--pixels", action="store_true", help="also measure the published network on images")
    args = parser.parse_args()
    adopt_orphans()
    steps = f"design.steps={args.steps}"
    runs = args.principals * args.seeds
    sweep_overrides = [
        "principal=" + ",".join(PRINCIPALS[: args.principals]),
        "seed=" + ",".join(str(seed) for seed in range(args.seeds)),
    ]
    variants = {
        "separate processes, two at once": ["hardware=local", "hardware.parallel=2", "hardware.rows=1"],
        "one process": ["hardware=local", "hardware.parallel=1"],
        "two processes": ["hardware=local", "hardware.parallel=2"],
    }
    if args.rows_only:
        del variants["separate processes, two at once"]
    single_run = measure(
        "--multirun", *SCHEDULE, steps, "principal=ucb", "seed=0", "hardware=local", "hardware.parallel=1"
    )
    print(f"one run of {args.steps} steps: {single_run.wall:.1f} s, {single_run.cpu:.1f} CPU seconds", flush=True)
    first_per_step: float | None = None
    for name, options in variants.items():
        cost = measure("--multirun", *SCHEDULE, steps, *sweep_overrides, *options)
        per_step = (cost.cpu - single_run.cpu) / ((runs - 1) * args.steps)
        first_per_step = first_per_step or per_step
        print(
            f"{runs} runs, {name:32} {cost.wall:8.1f} s   {cost.cpu:8.1f} CPU s   "
            f"{per_step:6.3f} per run-step ({first_per_step / per_step:.1f}x)",
            flush=True,
        )
    if args.pixels:
        single_step, two_steps = (measure(*SCHEDULE, *PIXELS, f"design.steps={n}", "principal=ucb") for n in (1, 2))
        per_step = two_steps.cpu - single_step.cpu
        print(
            f"published network on images, one run: {per_step:.1f} CPU s per run-step; "
            f"published code {PUBLISHED_SECONDS:.0f} ({PUBLISHED_SECONDS / per_step:.1f}x)"
        )


if __name__ == "__main__":
    main()
