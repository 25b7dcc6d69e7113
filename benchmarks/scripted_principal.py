"""Test that the rule of llm=scripted is invariant to the order of parameters and to the direction of their ranges.

    python benchmarks/scripted_principal.py [--seeds 20] [--orders 6] [--jobs 1]

The rule optimizes the parameters of a society many times, with permuted names and with reversed ranges. The society
resembles Clean Up with incentives (`make_river` in tests/support/known_functions.py; best value 85, worst -20). The
rule reads the prompts of a run: 8 steps of 8 proposals, whose payoffs have noise with a standard deviation of 15.

Prints the mean true value of the last fifth of the proposals: mean and standard error over seeds, for each order of the
parameters (rows) and each choice of reversed ranges (columns), and for random search. For an invariant rule, these
means differ only by chance. The last line compares the variance of the means with the variance expected by chance.
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


def measure_late_value(
    principal: str, order: tuple[int, int, int], mirror: tuple[bool, bool, bool], seed: int
) -> float:
    """Return the mean true value of the last fifth of the proposals.

    Args:
        principal: `scripted` or `random`.
        order: permutation of the parameters.
        mirror: whether the range of each parameter is reversed.
        seed: seed of proposals and noise.
    """
    logging.getLogger("llmrl").setLevel(logging.ERROR)  # hides the warning that the rule is not a language model
    society = make_river(order, mirror)
    if principal == "random":
        proposer = RandomPrincipal(society.spec.proposal_space, Seeds(seed))
    else:
        proposer = build_llm_principal(society.spec, make_scripted_client(seed))
    regrets = optimize(society, proposer, seed, STEPS * CANDIDATES, CANDIDATES)
    return 85 - society.range * float(regrets[-LAST:].mean())


def format_mean(scores: np.ndarray, digits: int = 0) -> str:
    return f"{scores.mean():.{digits}f} ± {scores.std(ddof=1) / np.sqrt(len(scores)):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--orders", type=int, default=6, help="number of orders of the parameters, at most 6")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    cells = [(order, mirror) for order in ORDERS[: args.orders] for mirror in MIRRORS]
    with ProcessPoolExecutor(args.jobs) as pool:
        # Cells have distinct seeds, so that they are independent.
        jobs = [
            pool.submit(measure_late_value, "scripted", *cell, args.seeds * i + seed)
            for i, cell in enumerate(cells)
            for seed in range(args.seeds)
        ]
        scores = np.array([job.result() for job in jobs]).reshape(len(cells), args.seeds)
    print("| parameters | " + " | ".join("".join("><"[m] for m in mirror) for mirror in MIRRORS) + " |")
    print("|---" * (len(MIRRORS) + 1) + "|")
    for i, order in enumerate(ORDERS[: args.orders]):
        row = scores[len(MIRRORS) * i : len(MIRRORS) * (i + 1)]
        print(f"| {', '.join(NAMES[part] for part in order)} | " + " | ".join(format_mean(cell) for cell in row) + " |")
    random_scores = np.array([measure_late_value("random", *cells[seed % len(cells)], seed) for seed in range(200)])
    print(
        f"\n>: original range, <: reversed range. All: {format_mean(scores.ravel(), 1)}. "
        f"Random search: {format_mean(random_scores, 1)}."
    )
    variance_of_means, chance_variance = scores.mean(1).var(ddof=1), scores.var(1, ddof=1).mean() / args.seeds
    print(f"Variance of the {len(cells)} means: {variance_of_means:.1f}; expected by chance: {chance_variance:.1f}.")


if __name__ == "__main__":
    main()
