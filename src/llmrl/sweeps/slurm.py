"""Runs of a sweep as SLURM jobs: submitting through submitit, waiting, cancelling."""

from __future__ import annotations

import getpass
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmrl.analysis.runs import CANCELLED, Queue, read_run
from llmrl.core.disk import why
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.run.progress import Progress
from llmrl.run.queued import Queued
from llmrl.run.signals import StopFlag
from llmrl.sweeps.hardware import THREAD_VARIABLES, Hardware, Slurm
from llmrl.sweeps.jobs import Job, Outcome, cancelled, describe, take_on
from llmrl.sweeps.work import ALONE_S, ClusterWork, Task, Work

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

_ONE_GONE = [f"--wait={ALONE_S}"]
_POLL_S = (1.0, 15.0)  # shortest and longest wait between looks at the queue
_GONE_AFTER = 2  # looks in a row without a job before it counts as over: requeueing takes a moment


class SlurmError(ConfigError):
    """SLURM refused, or is not there."""


def available() -> bool:
    """Whether SLURM's commands are on this machine."""
    return shutil.which("squeue") is not None


def cluster_name() -> str:
    """The cluster's name; empty if it does not answer."""
    return _setting("ClusterName") or ""


def _job_states(users: Iterable[str]) -> dict[str, str] | None:
    """State by job id (`123` or `123_4`) of the jobs of `users`, those that ended in the last minutes included.

    None if the queue cannot be asked now.
    """
    text = _ask(["squeue", "--noheader", "--array", "--states=all", f"--user={','.join(users)}", "--format=%i|%T"])
    if text is None:
        return None
    return dict(line.strip().split("|", 1) for line in text.splitlines() if "|" in line)


def ask_queue(users: Iterable[str] = (), cluster: str = "") -> Queue | None:
    """What the cluster has waiting or running for `users` (default: this one); None if it cannot be asked now.

    `cluster` is its name, where that is known already.
    """
    users = frozenset(users) or frozenset([getpass.getuser()])
    cluster = cluster or (cluster_name() if available() else "")
    states = _job_states(sorted(users)) if cluster else None
    if states is None:
        return None
    ended = {job: state for job, state in states.items() if state in ENDED}
    return Queue(cluster, users, {job: state for job, state in states.items() if job not in ended}, ended)


def accounted_states(ids: Sequence[str]) -> dict[str, str]:
    """State by job id from the accounting database; empty where the cluster keeps none."""
    if not ids or not shutil.which("sacct"):
        return {}
    text = _ask(
        ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State", "--jobs", ",".join(ids)]
    )
    pairs = (line.split("|", 1) for line in (text or "").splitlines() if "|" in line)
    return {job: state.split()[0] for jobs, state in pairs if state.strip() for job in _tasks(jobs)}


def _tasks(jobs: str) -> list[str]:
    """The jobs that one line of accounts is about: tasks of an array that never began share one.

    >>> _tasks("12"), _tasks("12_3"), _tasks("12_[0-1,4%2]")
    (['12'], ['12_3'], ['12_0', '12_1', '12_4'])
    """
    found = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", jobs)
    if found is None:
        return [jobs]
    ranges = [part.split("-") for part in found[2].split(",") if part.strip("-")]
    return [f"{found[1]}_{task}" for each in ranges for task in range(int(each[0]), int(each[-1]) + 1)]


