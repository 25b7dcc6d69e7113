"""Quality of the recommendations of principals on landscapes with known values, after few proposals.

    python benchmarks/landscapes.py [--runs 200] [--gp-runs 40] [--jobs 2] [--principals ...] [--families ...]
    python benchmarks/landscapes.py --principals llm --llm ollama --runs 20

In each run, a principal proposes vectors on a landscape (`landscape_functions.py`) and receives noisy measurements. No
agents learn. After 5, 10 and 20 proposals, the recommended vector is scored by its true value: 0 is the value without a
mechanism (on random landscapes, the lowest value), 1 is the maximum of the landscape. The recommendation is that of
`recommend`; for principals without this method, it is the vector with the highest mean of measurements. Run i of a
family has the same landscape and the same noise for all principals.

Prints tables of means and standard errors over runs, and CPU seconds per run. With `--output`, writes per-run scores to
landscapes.csv (a row per run, a column per principal). Existing scores in this file are preserved and included in the
tables, so that `--runs 0 --gp-runs 0` only prints.

`gp-...` are variants of `gp` with fewer initial points, or with reported standard errors as noise. `...-incumbent`
recommends the vector with the highest mean of measurements, from the same proposals. `best-arm` is the highest score
among the arms of the bandits, which is an upper bound for them. With `--replicates`, a measurement is the mean over
several societies. Excluded are `metagrad`, which needs gradients of learning agents, and `saez` and `vote`, which need
incomes and citizens.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

# One thread per process: the matrices are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from landscape_functions import FAMILIES, Landscape, landscape

from llmrl.config.builder import Builder
from llmrl.core.option_files import load_option
from llmrl.core.pooling import PooledEstimates
from llmrl.core.protocols import Proposer
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.experiment.resources import CALL_POLICY_KEYS
from llmrl.llms.client import ChatClient
from llmrl.principals.bandits import BanditPrincipal
from llmrl.principals.gp import GaussianProcessPrincipal

if TYPE_CHECKING:
    from botorch.models.gp_regression import SingleTaskGP

BUDGETS = (5, 10, 20)
"""Numbers of proposals after which the recommendation is scored."""
PRINCIPALS = ("random", "sobol", "scan", "egreedy", "ucb", "thompson", "gp", "cem", "cmaes", "dual_rl", "llm")
INCUMBENTS = {name: f"{name}-incumbent" for name in ("gp",)}
"""Columns of the vector with the highest mean of measurements, from the same proposals."""
BEST_ARMS = {"ucb": "best-arm"}
"""Columns of the best arm of a bandit; all bandits have the same arms."""
MIN_VARIANCE = 1e-4
"""Minimum noise variance of a standardized value, because two episodes may be equal by chance."""

Row = tuple[str, int, int]
"""Family, run, number of proposals."""
Scores = dict[Row, dict[str, float]]
"""Scores of each row by principal."""


class ReportedNoisePrincipal(GaussianProcessPrincipal):
    """Gaussian process principal with the reported standard errors as known noise instead of a learned variance."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.variances: list[float] = []

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        self.variances += [outcome.standard_error**2 for outcome in outcomes if outcome.standard_error is not None]
        return super().tell(outcomes)

    def _fit_model(self) -> SingleTaskGP:
        import torch
        from botorch.fit import fit_gpytorch_mll
        from botorch.models.gp_regression import SingleTaskGP
        from gpytorch.mlls import ExactMarginalLogLikelihood

        mean, scale = self._compute_value_moments()
        values = torch.tensor((np.array(self.values) - mean) / scale)[:, None]
        noise = torch.tensor(np.maximum(np.array(self.variances) / scale**2, MIN_VARIANCE))[:, None]
        inputs = self._build_inputs(self.rows, self.vectors)
        model = SingleTaskGP(inputs, values, noise, covar_module=self._build_kernel(), outcome_transform=None)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model


def build_gp_variant(name: str, function: Landscape, seeds: Seeds) -> Proposer:
    """Build the variant of `gp` with a name of `GP_VARIANTS`."""
    space = function.space
    if name == "gp-reported-noise":
        return ReportedNoisePrincipal(space, seeds)
    return GaussianProcessPrincipal(space, seeds, initial={"gp-initial-1": 1, "gp-initial-half": space.dim + 1}[name])


GP_VARIANTS = ("gp-initial-1", "gp-initial-half", "gp-reported-noise")


