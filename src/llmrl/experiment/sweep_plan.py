"""The plan of a sweep: the table that `--multirun dry_run=true` prints."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from llmrl.config.loop_sections import loop_kind
from llmrl.core.seeding import Seeds
from llmrl.experiment import reference_line_runs, run_references
from llmrl.experiment.batched_runs import reason_to_run_alone
from llmrl.experiment.config_completion import groups_using_model
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import costs
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.sweep_jobs import jobs_of
from llmrl.llms.client import ChatClient
from llmrl.loops.design import DesignLoop
from llmrl.loops.rehearsals import estimate_seconds, measure_steps_per_second
from llmrl.run.folder import format_overrides, split_overrides
from llmrl.run.progress_bar import format_duration
from llmrl.sweeps.backends.protocol import Job, JobBatch
from llmrl.sweeps.jobs import check_distinct_folders, find_missing_jobs
from llmrl.sweeps.launch import group_by_backend
from llmrl.sweeps.scheduling import query_schedulers

COLUMNS = ("run", "runs", "environment steps", "LLM calls", "cost", "alone in its process, because")
"""Columns of the table."""


class SweepPlan(NamedTuple):
    """The plan of a sweep.

    Attributes:
        title: title of the table, with the processes and the time.
        rows: rows of the table, as `COLUMNS`.
        requests: requests to a scheduler; empty if runs are computed here.
    """

    title: str
    rows: list[list[str]]
    requests: list[str]


@dataclass
class _RunEstimate:
    """Estimate of the size and cost of one run; None if unknown, or if there are no calls or costs.

    Attributes:
        env_steps: maximum number of environment steps, summed over games.
        calls, max_calls: calls of a language model, expected and with all repairs.
        asks: whether the run uses a language model.
        cost, max_cost: costs of the calls, US dollars.
        prerequisites: runs that are computed once before it.
    """

    env_steps: int | None = None
    calls: int | None = None
    max_calls: int | None = None
    asks: bool = False
    cost: float | None = None
    max_cost: float | None = None
    prerequisites: list[PrerequisiteRun] = field(default_factory=list)


def sweep_plan(runs: Sequence[Experiment], differing: set[str] | None = None) -> SweepPlan:
    """Build the parts of every experiment once, whatever its seeds, and return the plan of the sweep.

    Args:
        runs, differing: as for `compute_sweep`; runs of `llmrl-train`.

    Raises:
        LlmrlError: the parts of a run cannot work together, or the config of a run is invalid.
    """
    jobs = jobs_of(runs, differing)
    check_distinct_folders(jobs)
    configs = {job.folder: run for job, run in zip(jobs, runs, strict=True)}
    todo, done = find_missing_jobs(jobs, query_schedulers({job.folder for job in jobs}))
    jobs_by_digest: dict[str, list[Job]] = {}
    for job in todo:
        jobs_by_digest.setdefault(job.digest, []).append(job)
    estimates = {digest: _estimate(configs[digest_jobs[0].folder]) for digest, digest_jobs in jobs_by_digest.items()}
    # Runs that are computed before others: those that they refer to, and those of reference lines.
    prerequisites = [run for job in todo for run in run_references.prerequisite_runs(job.config)]
    prerequisites += [run for estimate in estimates.values() for run in estimate.prerequisites]
    first = [run for run in {run.folder: run for run in prerequisites}.values() if not run.finished]
    batches, requests = job_requests(todo)
    rows = [_row(digest_jobs, estimates[digest]) for digest, digest_jobs in jobs_by_digest.items()]
    rows += [[f"before them: {run.name}", "1", f"{run.env_steps:,}", "-", "-", ""] for run in first]
    rows.append(_total_row(todo, estimates, first))
    heading = "Plan of the sweep (dry_run=true: all parts were built, and a few steps were run to estimate the time)"
    summary = f"{len(todo):,} runs in {_processes(batches)}"
    summary += f"; {len(done):,} are finished or computed by another process" if done else ""
    title = "\n".join([heading, summary, _time(batches, configs, estimates, first)])
    return SweepPlan(title, rows, requests)


def job_requests(jobs: Sequence[Job]) -> tuple[list[JobBatch], list[str]]:
    """Return the processes of jobs, and the requests to a scheduler for them."""
    batches: list[JobBatch] = []
    requests: list[str] = []
    for group in group_by_backend(jobs):
        backend = group[0].hardware.backend
        group_batches = backend.make_batches(group)
        batches += group_batches
        requests += backend.describe_requests(group_batches)
    return batches, requests


def _estimate(experiment: Experiment) -> _RunEstimate:
    """Return the estimate of the run of an experiment."""
    config, resources = experiment.config, experiment.resources
    parts = build_parts(config, resources.model, resources=resources)
    try:
        loop = build_loop(config, parts)
        estimate = _RunEstimate(prerequisites=reference_line_runs.prerequisite_runs(config, parts, loop))
        if isinstance(loop, DesignLoop):
            estimate.env_steps = loop.env_steps
        elif "learn" in config:
            estimate.env_steps = config["learn"]["env_steps"]
        estimate.asks = bool(groups_using_model(config, builder=resources.builder))
        call_estimate = loop.estimate()
        if isinstance(parts.llm, ChatClient) and call_estimate is not None:
            estimate.calls, estimate.max_calls = call_estimate.calls, call_estimate.max_calls
            estimate.cost, estimate.max_cost = costs(call_estimate, parts.llm)
        return estimate
    finally:
        parts.close()
        resources.close()


def _row(jobs: Sequence[Job], estimate: _RunEstimate) -> list[str]:
    """Return the row of runs that differ only in their seeds."""
    n, reason = len(jobs), reason_to_run_alone(jobs[0].config)
    calls, cost = _calls(estimate, n), _money(estimate, n)
    steps = "unknown" if estimate.env_steps is None else f"{n * estimate.env_steps:,}"
    name = format_overrides(split_overrides(jobs[0].label_overrides)) or jobs[0].folder.parent.name
    return [name, f"{n:,}", steps, calls, cost, "" if reason is None else str(reason)]


def _total_row(
    jobs: Sequence[Job], estimates: Mapping[str, _RunEstimate], first: Sequence[PrerequisiteRun]
) -> list[str]:
    """Return the row of sums; a sum is unknown if a number of one run is unknown."""
    job_estimates = [estimates[job.digest] for job in jobs]
    steps = [estimate.env_steps for estimate in job_estimates] + [run.env_steps for run in first]
    total_steps = "unknown" if None in steps else f"{sum(step or 0 for step in steps):,}"
    llm_runs = [estimate for estimate in job_estimates if estimate.asks]
    total = _RunEstimate(asks=bool(llm_runs))
    for name in ("calls", "max_calls", "cost", "max_cost"):
        values = [getattr(estimate, name) for estimate in llm_runs]
        setattr(total, name, None if None in values else sum(values))
    return ["in all", f"{len(jobs) + len(first):,}", total_steps, _calls(total, 1), _money(total, 1), ""]


def _calls(estimate: _RunEstimate, n: int) -> str:
    if not estimate.asks:
        return "-"
    if estimate.calls is None or estimate.max_calls is None:
        return "unknown"
    limit_text = f", at most {n * estimate.max_calls:,}" if estimate.max_calls > estimate.calls else ""
    return f"{n * estimate.calls:,}{limit_text}"


def _money(estimate: _RunEstimate, n: int) -> str:
    if not estimate.asks:
        return "-"
    if estimate.cost is None:
        return "unknown"
    return f"${n * estimate.cost:,.4g}" + (
        "" if estimate.max_cost is None else f", at most ${n * estimate.max_cost:,.4g}"
    )


def _processes(batches: Sequence[JobBatch]) -> str:
    """Return a text with the number of processes by their rows: `3 processes: 2 of 16 runs, 1 of 1 run`."""
    sizes = sorted(Counter(len(batch.jobs) for batch in batches).items(), reverse=True)
    sizes_text = ", ".join(f"{n:,} of {size:,} run{'s' * (size != 1)}" for size, n in sizes)
    return f"{len(batches):,} process{'es' * (len(batches) != 1)}" + (f": {sizes_text}" if batches else "")


def _time(
    batches: Sequence[JobBatch],
    configs: Mapping[Path, Experiment],
    estimates: Mapping[str, _RunEstimate],
    first: Sequence[PrerequisiteRun],
) -> str:
    """Return a text with the approximate time of the sweep, at the speed of this machine."""
    rates: dict[tuple[str, int], float | None] = {}

    def rate_of(batch: JobBatch) -> float | None:
        """Return the steps per second, summed over all games of a process; measured once for each shape and size."""
        job = batch.jobs[0]
        key = (job.batch_key or job.digest, len(batch.jobs))
        if key not in rates:
            rates[key] = _measure_rate(configs[job.folder].config, len(batch.jobs))
        return rates[key]

    seconds = []
    for batch in batches:
        steps = [estimates[job.digest].env_steps for job in batch.jobs]
        rate = None if None in steps else rate_of(batch)
        if rate is None:
            return "time: unknown, because the steps of some runs cannot be timed beforehand"
        seconds.append(sum(step or 0 for step in steps) / rate)
    if not batches:
        return "time: none"
    setup_seconds = (
        sum(run.env_steps for run in first) / (rate_of(JobBatch(batches[0].jobs[:1])) or 1.0) if first else 0.0
    )
    places = batches[0].hardware.backend.count_parallel(batches)
    concurrency = f"{places:,} at once" if places is not None else "all at once, if the cluster has room"
    waits = ", and replies of language models" if any(estimates[j.digest].asks for p in batches for j in p.jobs) else ""
    total_seconds = setup_seconds + makespan(seconds, places or len(seconds))
    return f"time: about {format_duration(total_seconds)} at the speed of this machine, {concurrency}{waits}"


def makespan(seconds: Sequence[float], places: int) -> float:
    """Return the time at which the last of several processes ends. Each starts, in order, as soon as a place is free.

    >>> makespan([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    ends = [0.0] * min(places, len(seconds))
    for length in seconds:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends, default=0.0)


def _measure_rate(config: Mapping[str, Any], rows: int) -> float | None:
    """Return the steps per second of `rows` runs with this config, timed as the societies of one run.

    None for other loops than mechanism design and learning, and if agents use a language model.
    """
    kind = loop_kind(config)
    if (
        kind not in ("design", "learn")
        or (kind == "learn" and rows > 1)
        or groups_using_model(config, ("agent", "teacher"))
    ):
        return None
    if rows > 1:
        config = {
            **config,
            "env": {**config["env"], "n_envs": rows * config["env"]["n_envs"]},
            "design": {**config["design"], "replicates": rows * config["design"]["replicates"]},
        }
    resources = Experiment(config).resources
    parts = build_parts(config, resources.model, resources=resources)
    try:
        loop = build_loop(config, parts)
        seeds = Seeds(config["seed"]).child("rehearsal")
        if isinstance(loop, DesignLoop):
            return measure_steps_per_second(loop.adaptation, seeds)
        seconds = estimate_seconds(loop, seeds)
        return None if seconds is None else config["learn"]["env_steps"] / seconds
    finally:
        parts.close()
        resources.close()