def submit(jobs: Sequence[Job], task: Task, sweep_folder: Path) -> tuple[dict[Path, Queued], list[Outcome], bool]:
    """Submit all jobs, as arrays of those with equal needs, no array larger than the cluster allows.

    Returns:
        What was submitted, by run folder, an outcome for each job that could not be, and whether a signal came
        meanwhile.

    Raises:
        SlurmError: SLURM is not there.
        ConfigError: submitit is not installed.
    """
    check_available()
    folder = sweep_folder / "slurm"
    cluster, user = cluster_name(), getpass.getuser()
    submitted: dict[Path, Queued] = {}
    refused: list[Outcome] = []
    taken: list[tuple[Job, Queued]] = []
    limit = int(_setting("MaxArraySize") or 1000)
    # A signal waits until what has been submitted is written down.
    with StopFlag("no more runs are submitted") as stop:
        for job in jobs:
            try:
                taken.append((job, take_on(job, "slurm", sweep_folder, cluster=cluster, user=user)))
            except RunFolderError as error:
                refused.append(Outcome(job, job.folder, "failed", error=str(error)))
        for alike in _alike(taken):
            before = ""
            for chunk in (alike[i : i + limit] for i in range(0, len(alike), limit)):
                works = [ClusterWork(Work(task, j.config, j.overrides, j.folder, j.environment)) for j, _ in chunk]
                try:
                    if stop.requested:
                        refused += [cancelled(job) for job, _ in chunk]
                        continue
                    ids = _submit_array(works, folder, chunk[0][0], before)
                except SlurmError as error:
                    for job, queued in chunk:
                        refused.append(Outcome(job, job.folder, "refused", error=str(error)))
                        replace(queued, error=str(error)).write(job.folder)
                    continue
                before = ids[0].partition("_")[0]
                for (job, queued), job_id in zip(chunk, ids, strict=True):
                    submitted[job.folder] = replace(queued, job_id=job_id, log=str(folder / f"{job_id}_0_log.out"))
                    try:
                        submitted[job.folder].write(job.folder)
                    except RunFolderError as error:
                        log.error("job %s is submitted, and its id could not be written down: %s", job_id, error)
    return submitted, refused, stop.requested


def wait_for(jobs: Sequence[Job], submitted: dict[Path, Queued]) -> Iterator[Outcome]:
    """The outcome of each submitted job, as they end.

    A failing `squeue` is waited out: the jobs go on without it.
    """
    pending = {job.folder: job for job in jobs if job.folder in submitted}
    unseen = dict.fromkeys(pending, 0)
    delay, total = _POLL_S[0], len(pending)
    cluster = next((queued.cluster for queued in submitted.values()), "")
    with Progress(total, "runs", "slurm") as progress:
        while pending:
            queue = ask_queue(cluster=cluster)
            for folder in list(pending) if queue is not None else ():
                assert queue is not None
                gone = submitted[folder].job_id not in queue.states
                unseen[folder] = unseen[folder] + 1 if gone else 0
                if unseen[folder] >= _GONE_AFTER:
                    outcome = outcome_of(pending.pop(folder), submitted[folder], queue)
                    progress.say(describe(outcome))
                    progress.update(total - len(pending))
                    yield outcome
            if pending:
                time.sleep(delay)
                delay = min(delay * 1.3, _POLL_S[1])


def outcome_of(job: Job, queued: Queued, queue: Queue) -> Outcome:
    """What became of a job that is no longer in the queue."""
    record = read_run(job.folder, queue)
    if record.state == "running":
        return Outcome.of(job, record, state="elsewhere", skipped=True, error="another process works on it")
    begun = record.attempt > queued.attempt
    if begun and record.state in ("finished", "failed", "budget_exhausted"):
        return Outcome.of(job, record)
    word = ended_states([queued.job_id], queue).get(queued.job_id, "")
    error = record.error if begun else f"job {queued.job_id} left the queue before the run had started"
    taken_back = record.state == "cancelled" or word.startswith(CANCELLED)
    state = record.state if begun else "cancelled" if taken_back else "lost"
    return Outcome.of(job, record, state=state, error=f"{error} (SLURM: {word})" if word else error)


def ended_states(ids: Iterable[str], queue: Queue) -> dict[str, str]:
    """SLURM's word for jobs that are over, from the queue and, for older ones, the accounting database."""
    known = {job: queue.ended[job] for job in ids if job in queue.ended}
    return accounted_states(sorted(set(ids) - known.keys())) | known


def cancel(ids: Sequence[str]) -> None:
    """Cancel jobs; those that run are told to save first (SIGTERM), and have the cluster's KillWait for it.

    Raises:
        SlurmError: SLURM refused.
    """
    if ids:
        _must(["scancel", *ids])


def check_available() -> None:
    """Raise SlurmError or ConfigError unless jobs could be submitted from here."""
    absent = [command for command in ("sbatch", "srun", "squeue") if not shutil.which(command)]
    if absent:
        raise SlurmError(
            f"{' and '.join(absent)} not found on PATH: hardware=slurm_* needs SLURM's commands, as on a cluster's "
            "login node (scripts/slurm/one_node.sh sets up a cluster of one machine); hardware=local needs none"
        )
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise ConfigError("hardware=slurm_* needs submitit: pip install 'llmrl[slurm]'") from error


