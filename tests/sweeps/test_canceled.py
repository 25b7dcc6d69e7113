"""States of runs that were canceled before their start or lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sweeping
from llmrl.cli import sweep
from llmrl.cli.sweep import RETRY_STATES
from llmrl.results.run_records import RESUMABLE_STATES, QueueSnapshot, read_run
from llmrl.run import ownership
from llmrl.run.queued import LaunchRecord, read_launch_record, record_cancellation
from llmrl.run.status import Status
from llmrl.sweeps.backends import slurm_submission
from llmrl.sweeps.backends.local import BatchProcessPool, Local
from llmrl.sweeps.backends.protocol import Backend, Hardware, Job, JobBatch, JobOutcome
from llmrl.sweeps.backends.slurm_submission import Slurm
from llmrl.sweeps.launch import compute_exit_code
from llmrl.sweeps.run_control import cancel_runs, query_run_records
from llmrl.sweeps.scheduling import query_schedulers, read_outcome

SLURM = "llmrl.sweeps.backends.slurm_submission.Slurm"


def job(root: Path, seed: int, backend: Backend | None = None) -> Job:
    config: dict[str, Any] = {"output_root": str(root), "name": "study", "seed": seed, "rerun": False}
    config["begun"] = str(root / "begun")
    hardware = Hardware(backend or Local(), "cpu", "highest", 1, 1, 0.1, 0, 1)
    return Job(config, [f"seed={seed}"], hardware, 1, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_launcher_stop_cancels_waiting_runs(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and the signal of `llmrl-sweep cancel`; the first run is canceled before its start, too."""
    jobs = [job(tmp_path, seed) for seed in range(3)]
    states: list[str] = []

    def stop() -> None:
        end = time.monotonic() + 90
        while not (tmp_path / "begun").exists() and time.monotonic() < end:
            time.sleep(0.05)
        states.append(read_run(jobs[2].folder).state)
        os.kill(os.getpid(), number)

    stopper = threading.Thread(target=stop)
    stopper.start()
    outcomes = BatchProcessPool(
        Backend.make_batches(Local(), jobs), sweeping.wait_without_folder, tmp_path / ".sweeps" / "one"
    ).run()
    stopper.join()
    assert states == ["queued"]
    assert [outcome.state for outcome in outcomes] == ["canceled"] * 3
    assert compute_exit_code(outcomes) == 128 + signal.SIGINT
    for job_ in jobs:
        record = read_run(job_.folder)
        assert record.state == "canceled" and "before" in record.error and record.attempt == 0
    retried_folders = [
        record.folder for record in query_run_records(tmp_path) if record.state in RETRY_STATES.split(",")
    ]
    assert len(retried_folders) == 3, "the same command, and retry, come back to them"


def test_stop_during_takeover_cancels_all(tmp_path: Path) -> None:
    """At a second signal no run has been started and none remains waiting."""
    jobs = [job(tmp_path, seed) for seed in range(2)]
    pool = BatchProcessPool(
        Backend.make_batches(Local(), jobs), sweeping.wait_without_folder, tmp_path / ".sweeps" / "one"
    )
    launch = pool._record_and_queue

    def stopped(number: int, batch: JobBatch) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        launch(number, batch)

    pool._record_and_queue = stopped  # type: ignore[method-assign]
    assert [outcome.state for outcome in pool.run()] == ["canceled"] * 2
    assert not (tmp_path / "begun").exists()


