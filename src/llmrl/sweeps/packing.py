"""How the runs of a sweep are dealt to processes, those that may be rows of one together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llmrl.sweeps.backends.protocol import Job, Pack
from llmrl.sweeps.work import RowEnd, Task, TaskRows, Work, Works

T = TypeVar("T")

TOGETHER = 2
"""Deaths of its process after which a run is no longer a row."""
_MANY = 1_000_000
"""Rows that no process has."""


@dataclass(frozen=True)
class SharedTask:
    """A `Task` that knows how to compute several runs at once, too.

    Attributes:
        one: computes a run.
        rows: computes several, whose keys are equal.
    """

    one: Task
    rows: TaskRows

    def __call__(self, config: dict[str, Any], overrides: list[str]) -> float | None:
        return self.one(config, overrides)


def works_of(pack: Pack, task: Task, environment: Mapping[str, str]) -> Works:
    """Return what the process of a pack calls.

    Args:
        pack: its runs.
        task: a `SharedTask` where these are several.
        environment: variables to set, beside those of the runs.
    """
    works = [Work(task, j.config, j.overrides, j.folder, {**environment, **j.environment}, j.key) for j in pack.jobs]
    return Works(works, task.rows if isinstance(task, SharedTask) else _alone)


def dealt(items: Sequence[T], hands: int) -> list[list[T]]:
    """Return `items` dealt to so many hands as cards are, none of them empty; sizes differ by one at most.

    >>> dealt("abcde", 2)
    [['a', 'c', 'e'], ['b', 'd']]
    """
    n = min(hands, len(items))
    return [list(items[i::n]) for i in range(n)]


def packed_over(jobs: Sequence[Job], places: int, memory_gb: float) -> list[Pack]:
    """Return the processes of jobs where `places` of them go side by side in `memory_gb` together: runs with equal keys
    are dealt evenly over all places, or more processes, if so many rows have no room."""
    packs = []
    for alike in _by_key(jobs):
        most = _most_rows(alike[0], memory_gb / places)
        packs += [Pack(tuple(hand)) for hand in dealt(alike, max(places, -(-len(alike) // most)))]
    return packs


def packed_into(jobs: Sequence[Job], n: int | None) -> list[Pack]:
    """Return the processes of jobs where there are to be `n`: all alone if they are no more, or n is None, and else as
    many as that, if there are so few keys. Those with many rows are divided first."""
    if n is None or len(jobs) <= n:
        return [Pack((job,)) for job in jobs]
    groups = _by_key(jobs)
    hands = [-(-len(alike) // _most_rows(alike[0], None)) for alike in groups]
    while sum(hands) < n:
        rows, i = max((-(-len(alike) // k), -i) for i, (alike, k) in enumerate(zip(groups, hands, strict=True)))
        if rows == 1:
            break
        hands[-i] += 1
    return [Pack(tuple(hand)) for alike, k in zip(groups, hands, strict=True) for hand in dealt(alike, k)]


def put_back(jobs: Sequence[Job], deaths: Mapping[Path, int]) -> list[Pack]:
    """Return the processes that go on with runs whose process has died: the same again, but those that were there at
    `TOGETHER` deaths or more are alone, so that the one that kills takes no other with it.

    Args:
        jobs: that had not ended.
        deaths: of a process of each, by run folder, this one counted.
    """
    together = tuple(job for job in jobs if deaths[job.folder] < TOGETHER)
    alone = [Pack((job,)) for job in jobs if deaths[job.folder] >= TOGETHER]
    return [*([Pack(together)] if together else []), *alone]


def _by_key(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs with equal keys together, in the order of the first of each; those without one by themselves."""
    groups: dict[object, list[Job]] = {}
    for i, job in enumerate(jobs):
        groups.setdefault(i if job.key is None else job.key, []).append(job)
    return list(groups.values())


def _most_rows(job: Job, memory_gb: float | None) -> int:
    """Most runs like this one that a process may have, if it is to have so much memory; None: as much as it needs."""
    rows, own = job.hardware.rows, job.hardware.memory_gb
    if rows != "auto":
        return rows
    if memory_gb is None:
        return _MANY
    if not job.gains:
        return 1
    row = own if job.row_gb is None else job.row_gb
    return 1 + int(min(max(memory_gb - own, 0.0) / row, _MANY))


def _alone(works: Sequence[Work]) -> list[RowEnd]:
    raise TypeError("this task computes one run at a time; several need a SharedTask")
