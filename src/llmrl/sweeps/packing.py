"""Distribution of the runs of a sweep over processes; runs with equal keys may share one, as a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from llmrl.core.secrets import redaction_environment
from llmrl.sweeps.backends.protocol import Job, Pack
from llmrl.sweeps.payload import BatchFunction, ProcessPayload, RunExit, RunFunction, RunPayload

T = TypeVar("T")

_UNLIMITED_ROWS = 1_000_000
"""A number of rows larger than any process has."""


@dataclass(frozen=True)
class BatchableRunFunction:
    """A `RunFunction` with a function that executes several runs as one batch.

    Attributes:
        single: function that executes one run.
        batch: function that executes several runs with equal batch keys.
    """

    single: RunFunction
    batch: BatchFunction

    def __call__(self, config: dict[str, Any], overrides: list[str]) -> float | None:
        return self.single(config, overrides)


def build_payload(pack: Pack, run_function: RunFunction, environment: Mapping[str, str]) -> ProcessPayload:
    """Return the payload of the process of a pack.

    Args:
        pack: runs of the process.
        run_function: function that executes a run; a `BatchableRunFunction` if there are several.
        environment: environment variables to set, which those of the runs override.
    """
    shared = {**redaction_environment(), **environment}
    payloads = [
        RunPayload(run_function, j.config, j.overrides, j.folder, {**shared, **j.environment}, j.batch_key)
        for j in pack.jobs
    ]
    return ProcessPayload(
        payloads, run_function.batch if isinstance(run_function, BatchableRunFunction) else _raise_unshareable
    )


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
    return group_equal(jobs, lambda job: id(job) if job.batch_key is None else job.batch_key)


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


def _raise_unshareable(payloads: Sequence[RunPayload]) -> list[RunExit]:
    raise TypeError("this function executes only one run at a time; use a BatchableRunFunction for several")
