"""Interface of backends: no special cases in the launcher, custom backends, and runs on this machine."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import llmrl
import sweeping
from llmrl.core.errors import ConfigError
from llmrl.core.trust import Trust
from llmrl.results.run_records import JobEnd, QueueSnapshot, read_run
from llmrl.run import ownership
from llmrl.run.config_hash import config_hash
from llmrl.run.folder import find_run_folder
from llmrl.run.queued import LaunchRecord, read_launch_record
from llmrl.run.status import Status
from llmrl.sweeps import scheduling
from llmrl.sweeps.backends.here import Here
from llmrl.sweeps.backends.local import Local
from llmrl.sweeps.backends.protocol import (
    Backend,
    Hardware,
    Job,
    JobOutcome,
    SchedulerError,
    get_qualified_backend_name,
)
from llmrl.sweeps.jobs import record_launch
from llmrl.sweeps.launch import launch
from llmrl.sweeps.packing import BatchableRunFunction
from llmrl.sweeps.payload import RunExit, RunFunction, RunPayload
from llmrl.sweeps.run_control import cancel_runs, query_run_records

PLACES = ("here", "local", "slurm")


def test_backends_have_no_special_cases():
    """No code compares names of backends, and only the SLURM modules refer to SLURM."""
    src = Path(llmrl.__file__).parents[1]
    wrong = []
    for path in src.rglob("*.py"):
        is_slurm_module = path.name.startswith("slurm") and path.parent.name == "backends"
        text = path.read_text()
        if not any(f'"{state_folder}"' in text for state_folder in PLACES) and "llmrl.sweeps.backends." not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and node.value in PLACES and not is_slurm_module:
                wrong.append(f"{path.relative_to(src)}:{node.lineno} has {node.value!r}")
            import_name = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if import_name.startswith("llmrl.sweeps.backends.") and not is_slurm_module:
                module = import_name.rpartition(".")[2]
                if module != "protocol" and not (path.parent.name == "backends" or path.name == "preload.py"):
                    wrong.append(f"{path.relative_to(src)} imports {import_name}")
    assert not wrong, wrong


def job(root: Path, seed: int, backend: Backend, does: str) -> Job:
    config = {"output_root": str(root / "outputs"), "name": "study", "seed": seed, "rerun": False, "does": does}
    return Job(config, [f"seed={seed}"], Hardware(backend, "cpu", "highest", 1, 1, 0.1, 0, None), 1, [])


def computes(config: dict[str, Any], overrides: list[str]) -> float | None:
    """Execute a run that writes its status; its config determines its behavior."""
    folder = find_run_folder(Path(config["output_root"]), config["name"], config_hash(config), [], config["seed"])
    queued = read_launch_record(folder)
    assert queued is not None
    status = Status("running", attempt=queued.attempt + 1, overrides=overrides, pid=os.getpid())
    os.environ["LEFT_BEHIND"] = "by a run"
    if config["does"] == "fail early":
        raise ConfigError("made to fail")
    status.write(folder)
    if config["does"] == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        replace(status, state="preempted").write(folder)
        raise SystemExit(128 + signal.SIGTERM)
    if config["does"] == "exit":
        raise SystemExit(7)
    (folder / "summary.json").write_text("{}")
    replace(status, state="finished", result=float(config["seed"])).write(folder)
    return float(config["seed"])


def test_local_runs_match_process_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("LEFT_BEHIND", raising=False)
    jobs = [job(tmp_path, seed, Here(), does) for seed, does in enumerate(("finish", "fail early", "exit", "finish"))]
    outcomes, code = launch(jobs, computes, tmp_path / "sweep")
    assert [outcome.state for outcome in outcomes] == ["finished", "failed", "failed", "finished"] and code == 1
    assert [outcome.result for outcome in outcomes] == [0.0, None, None, 3.0]
    assert "made to fail" in outcomes[1].error and "made to fail" in (outcomes[1].folder / "traceback.txt").read_text()
    assert "LEFT_BEHIND" not in os.environ, "what one run sets is not there for the next"
    assert read_launch_record(outcomes[0].folder).backend == "llmrl.sweeps.backends.here.Here"
    second_outcomes, code = launch(jobs, computes, tmp_path / "sweep")
    assert [outcome.skipped for outcome in second_outcomes] == [True, False, False, True]


def run_all(payloads: Sequence[RunPayload]) -> list[RunExit]:
    return [payload.execute_and_capture_exit(computes) for payload in payloads]


def test_local_rows_end_independently(tmp_path):
    """Each run of a task reports its end and lists the other runs of the task."""
    batches = []

    def count_payloads(payloads: Sequence[RunPayload]) -> list[RunExit]:
        batches.append([len(read_launch_record(payload.folder).other_run_folders) for payload in payloads])
        return run_all(payloads)

    does = ("finish", "fail early", "exit", "finish", "finish")
    keys = ("one", "one", "one", "one", None)
    jobs = [
        replace(job(tmp_path, seed, Here(), behavior), batch_key=key, additional_memory_gb=0.01)
        for seed, (behavior, key) in enumerate(zip(does, keys, strict=True))
    ]
    outcomes, code = launch(jobs, BatchableRunFunction(computes, count_payloads), tmp_path / "sweep")
    assert batches == [[3, 3, 3, 3]] and code == 1
    assert [outcome.state for outcome in outcomes] == ["finished", "failed", "failed", "finished", "finished"]
    assert "made to fail" in outcomes[1].error and (outcomes[1].folder / "traceback.txt").exists()
    assert [outcome.result for outcome in outcomes] == [0.0, None, None, 3.0, 4.0]


def test_stop_cancels_pending_jobs(tmp_path):
    jobs = [job(tmp_path, 0, Here(), "stop"), job(tmp_path, 1, Here(), "finish"), job(tmp_path, 2, Local(), "x")]
    handler = signal.getsignal(signal.SIGTERM)
    outcomes, code = launch(jobs, computes, tmp_path / "sweep")
    assert [outcome.state for outcome in outcomes] == ["preempted", "canceled", "canceled"]
    assert code == 128 + signal.SIGTERM and signal.getsignal(signal.SIGTERM) is handler


def test_empty_sweep_creates_no_files(tmp_path):
    jobs = [job(tmp_path, 0, Here(), "finish")]
    launch(jobs, computes, tmp_path / "one")
    _, code = launch(jobs, computes, tmp_path / "two")
    assert code == 0 and (tmp_path / "one").is_dir() and not (tmp_path / "two").exists()


class Faulty(Backend):
    """Backend that rejects or loses all runs."""

    def __init__(self, refuses: bool) -> None:
        self.refuses = refuses

    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        if self.refuses:
            raise SchedulerError("closed on Sundays")
        return []


def test_faulty_backend_affects_only_assigned_runs(tmp_path):
    """Backends with equal options are identical, with and without a method for comparison."""
    backends = (Faulty(True), Faulty(False), Here(), Faulty(True))
    jobs = [job(tmp_path, seed, backend, "finish") for seed, backend in enumerate(backends)]
    outcomes, code = launch(jobs, computes, tmp_path / "sweep")
    assert [outcome.state for outcome in outcomes] == ["refused", "failed", "finished", "refused"] and code == 1
    assert outcomes[0].error == "closed on Sundays" and outcomes[1].error.startswith("Faulty ")


class Sleepers:
    """Scheduler of processes that survive their launcher; job IDs are process IDs."""

    def query_queues(self, jobs: Sequence[LaunchRecord]) -> list[QueueSnapshot]:
        if Path(jobs[0].cluster, "silent").exists():
            raise SchedulerError("nobody answers")
        states = {queued.job_id: "RUNNING" for queued in jobs if Path("/proc", queued.job_id, "stat").exists()}
        states = {pid: state for pid, state in states.items() if ") Z " not in Path("/proc", pid, "stat").read_text()}
        ends = {queued.job_id: JobEnd("gone", False) for queued in jobs if queued.job_id not in states}
        return [QueueSnapshot(jobs[0].backend, jobs[0].cluster, frozenset({"ada"}), states, ends)]

    def find_job_ends(self, job_ids: Sequence[str]) -> Mapping[str, JobEnd]:
        return {}

    def cancel(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            os.kill(int(job_id), signal.SIGTERM)


@dataclass(frozen=True)
class Detached(Backend):
    """Backend of detached processes; a run ends when the file `end` exists in the folder of the backend."""

    folder: str = ""
    scheduler: ClassVar[type[Sleepers]] = Sleepers

    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        outcomes = []
        for job in jobs:
            queued = record_launch(job, sweep_folder, cluster=self.folder, user="ada")
            code = (
                "import sys, time, pathlib, json\n"
                "folder, end = map(pathlib.Path, sys.argv[1:])\n"
                "while not end.exists(): time.sleep(0.02)\n"
                "(folder / 'summary.json').write_text('{}')\n"
                "(folder / 'status.json').write_text(end.read_text())\n"
            )
            end = Path(self.folder, "end")
            process = subprocess.Popen([sys.executable, "-c", code, str(job.folder), str(end)])
            replace(queued, job_id=str(process.pid)).write(job.folder)
            outcomes.append(JobOutcome(job, job.folder, "submitted", job_id=str(process.pid)))
        return outcomes


@pytest.fixture
def detached(tmp_path, monkeypatch):
    """Return a detached backend whose module is trusted like an installed one."""
    monkeypatch.setattr(scheduling, "NO_FURTHER_TRUST", Trust((Detached.__module__,)))
    monkeypatch.setattr(scheduling, "_MIN_POLL_S", 0.02)
    monkeypatch.setattr(scheduling, "_MAX_POLL_S", 0.05)
    sys.modules.setdefault(Detached.__module__, sys.modules[__name__])
    state_folder = tmp_path / "place"
    state_folder.mkdir()
    return Detached(str(state_folder)), state_folder


def write_finished_status(state_folder: Path, scratch: Path) -> None:
    scratch.mkdir()
    Status("finished", attempt=1, result=5.0).write(scratch)
    (scratch / "status.json").rename(state_folder / "end")


def test_custom_scheduler_lifecycle(tmp_path, detached):
    backend, state_folder = detached
    jobs = [job(tmp_path, seed, backend, "sleep") for seed in range(2)]
    outcomes, code = launch(jobs, computes, tmp_path / "sweep", wait=False)
    assert [outcome.state for outcome in outcomes] == ["submitted"] * 2 and code == 0
    assert all(outcome.error == f"job {outcome.job_id}" for outcome in outcomes)
    assert [record.state for record in query_run_records(tmp_path / "outputs")] == ["queued"] * 2
    assert read_launch_record(jobs[0].folder).backend == get_qualified_backend_name(backend)

    (state_folder / "silent").touch()
    assert [record.state for record in query_run_records(tmp_path / "outputs")] == ["queued"] * 2, "believed"
    with pytest.raises(SchedulerError, match="nobody answers"):
        query_run_records(tmp_path / "outputs", strict=True)
    (state_folder / "silent").unlink()

    second_outcomes, code = launch(jobs, computes, tmp_path / "again")
    assert [outcome.state for outcome in second_outcomes] == ["elsewhere"] * 2 and code == 0
    assert cancel_runs(query_run_records(tmp_path / "outputs")[:1]) == (1, 0, [])
    sweeping.wait_for(lambda: [r.state for r in query_run_records(tmp_path / "outputs")] == ["canceled", "queued"], 20)

    threading.Timer(0.5, write_finished_status, (state_folder, tmp_path / "scratch")).start()
    outcomes_ = list(scheduling.wait_for_jobs(outcomes[1:]))
    assert [(outcome.state, outcome.result) for outcome in outcomes_] == [("finished", 5.0)]


def test_local_computation_overlaps_jobs(tmp_path, detached):
    backend, state_folder = detached
    jobs = [job(tmp_path, 0, Here(), "finish"), job(tmp_path, 1, backend, "sleep")]
    threading.Timer(0.5, write_finished_status, (state_folder, tmp_path / "scratch")).start()
    outcomes, code = launch(jobs, computes, tmp_path / "sweep")
    assert [(outcome.state, outcome.result) for outcome in outcomes] == [("finished", 0.0), ("finished", 5.0)]
    assert code == 0


def test_run_folder_has_no_code_reference(tmp_path, detached, monkeypatch):
    """An untrusted backend or another class is not called; its jobs keep their states and cannot be canceled."""
    backend, _ = detached
    job_ = job(tmp_path, 0, backend, "sleep")
    job_.folder.mkdir(parents=True)
    monkeypatch.setattr(scheduling, "NO_FURTHER_TRUST", Trust())
    for target, reason in (
        (get_qualified_backend_name(backend), "outside the trusted"),
        ("llmrl.teachers.schedules.Constant", "not a backend"),
    ):
        record_launch(job_, tmp_path, user="ada")
        record = json.loads((job_.folder / "queued.json").read_text())
        (job_.folder / "queued.json").write_text(json.dumps({**record, "backend": target, "job_id": "1"}))
        assert read_run(job_.folder).state == "queued" == query_run_records(tmp_path / "outputs")[0].state
        jobs, n_notified, unreachable = cancel_runs(query_run_records(tmp_path / "outputs"))
        assert (jobs, n_notified) == (0, 0) and "as job 1" in unreachable[0]
        with pytest.raises(ConfigError, match=reason):
            query_run_records(tmp_path / "outputs", strict=True)


def test_detached_local_run_raises(tmp_path):
    with pytest.raises(ConfigError, match="Here"):
        launch([job(tmp_path, 0, Here(), "finish")], computes, tmp_path / "sweep", wait=False)
    assert not (tmp_path / "sweep").exists()


def test_job_id_from_any_scheduler(monkeypatch):
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "LLMRL_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert ownership.get_job_id() == "12"
    monkeypatch.setenv("LLMRL_JOB_ID", "night-7")
    assert ownership.get_job_id() == "night-7"
