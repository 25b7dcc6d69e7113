"""Queries to SLURM's queue and accounts, and cancellation of jobs."""

from __future__ import annotations

import getpass
import logging
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from llmrl.results.run_records import JobEnd, Queue
from llmrl.run.queued import Queued
from llmrl.sweeps.backends.protocol import SchedulerError

log = logging.getLogger(__name__)

ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}
"""SLURM's states of jobs that have ended."""
_CANCELLED = "CANCELLED"
"""SLURM's state of a canceled job; in accounts the user who canceled it follows."""


class SlurmQueue:
    """A `Scheduler` that uses SLURM's commands on this machine."""

    @cached_property
    def cluster(self) -> str:
        """Name of the cluster; empty if it does not answer."""
        return (setting("ClusterName") or "") if shutil.which("squeue") else ""

    def ask(self, taken: Sequence[Queued]) -> list[Queue]:
        """Return the queue of this machine's cluster, with the jobs of the users in `taken`."""
        users = frozenset(launch_record.user or getpass.getuser() for launch_record in taken)
        jobs = _jobs(sorted(users)) if self.cluster else None
        if jobs is None:
            raise SchedulerError("squeue does not answer on this machine")
        states = {job: state for job, (state, _) in jobs.items()}
        reasons = {job: reason for job, (state, reason) in jobs.items() if state == "PENDING" and reason != "None"}
        ends = {job: _end(state) for job, state in states.items() if state in ENDED}
        active = {job: state for job, state in states.items() if job not in ends}
        backends = dict.fromkeys(launch_record.backend for launch_record in taken)
        return [Queue(backend, self.cluster, users, active, ends, reasons) for backend in backends]

    def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobEnd]:
        """Return the ends of jobs in the accounting database; empty if the cluster keeps none."""
        if not job_ids or not shutil.which("sacct"):
            return {}
        arguments = ["--format=JobID,State", "--jobs", ",".join(job_ids)]
        text = output_of(["sacct", "--noheader", "--parsable2", "--allocations", *arguments])
        pairs = (line.split("|", 1) for line in (text or "").splitlines() if "|" in line)
        return {job: _end(state.split()[0]) for jobs, state in pairs if state.strip() for job in tasks_of(jobs)}

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs; running ones have the cluster's KillWait to save."""
        if not job_ids:
            return
        try:
            subprocess.run(["scancel", *job_ids], capture_output=True, text=True, timeout=60, check=True)
        except FileNotFoundError as error:
            raise SchedulerError("scancel not found on PATH") from error
        except subprocess.SubprocessError as error:
            raise SchedulerError(f"scancel failed: {getattr(error, 'stderr', '') or error}") from error


def _end(state: str) -> JobEnd:
    return JobEnd(f"SLURM: {state}", state.startswith(_CANCELLED))


def _jobs(users: Iterable[str]) -> dict[str, tuple[str, str]] | None:
    """Return state and reason by job id (`123` or `123_4`) of the jobs of `users`.

    Jobs that ended in the last minutes are included.

    None if the queue cannot be asked now.
    """
    text = output_of(
        ["squeue", "--noheader", "--array", "--states=all", f"--user={','.join(users)}", "--format=%i|%T|%r"]
    )
    if text is None:
        return None
    jobs = {}
    for line in text.splitlines():
        if "|" in line:
            job, state, *reason = line.strip().split("|", 2)
            jobs[job] = state, "".join(reason)
    return jobs


def tasks_of(jobs: str) -> list[str]:
    """Return the jobs of one line of accounts: tasks of an array that never started share a line.

    >>> tasks_of("12"), tasks_of("12_3"), tasks_of("12_[0-1,4%2]")
    (['12'], ['12_3'], ['12_0', '12_1', '12_4'])
    """
    match = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", jobs)
    if match is None:
        return [jobs]
    ranges = [part.split("-") for part in match[2].split(",") if part.strip("-")]
    return [f"{match[1]}_{task}" for bounds in ranges for task in range(int(bounds[0]), int(bounds[-1]) + 1)]


def setting(name: str) -> str | None:
    """Return a field of the cluster's configuration; None if the cluster does not answer."""
    match = re.search(rf"^{name}\s*=\s*(\S+)", output_of(["scontrol", "show", "config"]) or "", re.MULTILINE)
    return match.group(1) if match else None


def output_of(command: list[str]) -> str | None:
    """Return the output of one of SLURM's commands; None if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("%s: %s", command[0], error)
        return None
