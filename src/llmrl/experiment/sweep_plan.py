"""The plan of a sweep: the table that `--multirun dry_run=true` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llmrl.experiment import reference_line_runs, run_references
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.models import asking
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import costs
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.run_batching_key import reason_to_run_alone
from llmrl.experiment.sweep_jobs import jobs_of
from llmrl.llms.client import ChatClient
from llmrl.loops.design import DesignLoop
from llmrl.run.folder import split_overrides
from llmrl.run.folder_names import title
from llmrl.sweeps.backends.protocol import Job, Pack
from llmrl.sweeps.jobs import check_distinct, missing
from llmrl.sweeps.launch import group_by_backend
from llmrl.sweeps.scheduling import ask_schedulers

COLUMNS = ("run", "runs", "environment steps", "LLM calls", "cost", "alone in its process, because")
"""Columns of the table."""


class SweepPlan(NamedTuple):
    """The plan of a sweep.

    Attributes:
        title: title of the table, with the number of processes.
        rows: rows of the table, as `COLUMNS`.
        requests: requests to a scheduler; empty if runs are computed here.
    """

    title: str
    rows: list[list[str]]
    requests: list[str]


@dataclass
class _Numbers:
    """Numbers of one run; None if unknown, or if there are no calls or costs.

    Attributes:
        env_steps: maximum number of environment steps, summed over games.
        calls, max_calls: calls of a language model, expected and with all repairs.
        asks: whether the run uses a language model.
        cost, max_cost: costs of the calls, US dollars.
        before: runs that are computed once before it.
    """

    env_steps: int | None = None
    calls: int | None = None
    max_calls: int | None = None
    asks: bool = False
    cost: float | None = None
    max_cost: float | None = None
    before: list[PrerequisiteRun] = field(default_factory=list)


def sweep_plan(runs: Sequence[Experiment], differing: set[str] | None = None) -> SweepPlan:
    """Build the parts of every experiment once, whatever its seeds, and return the plan of the sweep.

    Args:
        runs, differing: as for `compute_sweep`; runs of `llmrl-train`.

    Raises:
        LlmrlError: the parts of a run cannot work together, or the config of a run is invalid.
    """
    jobs = jobs_of(runs, differing)
    check_distinct(jobs)
    configs = {job.folder: run for job, run in zip(jobs, runs, strict=True)}
    todo, done = missing(jobs, ask_schedulers({job.folder for job in jobs}))
    kinds: dict[str, list[Job]] = {}
    for job in todo:
        kinds.setdefault(job.digest, []).append(job)
    numbers = {digest: _numbers(configs[kind_jobs[0].folder]) for digest, kind_jobs in kinds.items()}
    first = _prerequisites(todo, numbers.values())
    packs: list[Pack] = []
    requests: list[str] = []
    for group in group_by_backend(todo):
        backend = group[0].hardware.backend
        packs += backend.packs(group)
        requests += backend.requests(backend.packs(group))
    rows = [_row(kind_jobs, numbers[digest]) for digest, kind_jobs in kinds.items()]
    rows += [[f"before them: {run.name}", "1", f"{run.env_steps:,}", "-", "-", ""] for run in first]
    rows.append(_total_row(todo, numbers, first))
    heading = "Plan of the sweep (dry_run=true: all parts were built)"
    summary = f"{len(todo):,} runs in {_processes(packs)}"
    summary += f"; {len(done):,} are finished or computed by another process" if done else ""
    return SweepPlan(f"{heading}\n{summary}", rows, requests)


def _numbers(experiment: Experiment) -> _Numbers:
    """Return the numbers of the run of an experiment."""
    config, resources = experiment.config, experiment.resources
    parts = build_parts(config, resources.model, resources=resources)
    try:
        loop = build_loop(config, parts)
        numbers = _Numbers(before=reference_line_runs.prerequisite_runs(config, parts, loop))
        if isinstance(loop, DesignLoop):
            numbers.env_steps = loop.env_steps
        elif "learn" in config:
            numbers.env_steps = config["learn"]["env_steps"]
        numbers.asks = bool(asking(config, builder=resources.builder))
        estimate = loop.estimate()
        if isinstance(parts.llm, ChatClient) and estimate is not None:
            numbers.calls, numbers.max_calls = estimate.calls, estimate.max_calls
            numbers.cost, numbers.max_cost = costs(estimate, parts.llm)
        return numbers
    finally:
        parts.close()
        resources.close()


def _prerequisites(jobs: Sequence[Job], numbers: Iterable[_Numbers]) -> list[PrerequisiteRun]:
    """Return the runs that are computed before others, each once: referenced runs, and those of reference lines."""
    referred = [run for job in jobs for run in run_references.prerequisite_runs(job.config)]
    reference_runs = [run for estimate in numbers for run in estimate.before]
    unique_runs = {run.folder: run for run in [*referred, *reference_runs]}
    return [run for folder, run in unique_runs.items() if not run.finished]


def _row(jobs: Sequence[Job], numbers: _Numbers) -> list[str]:
    """Return the row of runs that differ only in their seeds."""
    n, reason = len(jobs), reason_to_run_alone(jobs[0].config)
    calls, cost = _calls(numbers, n), _money(numbers, n)
    steps = "unknown" if numbers.env_steps is None else f"{n * numbers.env_steps:,}"
    name = title(split_overrides(jobs[0].naming)) or jobs[0].folder.parent.name
    return [name, f"{n:,}", steps, calls, cost, "" if reason is None else str(reason)]


def _total_row(jobs: Sequence[Job], numbers: Mapping[str, _Numbers], first: Sequence[PrerequisiteRun]) -> list[str]:
    """Return the row of sums; a sum is unknown if a number of one run is unknown."""
    job_numbers = [numbers[job.digest] for job in jobs]
    steps = [estimate.env_steps for estimate in job_numbers] + [run.env_steps for run in first]
    total_steps = "unknown" if None in steps else f"{sum(step or 0 for step in steps):,}"
    llm_runs = [estimate for estimate in job_numbers if estimate.asks]
    total = _Numbers(asks=bool(llm_runs))
    for name in ("calls", "max_calls", "cost", "max_cost"):
        values = [getattr(estimate, name) for estimate in llm_runs]
        setattr(total, name, None if None in values else sum(values))
    return ["in all", f"{len(jobs) + len(first):,}", total_steps, _calls(total, 1), _money(total, 1), ""]


def _calls(numbers: _Numbers, n: int) -> str:
    if not numbers.asks:
        return "-"
    if numbers.calls is None or numbers.max_calls is None:
        return "unknown"
    limit_text = f", at most {n * numbers.max_calls:,}" if numbers.max_calls > numbers.calls else ""
    return f"{n * numbers.calls:,}{limit_text}"


def _money(numbers: _Numbers, n: int) -> str:
    if not numbers.asks:
        return "-"
    if numbers.cost is None:
        return "unknown"
    return f"${n * numbers.cost:,.4g}" + ("" if numbers.max_cost is None else f", at most ${n * numbers.max_cost:,.4g}")


def _processes(packs: Sequence[Pack]) -> str:
    """Return a text with the number of processes by their rows: `3 processes: 2 of 16 runs, 1 of 1 run`."""
    sizes = sorted(Counter(len(pack.jobs) for pack in packs).items(), reverse=True)
    sizes_text = ", ".join(f"{n:,} of {size:,} run{'s' * (size != 1)}" for size, n in sizes)
    return f"{len(packs):,} process{'es' * (len(packs) != 1)}" + (f": {sizes_text}" if packs else "")