def build_principal(name: str, function: Landscape, run: int, proposals: int, llm: str) -> Proposer:
    """Build a principal with the default options.

    Args:
        name: option of `conf/principal`, or a name of `GP_VARIANTS`.
        function: landscape to search.
        run: seed.
        proposals: number of proposals of the run.
        llm: option of `conf/llm` for the principal `llm`.
    """
    seeds = Seeds(run)
    if name in GP_VARIANTS:
        return build_gp_variant(name, function, seeds.child("principal"))
    services: dict[str, Any] = {"device": "cpu", "seeds": seeds.child("llm")}
    if name == "llm":
        node = {key: value for key, value in load_option("llm", llm).items() if key not in CALL_POLICY_KEYS}
        services["llm"] = ChatClient(Builder(services).build(node, "llm"))
    services |= {"seeds": seeds.child("principal"), "spec": function.spec, "space": function.space}
    services |= {"proposals": proposals, "controller": None, "prompt_folder": None}
    principal: Proposer = Builder(services).build(load_option("principal", name), "principal")
    return principal


def recommendation(principal: Proposer, estimates: PooledEstimates) -> np.ndarray:
    """Return the recommended vector, [d]; for principals without `recommend`, the incumbent."""
    recommend = getattr(principal, "recommend", None)
    return incumbent(estimates) if recommend is None else np.asarray(recommend(None, 1, estimates)[0])


def incumbent(estimates: PooledEstimates) -> np.ndarray:
    """Return the vector with the highest mean of measurements, [d]."""
    best = estimates.best()
    assert best is not None
    return np.array(best.vector)


def search(
    name: str, family: str, run: int, proposals: int, candidates: int, llm: str, replicates: int = 1
) -> tuple[dict[Row, dict[str, float]], float]:
    """Run a search, and return the scores of its recommendations and its CPU seconds.

    Args:
        name: principal.
        family: family of landscapes.
        run: number of the landscape, and seed.
        proposals: number of proposals.
        candidates: number of proposals per step.
        llm: option of the language model.
        replicates: number of societies of a measurement.
    """
    start, function = time.process_time(), landscape(family, run)
    single_noise = function.noise
    function = replace(function, noise=lambda points: single_noise(points) / math.sqrt(replicates))
    principal = build_principal(name, function, run, proposals, llm)
    estimates, rng = PooledEstimates(), Seeds(run).numpy("noise")
    scores: Scores = {}
    for n_proposals in range(candidates, proposals + 1, candidates):
        vectors = function.spec.proposal_space.check(principal.ask(None, candidates))
        outcomes = [function.measure(vector, rng) for vector in vectors]
        principal.tell(outcomes)
        for outcome in outcomes:
            n = len(outcome.values)
            estimates.add(outcome.vector, outcome.value, outcome.standard_error, n, n)
        if n_proposals in BUDGETS or n_proposals == proposals:
            row = scores[family, run, n_proposals] = {name: function.score(recommendation(principal, estimates))}
            if name in INCUMBENTS:
                row[INCUMBENTS[name]] = function.score(incumbent(estimates))
            if isinstance(principal, BanditPrincipal) and name in BEST_ARMS:
                row[BEST_ARMS[name]] = max(function.score(arm) for arm in principal.arms)
    return scores, time.process_time() - start


