"""Principals on functions whose maximum is known, against random search; and the time a Gaussian process takes.

    python benchmarks/principals.py [--seeds 20] [--jobs 1] [--principals gp cem ...] [--functions smooth ...]
    python benchmarks/principals.py --ask-times

Prints, for each principal and function (tests/support/known_functions.py), the regret of the best vector tried,
as a percentage of the function's range, noise aside and mean over contexts: the mean over seeds and its 95% t interval,
from five seeds on. First with few evaluations, one proposal at a time and four at once; then with more, for the
principals that learn slowly and cost little; there also the mean regret of the last fifth of the proposals.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# One thread a process: the matrices are small, and so are shares of a machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from known_functions import FUNCTIONS, PRINCIPALS, SMOOTH, WIDE, best_found, optimize, suits
from llmrl.analysis.intervals import mean_interval
from llmrl.analysis.table_format import with_interval
from llmrl.core.seeding import Seeds

FEW, MANY = 36, 200


def runs(principal: str, function: str, seeds: int, evaluations: int, n: int) -> tuple[list[float], list[float]]:
    """Percentages of the range, by seed: regret of the best vector, and mean regret of the last fifth."""
    known = FUNCTIONS[function]
    best, late = [], []
    for seed in range(seeds):
        regrets = optimize(known, PRINCIPALS[principal](known.spec, Seeds(seed)), seed, evaluations, n)
        best.append(100 * best_found(known, regrets, n))
        late.append(100 * float(regrets[-evaluations // 5 :].mean()))
    return best, late


def table(title: str, cells: dict[tuple[str, str], str], principals: list[str], functions: list[str]) -> None:
    print(f"\n{title}\n")
    print("| principal | " + " | ".join(functions) + " |")
    print("|---" * (len(functions) + 1) + "|")
    for principal in principals:
        print(f"| `{principal}` | " + " | ".join(cells.get((principal, f), "-") for f in functions) + " |")


def estimate(scores: list[float]) -> str:
    band = mean_interval(np.array(scores))
    return with_interval(float(band.estimate), float(band.low), float(band.high), "{:.2g}".format)


def compare(args: argparse.Namespace) -> None:
    settings = [(FEW, 1), (FEW, 4), (MANY, 1)]
    start, pending, found = time.perf_counter(), {}, {}
    with ProcessPoolExecutor(args.jobs) as pool:
        for evaluations, n in settings:
            for principal in args.principals:
                for function in args.functions:
                    slow = principal == "gp" and evaluations == MANY
                    if suits(principal, FUNCTIONS[function], n) and not slow:
                        job = (principal, function, args.seeds, evaluations, n)
                        pending[evaluations, n, principal, function] = pool.submit(runs, *job)
        found = {key: job.result() for key, job in pending.items()}
    for evaluations, n in settings:
        own = {key[2:]: result for key, result in found.items() if key[:2] == (evaluations, n)}
        at_once = f"{n} proposal{'s' * (n > 1)} at a time"
        cells = {key: estimate(best) for key, (best, _) in own.items()}
        table(f"Best of {evaluations} evaluations, {at_once}", cells, args.principals, args.functions)
        if evaluations == MANY:
            cells = {key: estimate(late) for key, (_, late) in own.items()}
            table(f"Last fifth of {evaluations} evaluations, {at_once}", cells, args.principals, args.functions)
    print(f"\n{args.seeds} seeds, {time.perf_counter() - start:.0f} s with {args.jobs} processes")


def ask_times() -> None:
    """Processor seconds of one `ask` of principal=gp, one thread, by number of outcomes; median of three."""
    print("| numbers | outcomes | one proposal, CPU-s | four at once, CPU-s |\n|---|---|---|---|")
    for function in (SMOOTH, WIDE):
        for told in (30, 100, 300):
            seconds = {}
            for n in (1, 4):
                rng, space = np.random.default_rng(0), function.spec.proposals
                proposer = PRINCIPALS["gp"](function.spec, Seeds(0))
                # Half of them anywhere, half near the maximum, as they would be late in a search.
                vectors = rng.uniform(space.low, space.high, (told, space.dim))
                near = space.low + function.best[0] * (space.high - space.low)
                vectors[told // 2 :] += 0.9 * (near - vectors[told // 2 :])
                proposer.tell([function.outcome(vector, None, rng) for vector in vectors])
                taken = []
                for _ in range(4):
                    start = time.process_time()
                    proposer.ask(None, n)
                    taken.append(time.process_time() - start)
                seconds[n] = float(np.median(taken[1:]))
            print(f"| {space.dim} | {told} | {seconds[1]:.2f} | {seconds[4]:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--principals", nargs="+", choices=PRINCIPALS, default=list(PRINCIPALS))
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--ask-times", action="store_true", help="time principal=gp instead")
    args = parser.parse_args()
    ask_times() if args.ask_times else compare(args)


if __name__ == "__main__":
    main()
