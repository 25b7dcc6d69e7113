"""Reasons of pending jobs reported by a SLURM queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import Cluster
from sweeping import load_status, run_sweep, run_sweep_command, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.slurm]


def test_held_job_reports_reason(slurm_cluster: Cluster, tmp_path: Path):
    """The job would start after an hour and is canceled."""
    words = ("env=escape_room", "principal=random", "design.references=0", "seed=0", "hydra.launcher.wait=false")
    start_later = ("hardware=slurm_cpu", "hardware.memory_gb=1", '+hardware.backend.extra.begin="now+1hour"')
    done = run_sweep(*words, *start_later, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        wait_for(lambda: load_status(tmp_path)[0]["waits"], 60)
        [row] = load_status(tmp_path)
        assert row["state"] == "queued" and row["waits"] == "BeginTime"
        output = run_sweep_command("status", "outputs", cwd=tmp_path)
        assert output.returncode == 0 and "BeginTime" in output.stdout
    finally:
        run_sweep_command("cancel", "outputs", cwd=tmp_path)
    assert load_status(tmp_path)[0]["waits"] == ""
