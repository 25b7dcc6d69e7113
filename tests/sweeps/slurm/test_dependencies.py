"""Dependencies of the runs of a sweep as SLURM jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from backend_conformance import NEEDS

from cluster import Cluster
from llmrl.results.run_records import read_runs
from sweeping import run_sweep

pytestmark = [pytest.mark.slow, pytest.mark.slurm]


@pytest.mark.long
def test_dependents_report_failure(slurm_cluster: Cluster, tmp_path: Path):
    done = run_sweep(
        *NEEDS,
        *("hardware=slurm_cpu", "hardware.memory_gb=1", "agent.observation_channels=[nothing]", "seed=0,1"),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    first, *dependents = sorted(read_runs(tmp_path / "outputs"), key=lambda run: run.updated)
    assert {run.state for run in (first, *dependents)} == {"failed"} and first.attempt == 1
    assert all(str(first.folder) in run.error and first.error in run.error for run in dependents)