def in_slurm(folder: Path, job_id: str, **changes: Any) -> LaunchRecord:
    folder.mkdir(parents=True, exist_ok=True)
    queued = LaunchRecord(SLURM, 0, job_id, "here", 1, "1", "here", str(folder), "", "atlas", "ada", 0.0, "", [])
    queued = replace(queued, **changes)
    queued.write(folder)
    return queued


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Replace SLURM's commands by scripts that print recorded output and log the arguments of scancel."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_submission.getpass, "getuser", lambda: "ada")

    def answers(squeue: str, sacct: str) -> Path:
        outputs = {"squeue": squeue, "sacct": sacct, "scontrol": "ClusterName             = atlas\n", "scancel": ""}
        for name, text in outputs.items():
            script = bin_folder / name
            (bin_folder / f"{name}.said").write_text(text)
            script.write_text(f'#!/bin/sh\necho "$@" >> {bin_folder}/{name}.asked\ncat {bin_folder}/{name}.said\n')
            script.chmod(0o755)
        return bin_folder

    return answers


def test_job_wait_reasons(
    tmp_path: Path, cluster: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is that of `squeue --format=%i|%T|%r` of SLURM 22.05 and 23.11."""
    bin_folder = cluster(
        "21|PENDING|Priority\n22|PENDING|QOSMaxJobsPerUserLimit\n23_0|PENDING|Dependency\n23_1|RUNNING|None\n"
        "24|PENDING|ReqNodeNotAvail, UnavailableNodes:gpu[01-04]\n25|PENDING|None\n26|PENDING|SomethingNew\n"
        "27|PENDING|AssocGrpCPUMinutesLimit\n28|PENDING|launch failed requeued held\n",
        "",
    )
    for i, job_id in enumerate(("21", "22", "23_0", "23_1", "24", "25", "26", "27", "28")):
        in_slurm(tmp_path / "outputs" / "study" / "defaults-00000000" / f"s{i}", job_id)
    records_ = query_run_records(tmp_path / "outputs")
    assert {record.state for record in records_} == {"queued"}
    waits = {record.job_id: record.pending_reason for record in records_}
    assert waits == {
        "21": "Priority",
        "22": "QOSMaxJobsPerUserLimit",
        "23_0": "Dependency",
        "23_1": "",
        "24": "ReqNodeNotAvail, UnavailableNodes:gpu[01-04]",
        "25": "",
        "26": "SomethingNew",
        "27": "AssocGrpCPUMinutesLimit",
        "28": "launch failed requeued held",
    }
    assert "--format=%i|%T|%r" in (bin_folder / "squeue.asked").read_text()
    with pytest.raises(SystemExit) as exit_error:
        sweep.main(["status", str(tmp_path / "outputs")])
    output = " ".join(capsys.readouterr().out.split())
    assert exit_error.value.code == 0 and "Priority" in output


def test_slurm_end_states(tmp_path: Path, cluster: Callable[[str, str], Path]) -> None:
    cluster(
        "11|CANCELLED\n12|FAILED\n13_0|PENDING\n13_1|CANCELLED\n",
        "14|CANCELLED by 1000\n15|NODE_FAIL\n16_[2-3%1]|CANCELLED by 0\n",
    )
    jobs = ("11", "12", "13_0", "13_1", "14", "15", "16_2", "16_3", "16_4", "17")
    for i, job_id in enumerate(jobs):
        in_slurm(tmp_path / "outputs" / "study" / "defaults-00000000" / f"s{i}", job_id)
    records_ = {record.job_id: record for record in query_run_records(tmp_path / "outputs")}
    states = {job_id: record.state for job_id, record in records_.items()}
    assert states == {
        **dict.fromkeys(("11", "13_1", "14", "16_2", "16_3"), "canceled"),
        **dict.fromkeys(("12", "15", "16_4", "17"), "lost"),
        "13_0": "queued",
    }
    assert "CANCELLED" in records_["11"].error and "CANCELLED" in records_["14"].error


def test_started_run_is_not_canceled(tmp_path: Path, cluster: Callable[[str, str], Path]) -> None:
    cluster("21|CANCELLED\n", "22|CANCELLED by 1000\n")
    folders = [tmp_path / "outputs" / "study" / "defaults-00000000" / f"s{i}" for i in range(2)]
    for folder, job_id, state in zip(folders, ("21", "22"), ("preempted", "running"), strict=True):
        in_slurm(folder, job_id)
        Status(state, job_id=job_id, pid=1).write(folder)
    assert [record.state for record in query_run_records(tmp_path / "outputs")] == ["preempted", "lost"]
    for folder in folders:
        record_cancellation(folder, "somebody")
    assert [read_run(folder).state for folder in folders] == ["preempted", "lost"]


def test_sweep_cancel_is_persistent(
    tmp_path: Path, cluster: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The state remains if SLURM has deleted the job or is unreachable."""
    bin_folder = cluster("31|PENDING\n32|RUNNING\n", "")
    waiting, started_run = (tmp_path / "outputs" / "study" / "defaults-00000000" / f"s{i}" for i in range(2))
    in_slurm(waiting, "31")
    in_slurm(started_run, "32", attempt=0)
    Status("preempted", job_id="32").write(started_run)  # between two attempts
    jobs, n_notified, unreachable = cancel_runs(query_run_records(tmp_path / "outputs"))
    assert (jobs, n_notified, unreachable) == (2, 0, [])
    assert (bin_folder / "scancel.asked").read_text() == "31 32\n"
    (bin_folder / "squeue.said").write_text("")
    states = {record.seed: record.state for record in query_run_records(tmp_path / "outputs")}
    assert states == {0: "canceled", 1: "preempted"}
    with pytest.raises(SystemExit) as stop:
        sweep.main(["status", str(tmp_path / "outputs")])
    assert stop.value.code == 0, "nothing has failed"
    assert "1 canceled" in capsys.readouterr().out


def test_launcher_reports_job_outcomes(tmp_path: Path, cluster: Callable[[str, str], Path]) -> None:
    cluster("", "41|CANCELLED by 1000\n42|NODE_FAIL\n")
    for seed, (job_id, state) in enumerate((("41", "canceled"), ("42", "lost"), ("43", "lost"))):
        job_ = job(tmp_path / "outputs", seed, Slurm())
        queued = in_slurm(job_.folder, job_id)
        queues = query_schedulers([job_.folder])
        assert [queue.cluster for queue in queues] == ["atlas"]
        outcome = read_outcome(JobOutcome(job_, job_.folder, "submitted", job_id=job_id), queued, queues)
        assert outcome.state == state and f"job {job_id}" in outcome.error


def test_takeover_resets_to_waiting(tmp_path: Path) -> None:
    folder = tmp_path / "study" / "defaults-00000000" / "s0"
    in_slurm(folder, "51", canceled="job 51")
    queues = [QueueSnapshot(SLURM, "atlas", frozenset(["ada"]), {"52": "PENDING"})]
    assert read_run(folder, queues).state == "canceled"
    in_slurm(folder, "52")
    assert read_run(folder, queues).state == "queued"
    assert read_launch_record(folder) is not None and json.loads((folder / "queued.json").read_text())["canceled"] == ""


def test_sigkill_loses_queue(tmp_path: Path) -> None:
    folder = tmp_path / "study" / "defaults-00000000" / "s0"
    in_slurm(folder, "", backend="llmrl.sweeps.backends.local.Local", machine="elsewhere")
    assert read_run(folder).state == "lost"
    assert {"canceled", "lost"} <= set(RESUMABLE_STATES)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), min_size=1, max_size=4), st.booleans())
