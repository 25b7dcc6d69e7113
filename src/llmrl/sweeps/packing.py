"""Distribution of the runs of a sweep over processes; runs with equal keys may share one, as its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from llmrl.core.secrets import redaction_environment
from llmrl.sweeps.backends.protocol import Job, Pack
from llmrl.sweeps.work import BatchTask, JobWork, PackWork, RunExit, Task

T = TypeVar("T")

_UNLIMITED_ROWS = 1_000_000
"""A number of rows larger than any process has."""


@dataclass(frozen=True)
class SharedTask:
    """A `Task` that can also compute several runs at once.

    Attributes:
        one: function that computes one run.
        rows: function that computes several runs with equal keys.
    """

    one: Task
    rows: BatchTask

    def __call__(self, config: dict[str, Any], overrides: list[str]) -> float | None:
        return self.one(config, overrides)


def build_work(pack: Pack, task: Task, environment: Mapping[str, str]) -> PackWork:
    """Return the work of the process of a pack.

    Args:
        pack: runs of the process.
        task: task of the runs; a `SharedTask` if there are several.
        environment: environment variables to set, which those of the runs override.
    """
    shared = {**redaction_environment(), **environment}
    works = [JobWork(task, j.config, j.overrides, j.folder, {**shared, **j.environment}, j.key) for j in pack.jobs]
    return PackWork(works, task.rows if isinstance(task, SharedTask) else _raise_unshareable)


def distribute(items: Sequence[T], n_lists: int) -> list[list[T]]:
    """Return `items` distributed in turn to at most `n_lists` lists, none of them empty; sizes differ by at most one.

    >>> distribute("abcde", 2)
    [['a', 'c', 'e'], ['b', 'd']]
    """
    n = min(n_lists, len(items))
    return [list(items[i::n]) for i in range(n)]


def pack_for_machine(jobs: Sequence[Job], n_processes: int, memory_gb: float) -> list[Pack]:
    """Return the packs of jobs for `n_processes` parallel processes with `memory_gb` gigabytes in total.

    Runs with equal keys are distributed evenly over `n_processes` processes, or over more if the memory requires it.
    """
    packs = []
    for group in _group_equal_keys(jobs):
        max_rows = _compute_max_rows(group[0], memory_gb / n_processes)
        packs += [
            Pack(tuple(group_share)) for group_share in distribute(group, max(n_processes, -(-len(group) // max_rows)))
        ]
    return packs


def pack_into(jobs: Sequence[Job], n: int | None) -> list[Pack]:
    """Return the packs of jobs for `n` processes: one run each if there are at most `n` jobs, or n is None.

    There are more than `n` packs if keys or `hardware.rows` require it. The packs with most rows are divided first.
    """
    if n is None or len(jobs) <= n:
        return [Pack((job,)) for job in jobs]
    groups = _group_equal_keys(jobs)
    n_packs = [-(-len(group) // _compute_max_rows(group[0], None)) for group in groups]
    while sum(n_packs) < n:
        rows, i = max((-(-len(group) // k), -i) for i, (group, k) in enumerate(zip(groups, n_packs, strict=True)))
        if rows == 1:
            break
        n_packs[-i] += 1
    return [
        Pack(tuple(group_share))
        for group, k in zip(groups, n_packs, strict=True)
        for group_share in distribute(group, k)
    ]


def group_equal(items: Sequence[T], key: Callable[[T], object]) -> list[list[T]]:
    """Return items in groups of equal keys, which need not be hashable, in the order of their first items.

    >>> group_equal([1, 2, 3, 4], lambda number: [number % 2])
    [[1, 3], [2, 4]]
    """
    keys: list[object] = []
    groups: list[list[T]] = []
    for item in items:
        if (item_key := key(item)) not in keys:
            keys.append(item_key)
            groups.append([])
        groups[keys.index(item_key)].append(item)
    return groups


def _group_equal_keys(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return jobs in groups of equal keys; a job without a key is its own group."""
    return group_equal(jobs, lambda job: id(job) if job.key is None else job.key)


def _compute_max_rows(job: Job, memory_gb: float | None) -> int:
    """Return the maximum number of runs like `job` in a process with `memory_gb` gigabytes; None: unlimited memory."""
    rows, run_gb = job.hardware.rows, job.hardware.memory_gb
    if rows != "auto":
        return rows
    if memory_gb is None:
        return _UNLIMITED_ROWS
    if not job.gains:
        return 1
    row = run_gb if job.row_gb is None else job.row_gb
    return 1 + int(min(max(memory_gb - run_gb, 0.0) / row, _UNLIMITED_ROWS))


def _raise_unshareable(works: Sequence[JobWork]) -> list[RunExit]:
    raise TypeError("this task computes only one run at a time; use a SharedTask for several")
