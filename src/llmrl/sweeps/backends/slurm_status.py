"""What SLURM knows of jobs: its queue, its accounts, and cancelling."""

from __future__ import annotations

import getpass
import logging
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from llmrl.analysis.runs import JobEnd, Queue
from llmrl.run.queued import Queued
from llmrl.sweeps.backends.protocol import SchedulerError
from llmrl.sweeps.backends.slurm_pending_reasons import in_words

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
"""SLURM's words for jobs nobody will go on with."""
_CANCELLED = "CANCELLED"
"""Its word, in accounts with who did it, for a job that was taken back."""


class SlurmQueue:
    """SLURM's commands of this machine, as a `Scheduler`."""

    @cached_property
    def cluster(self) -> str:
        """The cluster's name; empty if it does not answer."""
        return (setting("ClusterName") or "") if shutil.which("squeue") else ""

    def ask(self, taken: Sequence[Queued]) -> list[Queue]:
        """Return the queue of this machine's cluster, of the users whose jobs these are."""
        users = frozenset(queued.user or getpass.getuser() for queued in taken)
        jobs = _jobs(sorted(users)) if self.cluster else None
        if jobs is None:
            raise SchedulerError("squeue does not answer here")
        states = {job: state for job, (state, _) in jobs.items()}
        reasons = {
            job: words for job, (state, reason) in jobs.items() if state == "PENDING" and (words := in_words(reason))
        }
        ended = {job: _end(state) for job, state in states.items() if state in ENDED}
        active = {job: state for job, state in states.items() if job not in ended}
        backends = dict.fromkeys(queued.backend for queued in taken)
        return [Queue(backend, self.cluster, users, active, ended, reasons) for backend in backends]

    def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobEnd]:
        """Return what the accounting database tells; nothing where the cluster keeps none."""
        if not job_ids or not shutil.which("sacct"):
            return {}
        chosen = ["--format=JobID,State", "--jobs", ",".join(job_ids)]
        text = output_of(["sacct", "--noheader", "--parsable2", "--allocations", *chosen])
        pairs = (line.split("|", 1) for line in (text or "").splitlines() if "|" in line)
        return {job: _end(state.split()[0]) for jobs, state in pairs if state.strip() for job in tasks_of(jobs)}

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs; those that run have the cluster's KillWait to save."""
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
    """State and reason by job id (`123` or `123_4`) of the jobs of `users`, those that ended in the last minutes
    included.

    None if the queue cannot be asked now.
    """
    text = output_of(
        ["squeue", "--noheader", "--array", "--states=all", f"--user={','.join(users)}", "--format=%i|%T|%r"]
    )
    if text is None:
        return None
    found = {}
    for line in text.splitlines():
        if "|" in line:
            job, state, *reason = line.strip().split("|", 2)
            found[job] = state, "".join(reason)
    return found


def tasks_of(jobs: str) -> list[str]:
    """Return the jobs that one line of accounts is about: tasks of an array that never began share one.

    >>> tasks_of("12"), tasks_of("12_3"), tasks_of("12_[0-1,4%2]")
    (['12'], ['12_3'], ['12_0', '12_1', '12_4'])
    """
    found = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", jobs)
    if found is None:
        return [jobs]
    ranges = [part.split("-") for part in found[2].split(",") if part.strip("-")]
    return [f"{found[1]}_{task}" for each in ranges for task in range(int(each[0]), int(each[-1]) + 1)]


def setting(name: str) -> str | None:
    """Return a field of the cluster's configuration; None if it does not answer."""
    found = re.search(rf"^{name}\s*=\s*(\S+)", output_of(["scontrol", "show", "config"]) or "", re.MULTILINE)
    return found.group(1) if found else None


def output_of(command: list[str]) -> str | None:
    """Return what one of SLURM's commands prints; None if it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("%s: %s", command[0], error)
        return None
