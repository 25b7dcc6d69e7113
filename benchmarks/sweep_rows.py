"""Cost of a sweep's run as a process of its own and as a row of one: 8 principals x 4 seeds of Harvest.

    python benchmarks/sweep_rows.py [--principals 8] [--seeds 4] [--steps 5] [--rows-only] [--pixels]

The same runs are computed three times, by the command that users type: 32 processes, two at once; one process of 32
rows; two processes of 16. The games are the Harvest of `env=harvest` under the published schedule: one game of seven
players, five rounds of adaptation and one of validation for each proposal, 1000 steps each, with the lean network of
that option (facts about the cells of the map, 64 features, heads of 64). A run-step is one proposal of one run.

Processor seconds are those of all processes of the command (user and system). Of the same command with a single run
they are taken away, so that starting up, importing and composing do not count:

    (cpu of 32 runs - cpu of one) / (31 runs x steps)

`--pixels` also measures one run that sees pictures through the published network, in a process of its own: only that is
comparable with the published code, which takes 190 processor seconds a run-step (as measured beside its repository).
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
PUBLISHED = 190.0
"""Processor seconds of a run-step of the published code."""


@dataclass(frozen=True)
class Cost:
    """The cost of one command.

    Attributes:
        wall, cpu: seconds.
    """

    wall: float
    cpu: float


def measure(*overrides: str) -> Cost:
    """Return the cost of a command with these overrides, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        return Cost(*run([*TRAIN, *overrides], Path(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--principals", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows-only", action="store_true", help="leave out the separate processes, which take longest")
    parser.add_argument("--pixels", action="store_true", help="the published network on pictures, too")
    args = parser.parse_args()
    adopt_orphans()
    steps = f"design.steps={args.steps}"
    runs = args.principals * args.seeds
    sweep_overrides = [
        "principal=" + ",".join(PRINCIPALS[: args.principals]),
        "seed=" + ",".join(str(seed) for seed in range(args.seeds)),
    ]
    variants = {
        "a process each, two at once": ["hardware=local", "hardware.parallel=2", "hardware.rows=1"],
        "rows of one process": ["hardware=local", "hardware.parallel=1"],
        "rows of two processes": ["hardware=local", "hardware.parallel=2"],
    }
    if args.rows_only:
        del variants["a process each, two at once"]
    single_run = measure(
        "--multirun", *SCHEDULE, steps, "principal=ucb", "seed=0", "hardware=local", "hardware.parallel=1"
    )
    print(f"one run of {args.steps} steps: {single_run.wall:.1f} s, {single_run.cpu:.1f} processor seconds", flush=True)
    first: float | None = None
    for name, options in variants.items():
        cost = measure("--multirun", *SCHEDULE, steps, *sweep_overrides, *options)
        per_step = (cost.cpu - single_run.cpu) / ((runs - 1) * args.steps)
        first = first or per_step
        print(
            f"{runs} runs, {name:30} {cost.wall:8.1f} s   {cost.cpu:8.1f} processor s   "
            f"{per_step:6.3f} a run-step ({first / per_step:.1f}x)",
            flush=True,
        )
    if args.pixels:
        one_step, two_steps = (measure(*SCHEDULE, *PIXELS, f"design.steps={n}", "principal=ucb") for n in (1, 2))
        each = two_steps.cpu - one_step.cpu
        print(
            f"the published network on pixels, alone: {each:.1f} a run-step; published code {PUBLISHED:.0f} "
            f"({PUBLISHED / each:.1f}x)"
        )


if __name__ == "__main__":
    main()
