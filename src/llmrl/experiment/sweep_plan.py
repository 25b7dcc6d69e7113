"""The plan of a sweep: the table that `--multirun dry_run=true` prints."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from llmrl.loops.rehearsals import estimate_seconds, steps_per_second
from llmrl.run.folder import split_overrides, title
from llmrl.run.progress_bar import duration
from llmrl.sweeps.backends.protocol import Job, Pack
from llmrl.sweeps.jobs import check_distinct, missing
from llmrl.sweeps.launch import group_by_backend
from llmrl.sweeps.scheduling import ask_schedulers

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
    packs, requests = job_requests(todo)
    rows = [_row(kind_jobs, numbers[digest]) for digest, kind_jobs in kinds.items()]
    rows += [[f"before them: {run.name}", "1", f"{run.env_steps:,}", "-", "-", ""] for run in first]
    rows.append(_total_row(todo, numbers, first))
    heading = "Plan of the sweep (dry_run=true: all parts were built, and a few steps were run to estimate the time)"
    summary = f"{len(todo):,} runs in {_processes(packs)}"
    summary += f"; {len(done):,} are finished or computed by another process" if done else ""
    title = "\n".join([heading, summary, _time(packs, configs, numbers, first)])
    return SweepPlan(title, rows, requests)


def job_requests(jobs: Sequence[Job]) -> tuple[list[Pack], list[str]]:
    """Return the processes of jobs, and the requests to a scheduler for them."""
    packs: list[Pack] = []
    requests: list[str] = []
    for group in group_by_backend(jobs):
        backend = group[0].hardware.backend
        group_packs = backend.packs(group)
        packs += group_packs
        requests += backend.requests(group_packs)
    return packs, requests


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
        numbers.asks = bool(groups_using_model(config, builder=resources.builder))
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


def _time(
    packs: Sequence[Pack],
    configs: Mapping[Path, Experiment],
    numbers: Mapping[str, _Numbers],
    first: Sequence[PrerequisiteRun],
) -> str:
    """Return a text with the approximate time of the sweep, at the speed of this machine."""
    rates = _Rates(configs)
    seconds = []
    for pack in packs:
        steps = [numbers[job.digest].env_steps for job in pack.jobs]
        rate = None if None in steps else rates.of(pack)
        if rate is None:
            return "time: unknown, because the steps of some runs cannot be timed beforehand"
        seconds.append(sum(step or 0 for step in steps) / rate)
    if not packs:
        return "time: none"
    setup_seconds = sum(run.env_steps for run in first) / (rates.of(Pack(packs[0].jobs[:1])) or 1.0) if first else 0.0
    places = packs[0].hardware.backend.at_once(packs)
    concurrency = f"{places:,} at once" if places is not None else "all at once, if the cluster has room"
    waits = ", and replies of language models" if any(numbers[j.digest].asks for p in packs for j in p.jobs) else ""
    total_seconds = setup_seconds + makespan(seconds, places or len(seconds))
    return f"time: about {duration(total_seconds)} at the speed of this machine, {concurrency}{waits}"


def makespan(seconds: Sequence[float], places: int) -> float:
    """Return the time at which the last of several processes ends. Each starts, in order, as soon as a place is free.

    >>> makespan([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    ends = [0.0] * min(places, len(seconds))
    for length in seconds:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends, default=0.0)


class _Rates:
    """Environment steps per second of processes, measured once for each shape and number of rows.

    Rows are timed as the same number of societies of one run, because these are the same batches.

    Args:
        configs: runs of the sweep, by folder.
    """

    def __init__(self, configs: Mapping[Path, Experiment]) -> None:
        self._configs = configs
        self._measured_rates: dict[tuple[str, int], float | None] = {}

    def of(self, pack: Pack) -> float | None:
        """Return the steps per second, summed over all games of a process; None if they cannot be timed."""
        job, rows = pack.jobs[0], len(pack.jobs)
        key = (job.key or job.digest, rows)
        if key not in self._measured_rates:
            self._measured_rates[key] = _measure_rate(self._configs[job.folder].config, rows)
        return self._measured_rates[key]


def _measure_rate(config: Mapping[str, Any], rows: int) -> float | None:
    """Return the steps per second of `rows` runs with this config.

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
            return steps_per_second(loop.adaptation, seeds)
        seconds = estimate_seconds(loop, seeds)
        return None if seconds is None else config["learn"]["env_steps"] / seconds
    finally:
        parts.close()
        resources.close()