def test_array_tasks_are_distinguished(ranges: list[tuple[int, int]], limited: bool) -> None:
    text = ",".join(f"{a}" if n == 0 else f"{a}-{a + n}" for a, n in ranges) + ("%3" if limited else "")
    reference = [f"7_{i}" for a, n in ranges for i in range(a, a + n + 1)]
    assert slurm_submission.expand_array_job_ids(f"7_[{text}]") == reference
    assert (
        slurm_submission.expand_array_job_ids("7") == ["7"]
        and slurm_submission.expand_array_job_ids("7_3") == ["7_3"]
        and slurm_submission.expand_array_job_ids("7_[") == ["7_["]
    )


@pytest.mark.parametrize("job_id", ["--user=root", "--state=RUNNING", "12 13", "12_", "12_[0-9]", "12_0,13", "-1"])
def test_only_job_ids_reach_scheduler(tmp_path: Path, cluster: Callable[[str, str], Path], job_id: str) -> None:
    """Contents of run folders cannot become options of scancel, and other jobs are canceled."""
    bin_folder = cluster(f"{job_id}|RUNNING|None\n12_3|RUNNING|None\n13|PENDING|Priority\n", "")
    for i, id_ in enumerate((job_id, "12_3", "13")):
        in_slurm(tmp_path / "outputs" / "study" / "defaults-00000000" / f"s{i}", id_)
    jobs, n_notified, unreachable = cancel_runs(query_run_records(tmp_path / "outputs"))
    assert (jobs, n_notified) == (2, 0) and len(unreachable) == 1
    assert (bin_folder / "scancel.asked").read_text().split() == ["12_3", "13"]


