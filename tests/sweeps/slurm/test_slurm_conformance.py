"""Conformance tests with SLURM jobs."""

import subprocess

import pytest
from backend_conformance import BackendConformance, BackendSetup

from cluster import find_root_prefix, run_one_node_script
from llmrl.results.run_records import read_runs

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.slurm]


class TestSlurm(BackendConformance):
    @pytest.fixture
    def backend_setup(self, slurm_cluster):
        node = slurm_cluster.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N")

        def lose_node(rows, launcher):
            """Kill all processes of the node and notify the controller, which would need five minutes to detect it."""
            daemons = slurm_cluster.run("pgrep", "--exact", "slurmd|slurmstepd").split()
            runs = [str(row["pid"]) for row in rows if row["state"] == "running"]
            subprocess.run([*find_root_prefix(), "kill", "-KILL", *daemons, *runs], check=True)
            slurm_cluster.run(
                *find_root_prefix(), "scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"
            )

        def restore():
            started = run_one_node_script("start")
            assert started.returncode == 0, started.stderr

        return BackendSetup(
            overrides=("hardware=slurm_cpu", "hardware.memory_gb=1"),
            loss="SLURM: FAILED",
            interrupted=None,
            lose_node=lose_node,
            restore=restore,
        )

    @pytest.mark.exclusive_cluster
    def test_lost_node_affects_its_runs(self, backend_setup, slow_reference, tmp_path):
        super().test_lost_node_affects_its_runs(backend_setup, slow_reference, tmp_path)

    def test_dependency_runs_single_time(self, backend_setup, tmp_path):
        """All jobs are submitted at once, dependent ones as one array."""
        super().test_dependency_runs_single_time(backend_setup, tmp_path)
        first, *dependents = sorted(read_runs(tmp_path / "outputs"), key=lambda run: run.updated)
        array, *others = {run.job_id.partition("_")[0] for run in dependents}
        assert not others and array != first.job_id
