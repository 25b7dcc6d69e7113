"""What a sweep would do: the one table that `--multirun dry_run=true` prints."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from llmrl.core.seeding import Seeds
from llmrl.experiment import reference_line_runs, run_references
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.models import asking
from llmrl.experiment.parts import build_loop, build_parts, loop_kind
from llmrl.experiment.plan import costs
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.resources import RunResources
from llmrl.experiment.run_batching_key import why_alone
from llmrl.experiment.sweep_jobs import PlannedRun, jobs_of
from llmrl.llms.client import ChatClient
from llmrl.loops.design import DesignLoop
from llmrl.loops.rehearsals import estimate_seconds, steps_per_second
from llmrl.run.folder import split_overrides
from llmrl.run.folder_names import title
from llmrl.run.progress_bar import duration
from llmrl.sweeps.backends.protocol import Job, Pack
from llmrl.sweeps.jobs import check_distinct, missing
from llmrl.sweeps.launch import by_backend
from llmrl.sweeps.scheduling import ask_schedulers

COLUMNS = ("run", "runs", "environment steps", "LLM calls", "cost", "alone in its process, because")
"""Of the table."""


class SweepPlan(NamedTuple):
    """What a sweep would do.

    Attributes:
        title: of the table, with the processes and the time.
        rows: of the table, as `COLUMNS`.
        requests: what is requested from a scheduler; empty if runs are computed here.
    """

    title: str
    rows: list[list[str]]
    requests: list[str]


@dataclass
class _Numbers:
    """What one run comes to; None: it is not known, of calls and costs also that there are none.

    Attributes:
        env_steps: most environment steps, summed over games.
        calls, most_calls: of a language model, expected and with all repairs.
        asks: whether a model is asked.
        cost, most_cost: US dollars.
        before: runs that are computed once before it.
    """

    env_steps: int | None = None
    calls: int | None = None
    most_calls: int | None = None
    asks: bool = False
    cost: float | None = None
    most_cost: float | None = None
    before: list[PrerequisiteRun] = field(default_factory=list)


def sweep_plan(runs: Sequence[PlannedRun], differing: set[str] | None = None) -> SweepPlan:
    """Build the parts of every experiment once, whatever its seeds, and return what the sweep would do.

    Args:
        runs, differing: as `compute_sweep` takes them; of `llmrl-train`.

    Raises:
        LlmrlError: the parts of a run cannot work together, or a run makes no sense.
    """
    jobs = jobs_of(runs, differing)
    check_distinct(jobs)
    configs = {job.folder: run.experiment for job, run in zip(jobs, runs, strict=True)}
    todo, done = missing(jobs, ask_schedulers({job.folder for job in jobs}))
    kinds: dict[str, list[Job]] = {}
    for job in todo:
        kinds.setdefault(job.digest, []).append(job)
    numbers = {digest: _numbers(configs[alike[0].folder]) for digest, alike in kinds.items()}
    first = _first(todo, numbers.values())
    packs = [pack for group in by_backend(todo) for pack in group[0].hardware.backend.packs(group)]
    rows = [_row(alike, numbers[digest]) for digest, alike in kinds.items()]
    rows += [[f"before them: {run.name}", "1", f"{run.env_steps:,}", "-", "-", ""] for run in first]
    rows.append(_in_all(todo, numbers, first))
    heading = "Plan of the sweep (dry_run=true: every part was built; beside a few steps for the time, nothing was run)"
    told = f"{len(todo):,} runs in {_processes(packs)}"
    told += f"; {len(done):,} are finished or somebody else's" if done else ""
    title = "\n".join([heading, told, _time(packs, configs, numbers, first)])
    requests = [text for group in by_backend(todo) for text in _requests(group)]
    return SweepPlan(title, rows, requests)


def _requests(jobs: Sequence[Job]) -> list[str]:
    """What is requested from the scheduler of these jobs, which have the same backend."""
    backend = jobs[0].hardware.backend
    return backend.requests(backend.packs(jobs))


def _numbers(experiment: Experiment) -> _Numbers:
    """What the run of an experiment comes to."""
    config, means = experiment.config, experiment.resources
    parts = build_parts(config, means.model, resources=means)
    try:
        loop = build_loop(config, parts)
        found = _Numbers(before=reference_line_runs.needed(config, parts, loop))
        if isinstance(loop, DesignLoop):
            found.env_steps = loop.env_steps
        elif "learn" in config:
            found.env_steps = config["learn"]["env_steps"]
        found.asks = bool(asking(config))
        estimate = loop.estimate()
        if isinstance(parts.llm, ChatClient) and estimate is not None:
            found.calls, found.most_calls = estimate.calls, estimate.most_calls
            found.cost, found.most_cost = costs(estimate, parts.llm)
        return found
    finally:
        parts.close()
        means.close()


def _first(jobs: Sequence[Job], numbers: Iterable[_Numbers]) -> list[PrerequisiteRun]:
    """The runs that are computed before others, each once: those referred to, and those behind reference lines."""
    referred = [run for job in jobs for run in run_references.needed(job.config)]
    behind = [run for each in numbers for run in each.before]
    found = {run.folder: run for run in [*referred, *behind]}
    return [run for folder, run in found.items() if not run.finished]


def _row(alike: Sequence[Job], each: _Numbers) -> list[str]:
    """Runs that differ in their seeds."""
    n, reason = len(alike), why_alone(alike[0].config)
    calls, cost = _calls(each, n), _money(each, n)
    steps = "unknown" if each.env_steps is None else f"{n * each.env_steps:,}"
    name = title(split_overrides(alike[0].naming)) or alike[0].folder.parent.name
    return [name, f"{n:,}", steps, calls, cost, "" if reason is None else str(reason)]


def _in_all(jobs: Sequence[Job], numbers: Mapping[str, _Numbers], first: Sequence[PrerequisiteRun]) -> list[str]:
    """The sums; of what is known of some runs only, no sum."""
    each = [numbers[job.digest] for job in jobs]
    steps = [one.env_steps for one in each] + [run.env_steps for run in first]
    whole = "unknown" if None in steps else f"{sum(step or 0 for step in steps):,}"
    asking_ones = [one for one in each if one.asks]
    total = _Numbers(asks=bool(asking_ones))
    for name in ("calls", "most_calls", "cost", "most_cost"):
        values = [getattr(one, name) for one in asking_ones]
        setattr(total, name, None if None in values else sum(values))
    return ["in all", f"{len(jobs) + len(first):,}", whole, _calls(total, 1), _money(total, 1), ""]


def _calls(each: _Numbers, n: int) -> str:
    if not each.asks:
        return "-"
    if each.calls is None or each.most_calls is None:
        return "unknown"
    more = f", at most {n * each.most_calls:,}" if each.most_calls > each.calls else ""
    return f"{n * each.calls:,}{more}"


def _money(each: _Numbers, n: int) -> str:
    if not each.asks:
        return "-"
    if each.cost is None:
        return "unknown"
    return f"${n * each.cost:,.4g}" + ("" if each.most_cost is None else f", at most ${n * each.most_cost:,.4g}")


def _processes(packs: Sequence[Pack]) -> str:
    """Processes by their rows: `3 processes (2 of 16 runs, 1 of 1)`."""
    sizes = sorted(Counter(len(pack.jobs) for pack in packs).items(), reverse=True)
    told = ", ".join(f"{n:,} of {size:,} run{'s' * (size != 1)}" for size, n in sizes)
    return f"{len(packs):,} process{'es' * (len(packs) != 1)}" + (f": {told}" if packs else "")


def _time(
    packs: Sequence[Pack],
    configs: Mapping[Path, Experiment],
    numbers: Mapping[str, _Numbers],
    first: Sequence[PrerequisiteRun],
) -> str:
    """About how long it takes, at the speed of this machine."""
    rates = _Rates(configs)
    seconds = []
    for pack in packs:
        steps = [numbers[job.digest].env_steps for job in pack.jobs]
        rate = None if None in steps else rates.of(pack)
        if rate is None:
            return "time: unknown, as there are runs whose steps cannot be timed beforehand"
        seconds.append(sum(step or 0 for step in steps) / rate)
    if not packs:
        return "time: none"
    before = sum(run.env_steps for run in first) / (rates.of(Pack(packs[0].jobs[:1])) or 1.0) if first else 0.0
    places = packs[0].hardware.backend.at_once(packs)
    side_by_side = f"{places:,} at once" if places is not None else "all at once, if the cluster has room"
    waits = ", and replies of language models" if any(numbers[j.digest].asks for p in packs for j in p.jobs) else ""
    took = before + longest(seconds, places or len(seconds))
    return f"time: about {duration(took)} at the speed of this machine, {side_by_side}{waits}"


def longest(seconds: Sequence[float], places: int) -> float:
    """Return when the last of processes that take so long is over: each begins, in their order, where one has ended.

    >>> longest([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    ends = [0.0] * min(places, len(seconds))
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends, default=0.0)


class _Rates:
    """Environment steps a second of processes, each shape and number of rows measured once.

    Rows are timed as so many societies of one run: these are the same batches.

    Args:
        configs: the runs of the sweep, by folder.
    """

    def __init__(self, configs: Mapping[Path, Experiment]) -> None:
        self._configs = configs
        self._known: dict[tuple[str, int], float | None] = {}

    def of(self, pack: Pack) -> float | None:
        """Steps a second, summed over all games of a process; None if they cannot be timed."""
        job, rows = pack.jobs[0], len(pack.jobs)
        key = (job.key or job.digest, rows)
        if key not in self._known:
            self._known[key] = _timed(self._configs[job.folder].config, rows)
        return self._known[key]


def _timed(config: Mapping[str, Any], rows: int) -> float | None:
    """Return the steps a second of so many runs like this one; None for other loops than mechanism design and learning,
    and where agents ask a language model."""
    kind = loop_kind(config)
    if kind not in ("design", "learn") or (kind == "learn" and rows > 1) or asking(config, ("agent", "teacher")):
        return None
    if rows > 1:
        config = {
            **config,
            "env": {**config["env"], "n_envs": rows * config["env"]["n_envs"]},
            "design": {**config["design"], "replicates": rows * config["design"]["replicates"]},
        }
    experiment = Experiment(config)
    means: RunResources = experiment.resources
    parts = build_parts(config, means.model, resources=means)
    try:
        loop = build_loop(config, parts)
        seeds = Seeds(config["seed"]).child("rehearsal")
        if isinstance(loop, DesignLoop):
            return steps_per_second(loop.adaptation, seeds)
        seconds = estimate_seconds(loop, seeds)
        return None if seconds is None else config["learn"]["env_steps"] / seconds
    finally:
        parts.close()
        means.close()
