"""Division of the runs of a sweep into batches, one for each process; runs with equal batch keys may share one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from llmrl.core.secrets import get_redaction_environment
from llmrl.sweeps.backends.protocol import Job, JobBatch
from llmrl.sweeps.payload import BatchFunction, ProcessPayload, RunExit, RunFunction, RunPayload

T = TypeVar("T")

_UNLIMITED_N_RUNS = 1_000_000
"""Number of runs that no batch reaches, in place of infinity."""


@dataclass(frozen=True)
class BatchableRunFunction:
    """A `RunFunction` that also has a function for several runs as one batch.

    Attributes:
        run_function: function that executes one run.
        batch_function: function that executes several runs with equal batch keys.
    """

    run_function: RunFunction
    batch_function: BatchFunction

    def __call__(self, config: dict[str, Any], overrides: list[str]) -> float | None:
        return self.run_function(config, overrides)


def build_process_payload(batch: JobBatch, run_function: RunFunction, environment: Mapping[str, str]) -> ProcessPayload:
    """Return the payload of the process that computes a batch.

    Args:
        batch: runs of the process.
        run_function: function that executes a run; a `BatchableRunFunction` if there are several.
        environment: environment variables to set; variables of a run override them.
    """
    common_environment = {**get_redaction_environment(), **environment}
    payloads = [
        RunPayload(
            run_function, job.config, job.overrides, job.folder, common_environment | job.environment, job.batch_key
        )
        for job in batch.jobs
    ]
    if isinstance(run_function, BatchableRunFunction):
        return ProcessPayload(payloads, run_function.batch_function)
    return ProcessPayload(payloads, _raise_not_batchable)


def distribute_round_robin(items: Sequence[T], n_lists: int) -> list[list[T]]:
    """Distribute items in turn to at most `n_lists` lists, none of them empty; sizes differ by at most one.

    >>> distribute_round_robin("abcde", 2)
    [['a', 'c', 'e'], ['b', 'd']]
    """
    n_nonempty = min(n_lists, len(items))
    return [list(items[i::n_nonempty]) for i in range(n_nonempty)]


def make_batches_for_machine(jobs: Sequence[Job], n_processes: int, memory_gb: float) -> list[JobBatch]:
    """Divide jobs into batches for `n_processes` parallel processes with `memory_gb` gigabytes in total.

    Runs with equal batch keys are distributed evenly over `n_processes` batches, or over more if memory requires it.
    """
    batches = []
    for group in _group_by_batch_key(jobs):
        n_batches = max(n_processes, -(-len(group) // _compute_max_runs(group[0], memory_gb / n_processes)))
        batches += [JobBatch(tuple(sublist)) for sublist in distribute_round_robin(group, n_batches)]
    return batches


def make_batches_for_n_processes(jobs: Sequence[Job], n_processes: int | None) -> list[JobBatch]:
    """Divide jobs into `n_processes` batches; None: one batch for each job.

    There are more batches if batch keys or `hardware.rows` require it, and fewer if there are fewer jobs. The jobs with
    the batch key of the largest batches are divided first.
    """
    if n_processes is None or len(jobs) <= n_processes:
        return [JobBatch((job,)) for job in jobs]
    groups = _group_by_batch_key(jobs)
    n_batches = [-(-len(group) // _compute_max_runs(group[0], None)) for group in groups]
    while sum(n_batches) < n_processes:
        max_runs, negative_index = max(
            (-(-len(group) // n), -i) for i, (group, n) in enumerate(zip(groups, n_batches, strict=True))
        )
        if max_runs == 1:
            break
        n_batches[-negative_index] += 1
    return [
        JobBatch(tuple(sublist))
        for group, n in zip(groups, n_batches, strict=True)
        for sublist in distribute_round_robin(group, n)
    ]


def group_by_key(items: Sequence[T], key: Callable[[T], object]) -> list[list[T]]:
    """Group items by equal keys, which need not be hashable; groups are in the order of their first items.

    >>> group_by_key([1, 2, 3, 4], lambda number: [number % 2])
    [[1, 3], [2, 4]]
    """
    keys: list[object] = []
    groups: list[list[T]] = []
    for item in items:
        if (key_of_item := key(item)) not in keys:
            keys.append(key_of_item)
            groups.append([])
        groups[keys.index(key_of_item)].append(item)
    return groups


def _group_by_batch_key(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group jobs by equal batch keys; a job without a key is its own group."""
    return group_by_key(jobs, lambda job: id(job) if job.batch_key is None else job.batch_key)


def _compute_max_runs(job: Job, memory_gb: float | None) -> int:
    """Return the maximum number of runs like `job` in a process with `memory_gb` gigabytes; None: unlimited memory."""
    max_runs, run_memory_gb = job.hardware.rows, job.hardware.memory_gb
    if max_runs != "auto":
        return max_runs
    if memory_gb is None:
        return _UNLIMITED_N_RUNS
    if not job.is_batching_faster:
        return 1
    additional_gb = run_memory_gb if job.additional_memory_gb is None else job.additional_memory_gb
    return 1 + int(min(max(memory_gb - run_memory_gb, 0.0) / additional_gb, _UNLIMITED_N_RUNS))


def _raise_not_batchable(payloads: Sequence[RunPayload]) -> list[RunExit]:
    raise TypeError("this function executes only one run at a time; use a BatchableRunFunction for several")