def _alike(taken: Sequence[tuple[Job, Queued]]) -> list[list[tuple[Job, Queued]]]:
    """Jobs grouped by what they ask of the cluster."""
    groups: list[list[tuple[Job, Queued]]] = []
    for job, queued in taken:
        for group in groups:
            if (group[0][0].hardware, group[0][0].cores) == (job.hardware, job.cores):
                group.append((job, queued))
                break
        else:
            groups.append([(job, queued)])
    return groups


def _submit_array(works: Sequence[ClusterWork], folder: Path, job: Job, before: str) -> list[str]:
    """Submit one array, or one job, of runs with the needs of `job`; returns the job ids.

    Where runs at once are limited, an array waits for the one `before` it: SLURM limits each array by itself.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    slurm = job.hardware.slurm
    assert slurm is not None
    parameters = _parameters(job.hardware, slurm, job.cores)
    if before and job.hardware.parallel is not None:
        parameters["dependency"] = f"afterany:{before}"
    try:
        executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=slurm.max_timeouts, python=slurm.python)
        executor.update_parameters(**parameters)
        with _outside_of_allocations():
            if len(works) == 1:
                return [executor.submit(works[0]).job_id]
            return [submitted.job_id for submitted in executor.submit_array(list(works))]
    except (FailedSubmissionError, FailedJobError, subprocess.CalledProcessError) as error:
        raise SlurmError(_why(error, slurm)) from error
    except OSError as error:
        raise SlurmError(f"cannot write the job's files to {folder}: {why(folder, error)}") from error


def _parameters(hardware: Hardware, slurm: Slurm, cores: int) -> dict[str, Any]:
    """submitit's parameters."""
    threads = hardware.threads or cores
    parameters: dict[str, Any] = {
        "job_name": "llmrl",
        "time": slurm.time_min,
        "mem": f"{round(hardware.memory_gb * 1000)}M",
        "cpus_per_task": cores,
        "ntasks_per_node": slurm.processes_per_node,
        "nodes": slurm.nodes,
        "signal_delay_s": slurm.warn_s,
        "stderr_to_stdout": True,
        "setup": [*(f"export {name}={threads}" for name in THREAD_VARIABLES), *(slurm.setup or [])],
        "srun_args": [*(slurm.srun_args or []), *(_ONE_GONE if slurm.processes > 1 else [])],
        "array_parallelism": hardware.parallel or 1_000_000,  # submitit's default is a limit of 256
        # A job may always go back into the queue: its run goes on where it was.
        "additional_parameters": {"requeue": True, **(slurm.extra or {})},
    }
    if hardware.gpus:
        parameters["gpus_per_node"] = hardware.gpus
    for name in ("partition", "account", "qos", "constraint"):
        if (value := getattr(slurm, name)) is not None:
            parameters[name] = value
    return parameters


def _why(error: Exception, slurm: Slurm) -> str:
    """sbatch's words, and what would work where that can be said."""
    text = str(getattr(error, "stderr", "") or error).strip()
    said = " ".join(text.replace("sbatch: error: ", "").splitlines()) or type(error).__name__
    hint = ""
    if "partition" in said.lower():
        partitions = (_ask(["sinfo", "--noheader", "--format=%R"]) or "").split()
        hint = f"; hardware.slurm.partition={slurm.partition}, and there are: {', '.join(partitions) or 'none'}"
    return f"sbatch refused: {said}{hint}"


def _setting(name: str) -> str | None:
    """A field of the cluster's configuration."""
    found = re.search(rf"^{name}\s*=\s*(\S+)", _ask(["scontrol", "show", "config"]) or "", re.MULTILINE)
    return found.group(1) if found else None


@contextmanager
def _outside_of_allocations() -> Iterator[None]:
    """Without the variables of a job this process may be in: sbatch would take them for what is wanted.

    Where SLURM's own configuration is (`SLURM_CONF`), and defaults a user has set for sbatch, stay.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_")) and name != "SLURM_CONF"
    }
    for name in inherited:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(inherited)


def _ask(command: list[str]) -> str | None:
    """Output of one of SLURM's commands; None if it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("%s: %s", command[0], error)
        return None


def _must(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except FileNotFoundError as error:
        raise SlurmError(f"{command[0]} not found on PATH") from error
    except subprocess.SubprocessError as error:
        raise SlurmError(f"{command[0]} failed: {getattr(error, 'stderr', '') or error}") from error
