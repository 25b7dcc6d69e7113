"""Runs of a sweep as SLURM jobs: submitting through submitit, waiting, cancelling."""

from __future__ import annotations

import getpass
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmrl.analysis.runs import RunRecord, read_run
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.run.progress import Progress
from llmrl.run.queued import Queued
from llmrl.sweeps.hardware import THREAD_VARIABLES, Hardware, Slurm
from llmrl.sweeps.jobs import Job, Outcome, describe, take_on
from llmrl.sweeps.work import ClusterWork, Task, Work

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

_POLL_S = (1.0, 15.0)  # shortest and longest wait between looks at the queue
_GONE_AFTER = 2  # looks in a row without a job before it counts as over: requeueing takes a moment


class SlurmError(ConfigError):
    """SLURM refused, or is not there."""


def available() -> bool:
    """Whether SLURM's commands are on this machine."""
    return shutil.which("squeue") is not None


def job_states() -> dict[str, str] | None:
    """State by job id (`123` or `123_4`) of this user's jobs, those that ended in the last minutes included.

    None if the queue cannot be asked now.
    """
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}", "--format=%i|%T"]
    text = _ask(command)
    if text is None:
        return None
    return dict(line.strip().split("|", 1) for line in text.splitlines() if "|" in line)


def accounted_states(ids: Sequence[str]) -> dict[str, str]:
    """State by job id from the accounting database; empty where the cluster keeps none."""
    if not ids or not shutil.which("sacct"):
        return {}
    text = _ask(
        ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State", "--jobs", ",".join(ids)]
    )
    pairs = (line.split("|", 1) for line in (text or "").splitlines() if "|" in line)
    return {job: state.split()[0] for job, state in pairs if state}


def live(states: dict[str, str] | None) -> dict[str, str] | None:
    """Those of `job_states` that wait or run."""
    return None if states is None else {job: state for job, state in states.items() if state not in ENDED}


def submit(jobs: Sequence[Job], task: Task, sweep_folder: Path) -> tuple[dict[Path, Queued], list[Outcome]]:
    """Submit all jobs, as arrays of those with equal needs, no array larger than the cluster allows.

    Returns:
        What was submitted, by run folder, and an outcome for each job that could not be.

    Raises:
        SlurmError: SLURM is not there.
        ConfigError: the `slurm` section is missing, or submitit is.
    """
    check_available()
    folder = sweep_folder / "slurm"
    submitted: dict[Path, Queued] = {}
    refused: list[Outcome] = []
    taken: list[tuple[Job, Queued]] = []
    for job in jobs:
        try:
            taken.append((job, take_on(job, "slurm", "")))
        except RunFolderError as error:
            refused.append(Outcome(job, job.folder, "failed", error=str(error)))
    for alike in _alike(taken):
        limit = _largest_array()
        chunks = [alike[i : i + limit] for i in range(0, len(alike), limit)]
        for chunk in chunks:
            hardware = chunk[0][0].hardware
            works = [ClusterWork(Work(task, job.config, job.overrides, job.folder)) for job, _ in chunk]
            try:
                ids = _submit_array(works, folder, hardware, chunk[0][0].cores, len(chunks))
            except SlurmError as error:
                for job, _ in chunk:
                    refused.append(Outcome(job, job.folder, "not started", error=str(error)))
                continue
            for (job, queued), job_id in zip(chunk, ids, strict=True):
                written = replace(queued, job_id=job_id, log=str(folder / f"{job_id}_0_log.out"))
                written.write(job.folder)
                submitted[job.folder] = written
    return submitted, refused


def wait_for(jobs: Sequence[Job], submitted: dict[Path, Queued]) -> Iterator[Outcome]:
    """The outcome of each submitted job, as they end.

    A failing `squeue` is waited out: the jobs go on without it.
    """
    pending = {job.folder: job for job in jobs if job.folder in submitted}
    unseen = dict.fromkeys(pending, 0)
    delay = _POLL_S[0]
    with Progress(len(pending), "runs", "slurm") as progress:
        total = len(pending)
        while pending:
            states = job_states()
            ended = []
            for folder in pending if states is not None else ():
                gone = live(states).get(submitted[folder].job_id) is None  # type: ignore[union-attr]
                unseen[folder] = unseen[folder] + 1 if gone else 0
                if unseen[folder] >= _GONE_AFTER:
                    ended.append(folder)
            for folder in ended:
                outcome = outcome_of(pending.pop(folder), submitted[folder].job_id, states or {})
                progress.say(describe(outcome))
                progress.update(total - len(pending))
                yield outcome
            if pending:
                time.sleep(delay)
                delay = min(delay * 1.3, _POLL_S[1])