@pytest.fixture
def unrelated_process() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process of this user that belongs to no run."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_foreign_process_is_not_signaled(tmp_path: Path, unrelated_process: subprocess.Popen[bytes]) -> None:
    """Owner files and launch records can contain the ID and start time of any process."""
    pid, start = unrelated_process.pid, ownership.get_process_start(unrelated_process.pid)
    assert start is not None
    running, waiting = (tmp_path / "outputs" / "study" / "defaults-00000000" / f"s{i}" for i in range(2))
    running.mkdir(parents=True)
    Status("running", pid=pid).write(running)
    owner = ownership.Owner("here", ownership.get_machine_id(), pid, start, 1, "", 0, "token")
    (running / "owner.json").write_text(json.dumps(asdict(owner)))
    changes: dict[str, Any] = {"backend": "", "machine": ownership.get_machine_id(), "pid": pid, "process_start": start}
    in_slurm(waiting, "", **changes, sweep=str(tmp_path))
    (tmp_path / "launcher.alive").touch()
    records_ = query_run_records(tmp_path / "outputs")
    assert [record.state for record in records_] == ["running", "queued"]
    jobs, n_notified, unreachable = cancel_runs(records_)
    assert (jobs, n_notified) == (0, 0) and len(unreachable) == 2
    assert unrelated_process.poll() is None


def test_owner_process_is_signaled(tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "study" / "defaults-00000000" / "s0"
    folder.mkdir(parents=True)
    Status("running").write(folder)
    received: list[int] = []
    handler = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    owned = ownership.Ownership(folder)
    try:
        assert cancel_runs(query_run_records(tmp_path / "outputs")) == (0, 1, [])
        assert received == [signal.SIGTERM]
    finally:
        owned.release()
        signal.signal(signal.SIGTERM, handler)
    assert not ownership.process_has_open_for_writing(os.getpid(), folder / "owner.json")


def test_launcher_stops_runs_on_other_machines(tmp_path: Path) -> None:
    """Processes on other machines cannot be signaled, but a launcher on this machine can."""
    folder = tmp_path / "outputs" / "study" / "defaults-00000000" / "s0"
    changes: dict[str, Any] = {"backend": "", "machine": ownership.get_machine_id(), "pid": os.getpid()}
    in_slurm(folder, "", **changes, sweep=str(tmp_path))
    Status("running", attempt=1).write(folder)
    owner = ownership.Owner("there", "there", 2**22, "1", 1, "", 0, "token")
    (folder / "owner.json").write_text(json.dumps(asdict(owner)))
    received: list[int] = []
    handler = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with (tmp_path / "launcher.alive").open("w"):
            assert cancel_runs(query_run_records(tmp_path / "outputs")) == (0, 1, [])
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, handler)