def read_scores(path: Path) -> Scores:
    """Read the scores that `write_scores` wrote, or return an empty dictionary if the file does not exist."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {
            (row.pop("family"), int(row.pop("run")), int(row.pop("proposals"))): {
                k: float(v) for k, v in row.items() if v
            }
            for row in csv.DictReader(file)
        }


def write_scores(path: Path, scores: Mapping[Row, Mapping[str, float]]) -> None:
    """Write scores as a table with a column for each principal."""
    names = sorted({name for row in scores.values() for name in row})
    order = sorted(scores, key=lambda row: (FAMILIES.index(row[0]), *row[1:]))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["family", "run", "proposals", *names])
        for key in order:
            writer.writerow([*key, *(f"{scores[key][name]:.3f}" if name in scores[key] else "" for name in names)])


Cell = tuple[str, str, int]
"""Principal, family, number of proposals."""


def collect_cells(scores: Mapping[Row, Mapping[str, float]]) -> dict[Cell, np.ndarray]:
    """Return the scores over runs, [runs], of each principal, family and number of proposals."""
    cells: dict[Cell, list[float]] = {}
    for (family, _, proposals), row in scores.items():
        for name, score in row.items():
            cells.setdefault((name, family, proposals), []).append(score)
    return {key: np.array(values) for key, values in cells.items()}


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def format_tables(cells: Mapping[Cell, np.ndarray]) -> str:
    """Return a Markdown table of means ± standard errors for each number of proposals."""
    rank = {name: i for i, name in enumerate((*PRINCIPALS, *BEST_ARMS.values(), *GP_VARIANTS, *INCUMBENTS.values()))}
    names = sorted({name for name, _, _ in cells}, key=lambda name: rank[name])
    families = [family for family in FAMILIES if any(family == key[1] for key in cells)]
    lines = []
    for n in sorted({n for _, _, n in cells}):
        lines += [f"\nAfter {n} proposals\n", "| principal | " + " | ".join(families) + " |"]
        lines += ["|---" + "|---:" * len(families) + "|"]
        for name in names:
            arrays = [cells.get((name, family, n)) for family in families]
            row_cells = ["" if x is None else f"{x.mean():.2f} ± {standard_error(x):.2f}" for x in arrays]
            lines.append(f"| {name} | " + " | ".join(row_cells) + " |")
    return "\n".join(lines)


def format_differences(scores: Mapping[Row, Mapping[str, float]]) -> str:
    """Return a Markdown table of paired differences between variants of `gp` and `gp`, mean ± standard error."""
    lines = [
        "\nDifference from gp\n",
        "| variant | family | " + " | ".join(f"after {n}" for n in BUDGETS) + " | runs |",
    ]
    lines += ["|---|---" + "|---:" * (len(BUDGETS) + 1) + "|"]
    for name, family in itertools.product((*GP_VARIANTS, INCUMBENTS["gp"]), FAMILIES):
        pairs: dict[int, list[float]] = {n: [] for n in BUDGETS}
        for (row_family, _, n), row in scores.items():
            if row_family == family and n in pairs and {"gp", name} <= row.keys():
                pairs[n].append(row[name] - row["gp"])
        if all(pairs.values()):
            text = [f"{np.mean(values):+.3f} ± {standard_error(np.array(values)):.3f}" for values in pairs.values()]
            lines.append(f"| {name} | {family} | " + " | ".join(text) + f" | {len(pairs[BUDGETS[0]])} |")
    return "\n".join(lines)


def hide_warnings() -> None:
    """Hide the warning that the scripted rule is not a language model, which each run logs."""
    logging.getLogger("llmrl").setLevel(logging.ERROR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="runs of each principal and family")
    parser.add_argument("--gp-runs", type=int, default=40, help="runs of gp and its variants, which are slow")
    parser.add_argument("--first-run", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--principals", nargs="+", choices=(*PRINCIPALS, *GP_VARIANTS), default=list(PRINCIPALS))
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--proposals", type=int, default=20)
    parser.add_argument("--candidates", type=int, default=1, help="proposals per step")
    parser.add_argument("--replicates", type=int, default=1, help="societies per measurement")
    parser.add_argument("--llm", default="scripted", help="option of conf/llm for the principal llm")
    parser.add_argument("--output", type=Path, help="folder of landscapes.csv")
    args = parser.parse_args()
    jobs = []
    # The inner loop iterates over principals, because each process caches the last landscapes. The outer loop iterates
    # over runs, so that an interrupted benchmark has equal numbers of runs in all cells.
    for run in range(args.first_run, max(args.runs, args.gp_runs)):
        names = [name for name in args.principals if run < (args.gp_runs if name.startswith("gp") else args.runs)]
        for family in args.families:
            jobs += [(name, family, run, args.proposals, args.candidates, args.llm, args.replicates) for name in names]
    path = args.output / "landscapes.csv" if args.output else None
    scores: Scores = read_scores(path) if path else {}
    seconds: dict[str, list[float]] = {}
    with ProcessPoolExecutor(args.jobs, initializer=hide_warnings) as pool:
        for i, (job, (job_scores, cpu_seconds)) in enumerate(
            zip(jobs, pool.map(search, *zip(*jobs, strict=True)), strict=True)
        ):
            for row, columns in job_scores.items():
                scores.setdefault(row, {}).update(columns)
            seconds.setdefault(job[0], []).append(cpu_seconds)
            if path and (i % 200 == 199 or i == len(jobs) - 1):
                write_scores(path, scores)
    cells = collect_cells(scores)
    print(format_tables(cells))
    print(format_differences(scores))
    for name, run_seconds in seconds.items():
        print(f"CPU seconds per run of {name}: {np.mean(run_seconds):.2f}")


if __name__ == "__main__":
    main()
