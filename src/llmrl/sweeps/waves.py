"""The order of jobs that need one another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmrl.run.queued import read_queued
from llmrl.sweeps.backends.protocol import Job


def waves(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return jobs wave by wave: each comes after those of `jobs` that it waits for, and else as early as it can.

    Jobs that another one waits for and that are not among `jobs` are done, or somebody else's.
    """
    here = {job.folder for job in jobs}
    depth: dict[Path, int] = {}

    def depth_of(job: Job) -> int:
        if job.folder not in depth:
            depth[job.folder] = max((1 + depth_of(each) for each in job.after if each.folder in here), default=0)
        return depth[job.folder]

    found: list[list[Job]] = [[] for _ in range(1 + max(map(depth_of, jobs), default=-1))]
    for job in jobs:
        found[depth_of(job)].append(job)
    return found


def ids_before(jobs: Sequence[Job], sweep_folder: Path) -> list[str]:
    """Return the ids of the jobs of this launch that `jobs` wait for, as they were written down when submitted."""
    folders = dict.fromkeys(each.folder for job in jobs for each in job.after)
    taken = [queued for folder in folders if (queued := read_queued(folder)) is not None]
    return [queued.job_id for queued in taken if queued.job_id and queued.sweep == str(sweep_folder)]
