"""The plan of a sweep: the table that `--multirun dry_run=true` prints."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llmrl.config.loop_sections import get_loop_kind
from llmrl.core.seeding import Seeds
from llmrl.experiment import reference_line_runs, run_references
from llmrl.experiment.batched_runs import SeparateProcessReason, find_separate_process_reason
from llmrl.experiment.config_completion import groups_using_model
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import estimate_costs
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.sweep_jobs import build_jobs
from llmrl.llms.client import ChatClient
from llmrl.loops.design import DesignLoop
from llmrl.loops.rehearsals import estimate_seconds, measure_steps_per_second
from llmrl.run.folder import format_overrides, split_overrides
from llmrl.run.progress_bar import format_duration
from llmrl.sweeps.backends.protocol import Job, JobBatch
from llmrl.sweeps.jobs import check_distinct_folders, find_missing_jobs
from llmrl.sweeps.launch import group_by_backend
from llmrl.sweeps.scheduling import query_schedulers

PLAN_COLUMNS = ("run", "runs", "environment steps", "LLM calls", "cost", "not batched, because")
"""Columns of the table; the last one has the reason why a run does not share its process (`SeparateProcessReason`)."""


@dataclass(frozen=True)
class _RunEstimate:
    """Estimate of the size and cost of one run; unknown numbers are NaN.

    Attributes:
        env_steps: maximum number of environment steps, summed over games.
        uses_model: whether the run uses a language model; without one, calls and costs have no meaning.
        calls, max_calls: number of calls of a language model: expected, and with all possible repairs.
        cost, max_cost: costs of `calls` and `max_calls`, US dollars.
        prerequisites: runs that measure its reference lines.
    """

    env_steps: float
    uses_model: bool
    calls: float = math.nan
    max_calls: float = math.nan
    cost: float = math.nan
    max_cost: float = math.nan
    prerequisites: list[PrerequisiteRun] = field(default_factory=list)


def plan_sweep(
    runs: Sequence[Experiment], differing_keys: set[str] | None = None
) -> tuple[str, list[list[str]], list[str]]:
    """Return the plan of a sweep; the parts of runs that differ only in their seeds are built once.

    Args:
        runs: runs of `llmrl-train`.
        differing_keys: see `compute_sweep`.

    Returns:
        Title of the table, with the number of processes and the time; rows of the table (columns: `PLAN_COLUMNS`); and
        descriptions of the requests to a scheduler, empty if this machine computes the runs.

    Raises:
        LlmrlError: the parts of a run cannot work together, or the config of a run is invalid.
    """
    jobs = build_jobs(runs, differing_keys)
    check_distinct_folders(jobs)
    experiments = {job.folder: run for job, run in zip(jobs, runs, strict=True)}
    missing_jobs, other_jobs = find_missing_jobs(jobs, query_schedulers({job.folder for job in jobs}))
    jobs_by_digest: dict[str, list[Job]] = {}
    for job in missing_jobs:
        jobs_by_digest.setdefault(job.config_digest, []).append(job)
    estimates = {
        digest: _estimate_run(experiments[digest_jobs[0].folder]) for digest, digest_jobs in jobs_by_digest.items()
    }
    # Runs that missing runs refer to, and runs that measure their reference lines.
    prerequisites = [run for job in missing_jobs for run in run_references.list_referenced_runs(job.config)]
    prerequisites += [run for estimate in estimates.values() for run in estimate.prerequisites]
    unfinished_prerequisites = [run for run in {run.folder: run for run in prerequisites}.values() if not run.finished]
    batches, requests = make_batches_and_requests(missing_jobs)
    rows = [_build_experiment_row(digest_jobs, estimates[digest]) for digest, digest_jobs in jobs_by_digest.items()]
    rows += [[f"before them: {run.name}", "1", f"{run.env_steps:,}", "-", "-", ""] for run in unfinished_prerequisites]
    rows.append(_build_row("in all", [estimates[job.config_digest] for job in missing_jobs], unfinished_prerequisites))
    heading = "Plan of the sweep (dry_run=true: all parts were built, and a few steps were run to estimate the time)"
    summary = f"{len(missing_jobs):,} runs in {_format_processes(batches)}"
    summary += f"; {len(other_jobs):,} are finished or computed by another process" if other_jobs else ""
    title = "\n".join([heading, summary, _format_time(batches, experiments, estimates, unfinished_prerequisites)])
    return title, rows, requests


def make_batches_and_requests(jobs: Sequence[Job]) -> tuple[list[JobBatch], list[str]]:
    """Return the batches of jobs, one for each process, and descriptions of the requests to a scheduler for them."""
    batches: list[JobBatch] = []
    requests: list[str] = []
    for backend_jobs in group_by_backend(jobs):
        backend = backend_jobs[0].hardware.backend
        backend_batches = backend.make_batches(backend_jobs)
        batches += backend_batches
        requests += backend.describe_requests(backend_batches)
    return batches, requests


def _estimate_run(experiment: Experiment) -> _RunEstimate:
    """Return the estimate of the run of an experiment."""
    config, resources = experiment.config, experiment.resources
    with closing(resources), closing(build_parts(config, resources.model, resources=resources)) as parts:
        loop = build_loop(config, parts)
        learning_steps = config["learn"]["env_steps"] if "learn" in config else math.nan
        estimate = _RunEstimate(
            loop.env_steps if isinstance(loop, DesignLoop) else learning_steps,
            bool(groups_using_model(config, builder=resources.builder)),
            prerequisites=reference_line_runs.list_measurement_runs(config, parts, loop),
        )
        call_estimate = loop.estimate()
        if not isinstance(parts.llm, ChatClient) or call_estimate is None:
            return estimate
        cost, max_cost = (math.nan if cost is None else cost for cost in estimate_costs(call_estimate, parts.llm))
        calls, max_calls = call_estimate.calls, call_estimate.max_calls
        return replace(estimate, calls=calls, max_calls=max_calls, cost=cost, max_cost=max_cost)


def _build_experiment_row(jobs: Sequence[Job], estimate: _RunEstimate) -> list[str]:
    """Return the row of the table for runs that differ only in their seeds."""
    name = format_overrides(split_overrides(jobs[0].label_overrides)) or jobs[0].folder.parent.name
    return _build_row(name, [estimate] * len(jobs), reason=find_separate_process_reason(jobs[0].config))


def _build_row(
    name: str,
    estimates: Sequence[_RunEstimate],
    prerequisites: Sequence[PrerequisiteRun] = (),
    reason: SeparateProcessReason | None = None,
) -> list[str]:
    """Return a row with sums over runs; a sum is unknown if it is unknown for one run.

    Args:
        name: name of the row.
        estimates: estimate of each run.
        prerequisites: further runs, which use no language model.
        reason: reason why each run has a process of its own; None: it shares one.
    """
    env_steps = sum(run.env_steps for run in estimates) + sum(run.env_steps for run in prerequisites)
    model_runs = [estimate for estimate in estimates if estimate.uses_model]
    calls, cost = "-", "-"
    if model_runs:
        n_calls, max_calls = sum(run.calls for run in model_runs), sum(run.max_calls for run in model_runs)
        calls = _format_sum(n_calls, max_calls if max_calls > n_calls else math.nan, "{:,.0f}")
        cost = _format_sum(sum(run.cost for run in model_runs), sum(run.max_cost for run in model_runs), "${:,.4g}")
    n_runs = len(estimates) + len(prerequisites)
    return [name, f"{n_runs:,}", _format_sum(env_steps, math.nan, "{:,.0f}"), calls, cost, reason or ""]


def _format_sum(expected: float, maximum: float, template: str) -> str:
    """Return an expected sum and, if it is not NaN, the maximum as text, such as `6, at most 12`."""
    if math.isnan(expected):
        return "unknown"
    return template.format(expected) + ("" if math.isnan(maximum) else f", at most {template.format(maximum)}")


def _format_processes(batches: Sequence[JobBatch]) -> str:
    """Return the number of processes of each size as a text: `3 processes: 2 of 16 runs, 1 of 1 run`."""
    if batches and all(len(batch.jobs) == 1 for batch in batches):
        return f"{len(batches):,} process{'es' * (len(batches) != 1)} with one run each"
    sizes = sorted(Counter(len(batch.jobs) for batch in batches).items(), reverse=True)
    sizes_text = ", ".join(f"{n:,} of {size:,} run{'s' * (size != 1)}" for size, n in sizes)
    return f"{len(batches):,} process{'es' * (len(batches) != 1)}" + (f": {sizes_text}" if batches else "")


def _format_time(
    batches: Sequence[JobBatch],
    experiments: Mapping[Path, Experiment],
    estimates: Mapping[str, _RunEstimate],
    prerequisites: Sequence[PrerequisiteRun],
) -> str:
    """Return a text with the approximate time of the sweep, at the measured speed of this machine."""
    rates: dict[tuple[str, int], float | None] = {}

    def rate_of(batch: JobBatch) -> float | None:
        """Return the environment steps per second of a process, measured once for each batch key and number of runs."""
        job = batch.jobs[0]
        key = (job.batch_key or job.config_digest, len(batch.jobs))
        if key not in rates:
            rates[key] = _measure_rate(experiments[job.folder].config, len(batch.jobs))
        return rates[key]

    seconds = []
    for batch in batches:
        steps = sum(estimates[job.config_digest].env_steps for job in batch.jobs)
        rate = None if math.isnan(steps) else rate_of(batch)
        if rate is None:
            return "time: unknown, because the steps of some runs cannot be timed beforehand"
        seconds.append(steps / rate)
    if not batches:
        return "time: none"
    prerequisite_seconds = 0.0
    if prerequisites:
        single_run_rate = rate_of(JobBatch(batches[0].jobs[:1])) or 1.0
        prerequisite_seconds = sum(run.env_steps for run in prerequisites) / single_run_rate
    n_parallel = batches[0].hardware.backend.count_parallel(batches)
    concurrency = f"{n_parallel:,} at once" if n_parallel is not None else "all at once, if the cluster has room"
    uses_model = any(estimates[job.config_digest].uses_model for batch in batches for job in batch.jobs)
    wait_note = ", and replies of language models" if uses_model else ""
    total_seconds = prerequisite_seconds + compute_makespan(seconds, n_parallel or len(seconds))
    return f"time: about {format_duration(total_seconds)} at the speed of this machine, {concurrency}{wait_note}"


def compute_makespan(seconds: Sequence[float], n_parallel: int) -> float:
    """Return the time at which the last of several processes ends, in seconds after the start of the first ones.

    Processes start in order; at most `n_parallel` of them run at the same time.

    >>> compute_makespan([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    end_times = [0.0] * min(n_parallel, len(seconds))
    for duration in seconds:
        heapq.heapreplace(end_times, end_times[0] + duration)
    return max(end_times, default=0.0)


def _measure_rate(config: Mapping[str, Any], n_runs: int) -> float | None:
    """Return the environment steps per second of `n_runs` runs of a config in one process.

    Several runs are timed as one run with `n_runs` times as many societies. None for loops other than `design` and
    `learn`, for several runs of `learn`, and if agents or teachers use a language model.
    """
    kind = get_loop_kind(config)
    if (
        kind not in ("design", "learn")
        or (kind == "learn" and n_runs > 1)
        or groups_using_model(config, ("agent", "teacher"))
    ):
        return None
    if n_runs > 1:
        config = {
            **config,
            "env": {**config["env"], "n_envs": n_runs * config["env"]["n_envs"]},
            "design": {**config["design"], "replicates": n_runs * config["design"]["replicates"]},
        }
    resources = Experiment(config).resources
    with closing(resources), closing(build_parts(config, resources.model, resources=resources)) as parts:
        loop = build_loop(config, parts)
        seeds = Seeds(config["seed"]).child("rehearsal")
        if isinstance(loop, DesignLoop):
            return measure_steps_per_second(loop.adaptation, seeds)
        seconds = estimate_seconds(loop, seeds)
        return None if seconds is None else config["learn"]["env_steps"] / seconds
