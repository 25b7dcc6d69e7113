"""Runs with several processes as SLURM jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import commands
from cluster import Cluster
from experiments import are_rows_close, find_run_folder, load_comparable_metrics
from llmrl.results.run_records import read_runs
from sweeping import THIRD_PARTY, run_sweep_command, start_sweep, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

GAME = ("--config-dir", str(THIRD_PARTY / "conf"), "trusted_modules=[signal_game]", "env=signal_game", "env.n_envs=5")
RUN = (*GAME, "agent=together", "learn.env_steps=4000", "checkpoint_seconds=0.5", "seed=0")
TWO = ("hardware=slurm_cpu", "hardware.backend.processes_per_node=2", "hardware.cores=1", "hardware.memory_gb=1.5")


@pytest.mark.long
def test_requeue_matches_single_process(slurm_cluster: Cluster, tmp_path: Path):
    if slurm_cluster.cpus < 2:
        pytest.skip("two tasks need two cores")
    launcher = start_sweep(*RUN, *TWO, cwd=tmp_path)
    outputs = tmp_path / "outputs" / "signal_game"

    def is_progressing() -> bool:
        return outputs.is_dir() and any(run.read_last_metrics().get("updates", 0) >= 20 for run in read_runs(outputs))

    wait_for(is_progressing, 240)
    (record,) = read_runs(outputs)
    job = slurm_cluster.show(record.job_id)
    assert (job["NumTasks"], job["NumNodes"], job["NumCPUs"]) == ("2", "1", "2")
    # As SLURM warns of the time limit; to both.
    slurm_cluster.run("scancel", "--signal=USR2", record.job_id)
    assert launcher.wait(timeout=500) == 0
    (record,) = read_runs(outputs)
    assert (record.state, record.attempt) == ("finished", 2)
    assert "1 finished" in run_sweep_command("status", "outputs", cwd=tmp_path).stdout

    completed = commands.run(
        [sys.executable, "-m", "llmrl.cli.train", *RUN, "output_root=alone"], cwd=tmp_path, timeout=200
    )
    assert completed.returncode == 0
    two, single = load_comparable_metrics(record.folder), load_comparable_metrics(find_run_folder(tmp_path / "alone"))
    assert are_rows_close(two, single, rel=1e-4)
