"""Test of the rule behind llm=scripted: it must not know which number matters, or which end of a range is good.

    python benchmarks/scripted_principal.py [--seeds 20] [--orders 6] [--jobs 1]

It sets the numbers of one society many times, each time with other names and with some ranges turned round. The society
is like Clean Up under incentives (`make_river` in tests/support/known_functions.py; best 85, worst -20), and the rule
reads of it in the prompts of a real run: 8 steps of 8 proposals, whose payoffs have noise of standard deviation 15.

Prints the mean worth, noise aside, of the last fifth of the proposals: mean and standard error over seeds, for every
order of the numbers (rows) and every choice of ranges that are turned round (columns), and the same of random search. A
rule that treats all numbers and both ends of each alike differs between these by chance alone. So the last line has the
variance of the means beside what chance makes of it.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from known_functions import make_river, optimize
from llmrl.core.seeding import Seeds
from llmrl.principals.nonadaptive import RandomPrincipal
from models import make_scripted_client
from shipped import build_llm_principal

STEPS, CANDIDATES = 8, 8
LAST = STEPS * CANDIDATES // 5
ORDERS = list(itertools.permutations(range(3)))
MIRRORS = list(itertools.product([False, True], repeat=3))
NAMES = ("eat", "clean", "other")


def mean_late_value(principal: str, order: tuple[int, int, int], mirrored: tuple[bool, bool, bool], seed: int) -> float:
    """Return the mean worth of the last fifth of the proposals."""
    logging.getLogger("llmrl").setLevel(logging.ERROR)  # that it is no language model is known here
    society = make_river(order, mirrored)
    if principal == "random":
        proposer = RandomPrincipal(society.spec.proposals, Seeds(seed))
    else:
        proposer = build_llm_principal(society.spec, make_scripted_client(seed))
    regrets = optimize(society, proposer, seed, STEPS * CANDIDATES, CANDIDATES)
    return 85 - society.range * float(regrets[-LAST:].mean())


def format_mean(scores: np.ndarray, digits: int = 0) -> str:
    return f"{scores.mean():.{digits}f} ± {scores.std(ddof=1) / np.sqrt(len(scores)):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--orders", type=int, default=6, help="of the six orders of the numbers, the first so many")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    cells = [(order, mirrored) for order in ORDERS[: args.orders] for mirrored in MIRRORS]
    with ProcessPoolExecutor(args.jobs) as pool:
        # Every cell has seeds of its own, so that cells are independent.
        jobs = [
            pool.submit(mean_late_value, "scripted", *cell, args.seeds * i + seed)
            for i, cell in enumerate(cells)
            for seed in range(args.seeds)
        ]
        scores = np.array([job.result() for job in jobs]).reshape(len(cells), args.seeds)
    print("| the numbers are | " + " | ".join("".join("><"[m] for m in mirrored) for mirrored in MIRRORS) + " |")
    print("|---" * (len(MIRRORS) + 1) + "|")
    for i, order in enumerate(ORDERS[: args.orders]):
        row = scores[len(MIRRORS) * i : len(MIRRORS) * (i + 1)]
        print(f"| {', '.join(NAMES[part] for part in order)} | " + " | ".join(format_mean(cell) for cell in row) + " |")
    random_scores = np.array([mean_late_value("random", *cells[seed % len(cells)], seed) for seed in range(200)])
    print(
        f"\n>: as it is, <: turned round. All: {format_mean(scores.ravel(), 1)}. "
        f"Random search: {format_mean(random_scores, 1)}."
    )
    between, within = scores.mean(1).var(ddof=1), scores.var(1, ddof=1).mean() / args.seeds
    print(f"Variance of the {len(cells)} means: {between:.1f}; by chance alone: {within:.1f}.")


if __name__ == "__main__":
    main()