def outcome_of(job: Job, job_id: str, states: dict[str, str]) -> Outcome:
    """What became of a job that is no longer in the queue."""
    record = read_run(job.folder, live(states))
    if record.state in ("finished", "failed", "budget_exhausted"):
        return Outcome.of(job, record)
    word = states.get(job_id) or accounted_states([job_id]).get(job_id, "")
    error = f"{record.error} (SLURM: {word})" if word else record.error
    return Outcome.of(job, record, error=error)


def known_states(records: Sequence[RunRecord]) -> dict[str, str]:
    """SLURM's word for the job of each record, from the queue and, for older ones, the accounting database."""
    ids = {record.job_id for record in records if record.job_id and record.launcher != "local"}
    states = job_states() or {} if ids and available() else {}
    return accounted_states(sorted(ids - states.keys())) | states


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


def _submit_array(works: Sequence[ClusterWork], folder: Path, hardware: Hardware, cores: int, parts: int) -> list[str]:
    """Submit one array, or one job; returns the job ids."""
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    slurm = hardware.slurm
    if slurm is None:
        raise SlurmError(
            "hardware.launcher=slurm needs the section hardware.slurm; use hardware=slurm_cpu or slurm_gpu"
        )
    executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=slurm.max_timeouts, python=slurm.python)
    executor.update_parameters(**_parameters(hardware, slurm, cores, parts))
    try:
        with _outside_of_allocations():
            if len(works) == 1:
                return [executor.submit(works[0]).job_id]
            return [job.job_id for job in executor.submit_array(list(works))]
    except (FailedSubmissionError, FailedJobError, subprocess.CalledProcessError) as error:
        raise SlurmError(_why(error, slurm)) from error


def _parameters(hardware: Hardware, slurm: Slurm, cores: int, parts: int) -> dict[str, Any]:
    """submitit's parameters for one array of several `parts`."""
    threads = hardware.threads or cores
    parameters: dict[str, Any] = {
        "job_name": "llmrl",
        "time": slurm.time_min,
        "mem": f"{round(hardware.memory_gb * 1000)}M",
        "cpus_per_task": cores,
        "ntasks_per_node": 1,
        "nodes": 1,
        "signal_delay_s": slurm.warn_s,
        "stderr_to_stdout": True,
        "setup": [*(f"export {name}={threads}" for name in THREAD_VARIABLES), *(slurm.setup or [])],
        "srun_args": slurm.srun_args or [],
    }
    if hardware.gpus:
        parameters["gpus_per_node"] = hardware.gpus
    if hardware.parallel is not None:
        parameters["array_parallelism"] = max(1, hardware.parallel // parts)
    else:
        parameters["array_parallelism"] = 1_000_000  # submitit's default is a limit of 256
    for name in ("partition", "account", "qos", "constraint"):
        if (value := getattr(slurm, name)) is not None:
            parameters[name] = value
    # A job may always go back into the queue: its run goes on where it was.
    parameters["additional_parameters"] = {"requeue": True, **(slurm.extra or {})}
    return parameters


def _why(error: Exception, slurm: Slurm) -> str:
    """sbatch's words, and what would work where that can be said."""
    text = str(getattr(error, "stderr", "") or error)
    found = re.search(r"sbatch: error: (.*)", text)
    said = " ".join(re.findall(r"sbatch: error: (.*)", text)) if found else text.strip().splitlines()[-1]
    hint = ""
    if "partition" in said.lower():
        partitions = (_ask(["sinfo", "--noheader", "--format=%R"]) or "").split()
        hint = f"; hardware.slurm.partition={slurm.partition}, and there are: {', '.join(partitions) or 'none'}"
    return f"sbatch refused: {said}{hint}"


def _largest_array() -> int:
    """Most jobs an array of this cluster may hold."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask(["scontrol", "show", "config"]) or "", re.MULTILINE)
    return max(1, int(found.group(1))) if found else 1000


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
