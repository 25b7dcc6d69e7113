"""Runs that a sweep's runs need, as jobs that the others wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import Cluster
from llmrl.results.run_records import read_runs
from sweeping import sweep

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

STUDY = "preset:legislative/escape_room_alone"
NEEDS = (
    *("experiment=legislative/escape_room_small", "principal=random", "design.steps=1", "design.adapt_rounds=1"),
    *(
        "design.references=0",
        "design.confirm_steps=0",
        "design.evaluations=0",
        "design.validate_episodes=2",
        "env.n_envs=2",
    ),
    *("hardware=slurm_cpu", "hardware.memory_gb=1", f"agent.init_from={STUDY}"),
)


@pytest.mark.long
def test_dependent_run_waits_for_job(slurm_cluster: Cluster, tmp_path: Path):
    """Submitted at once, and nobody holds a place while it is computed."""
    done = sweep(*NEEDS, "agent.init_from_seed=shared", "seed=0,1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *dependents = sorted(read_runs(tmp_path / "outputs"), key=lambda run: run.updated)
    assert "init_from" not in first.overrides and len(dependents) == 2
    assert {run.state for run in (first, *dependents)} == {"finished"} and {
        run.attempt for run in (first, *dependents)
    } == {1}
    assert all(run.started >= first.updated for run in dependents)
    assert len({run.job_id.partition("_")[0] for run in dependents}) == 1 and first.job_id not in {
        r.job_id for r in dependents
    }
    assert "submitted 1 runs" in done.stdout and "submitted 2 runs" in done.stdout


@pytest.mark.long
def test_dependents_report_failure(slurm_cluster: Cluster, tmp_path: Path):
    done = sweep(
        *NEEDS, "agent.observation_channels=[nothing]", "agent.init_from_seed=shared", "seed=0,1", cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    first, *dependents = sorted(read_runs(tmp_path / "outputs"), key=lambda run: run.updated)
    assert {run.state for run in (first, *dependents)} == {"failed"} and first.attempt == 1
    assert all(str(first.folder) in run.error and first.error in run.error for run in dependents)
