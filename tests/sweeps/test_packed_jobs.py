"""Cluster jobs with several runs: submission, status, cancellation and requeueing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmrl.core.errors import RunFolderError
from llmrl.run.queued import read_launch_record
from llmrl.run.status import Status
from llmrl.sweeps.backends import slurm_submission
from llmrl.sweeps.backends.protocol import Hardware, Job
from llmrl.sweeps.backends.slurm_submission import Slurm, SlurmPayload
from llmrl.sweeps.launch import launch
from llmrl.sweeps.packing import BatchableRunFunction
from llmrl.sweeps.payload import ProcessPayload, RunExit, RunPayload
from llmrl.sweeps.run_control import cancel_runs, query_run_records

pytest.importorskip("submitit")

HARDWARE = Hardware(Slurm(), "cpu", "highest", 1, 1, 1.0, 0, None, jobs=2)


def jobs(root: Path, n: int, hardware: Hardware = HARDWARE) -> list[Job]:
    config: dict[str, Any] = {"output_root": str(root / "outputs"), "name": "study", "rerun": False}
    return [
        Job({**config, "seed": i}, [f"seed={i}"], hardware, 1, [], batch_key="one", additional_memory_gb=0.25)
        for i in range(n)
    ]


def run_single(config: dict[str, Any], overrides: list[str]) -> float | None:
    """Do nothing; jobs are submitted but never executed."""
    raise AssertionError


def run_shared(payloads: Sequence[RunPayload]) -> list[RunExit]:
    """Return ends of runs with the exit codes in their configs."""
    return [RunExit(payload.folder, payload.config["code"]) for payload in payloads]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace SLURM's commands by scripts that log the arguments of sbatch and scancel and list two jobs."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_submission.getpass, "getuser", lambda: "ada")
    outputs = {
        "sbatch": "Submitted batch job 77",
        "srun": "",
        "squeue": "77_0|PENDING\n77_1|RUNNING",
        "scontrol": "ClusterName = atlas",
        "scancel": "",
    }
    for name, text in outputs.items():
        script = bin_folder / name
        copy_script = f'for each; do [ -f "$each" ] && cp "$each" {bin_folder}/sbatch.script; done\n' * (
            name == "sbatch"
        )
        script.write_text(f'#!/bin/sh\necho "$@" >> {bin_folder}/{name}.asked\n{copy_script}echo "{text}"\n')
        script.chmod(0o755)
    return bin_folder


def test_nine_runs_fit_two_jobs(tmp_path: Path, cluster: Path) -> None:
    nine = jobs(tmp_path, 9)
    outcomes, code = launch(nine, BatchableRunFunction(run_single, run_shared), tmp_path / "sweep", wait=False)
    assert code == 0 and [outcome.state for outcome in outcomes] == ["submitted"] * 9
    assert {outcome.job_id for outcome in outcomes} == {"77_0", "77_1"}
    jobs_per_id: dict[str, list[Job]] = {}
    for job in nine:
        queued = read_launch_record(job.folder)
        assert queued is not None
        jobs_per_id.setdefault(queued.job_id, []).append(job)
    assert sorted(len(jobs) for jobs in jobs_per_id.values()) == [4, 5]
    for jobs_ in jobs_per_id.values():
        for job in jobs_:
            queued = read_launch_record(job.folder)
            assert queued is not None
            assert set(queued.other_run_folders) == {str(job.folder) for job in jobs_} - {str(job.folder)}
    script = (cluster / "sbatch.script").read_text()
    assert "--array=0-1%2" in script and "--mem=2000M" in script, "of one run, and of four more rows"
    second_outcomes, _ = launch(nine, BatchableRunFunction(run_single, run_shared), tmp_path / "again", wait=False)
    assert [outcome.state for outcome in second_outcomes] == ["elsewhere"] * 9

    waiting = jobs_per_id["77_0"]
    with pytest.raises(RunFolderError, match="77_0"):
        cancel_runs(query_run_records(waiting[0].folder))
    assert not (cluster / "scancel.asked").exists()
    assert cancel_runs(query_run_records(tmp_path / "outputs")) == (2, 0, [])
    assert (cluster / "scancel.asked").read_text().split() == ["77_0", "77_1"]
    assert [record.state for record in query_run_records(tmp_path / "outputs")].count("canceled") == 9


def test_finished_runs_do_not_block_cancel(tmp_path: Path, cluster: Path) -> None:
    nine = jobs(tmp_path, 9)
    launch(nine, BatchableRunFunction(run_single, run_shared), tmp_path / "sweep", wait=False)
    with_first = [job for job in nine if read_launch_record(job.folder).job_id == "77_0"]  # type: ignore[union-attr]
    for job in with_first[1:]:
        (job.folder / "summary.json").write_text("{}")
        Status("finished", attempt=1, result=1.0).write(job.folder)
    assert cancel_runs(query_run_records(with_first[0].folder)) == (1, 0, [])


def test_free_cluster_gets_job_per_run(tmp_path: Path, cluster: Path) -> None:
    three = jobs(tmp_path, 3, replace(HARDWARE, jobs=None))
    launch(three, BatchableRunFunction(run_single, run_shared), tmp_path / "sweep", wait=False)
    script = (cluster / "sbatch.script").read_text()
    assert "--array=0-2%" in script and "--mem=1000M" in script
    assert all(read_launch_record(job.folder).other_run_folders == [] for job in three)  # type: ignore[union-attr]


@pytest.fixture
def requeue_signals() -> Iterator[list[int]]:
    """Return the signals for which submitit would have requeued the job."""
    signals: list[int] = []
    handler = signal.signal(signal.SIGUSR2, lambda number, frame: signals.append(number))
    yield signals
    signal.signal(signal.SIGUSR2, handler)


USR2 = 128 + signal.SIGUSR2


@pytest.mark.parametrize(
    ("codes", "is_requeue", "code"),
    [((0, 0), False, None), ((0, 1), False, 1), ((0, USR2), True, USR2), ((USR2, 3), True, 3)],
)
def test_saving_run_requeues_job(
    tmp_path: Path, requeue_signals: list[int], codes: tuple[int, ...], is_requeue: bool, code: int | None
) -> None:
    payloads = [
        RunPayload(run_single, {"code": exit_code}, [], tmp_path / str(i), {}) for i, exit_code in enumerate(codes)
    ]
    call: Callable[[], None] = SlurmPayload(ProcessPayload(payloads, run_shared))
    if code is None:
        call()
    else:
        with pytest.raises(SystemExit) as end:
            call()
        assert end.value.code == code
    assert bool(requeue_signals) == is_requeue
