"""`llmrl-finetune --multirun hardware=slurm_finetune`: requested resources and execution on a SLURM cluster."""

import os
import sys
from pathlib import Path

import pytest

import commands
from cluster import get_environment_outside_jobs
from installed import skip_without
from llmrl.results.run_records import read_run
from tuned import COMMON, QUICK, assert_equal_runs, find_finetuning_folder

skip_without("trl", "peft", "datasets", "submitit")

pytestmark = pytest.mark.slow

PRETENDED = {
    # Keeps the script, as the controller does.
    "sbatch": 'cp "${@: -1}" "$SCRIPTS/script_$(ls "$SCRIPTS" | wc -l).sh"; echo Submitted batch job 7',
    "squeue": "",
    "srun": "exit 1",
    "scontrol": "echo ClusterName = atlas; echo MaxArraySize = 1001",
}


def submitted(root, model, *overrides, **environment):
    """Run `llmrl-finetune --multirun hardware=slurm_finetune`."""
    command = [sys.executable, "-m", "llmrl.cli.finetune", "--config-dir", str(Path(__file__).parent / "conf"), "-m"]
    arguments = [word for word in COMMON[1:] if not word.startswith("hardware.")]
    arguments += [f"output_root={root}", f"llm.model={model}", *QUICK["sft"], "hardware=slurm_finetune", *overrides]
    done = commands.run(
        [*command, *arguments],
        env=get_environment_outside_jobs() | environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_job_requests_training_resources(proposer, tmp_path):
    """Scripts replace SLURM's commands and log the request: one GPU, cores, memory, time and requeueing."""
    scripts, binaries = tmp_path / "scripts", tmp_path / "bin"
    scripts.mkdir(), binaries.mkdir()
    for name, text in PRETENDED.items():
        (binaries / name).write_text(f"#!/bin/bash\n{text}\n")
        (binaries / name).chmod(0o755)
    path = os.pathsep.join([str(binaries), os.environ["PATH"]])
    extra_options = ("hydra.launcher.wait=false", "seed=0,1", "hardware.backend.partition=big")
    job_script = submitted(tmp_path / "runs", proposer, *extra_options, PATH=path, SCRIPTS=str(scripts))
    assert "2 submitted" in job_script
    (script,) = scripts.iterdir()
    options = {line for line in script.read_text().splitlines() if line.startswith("#SBATCH ")}
    directives = ("gpus-per-node=1", "cpus-per-task=4", "mem=80000M", "time=5760", "partition=big", "array=0-1%2")
    assert {f"#SBATCH --{option}" for option in (*directives, "requeue", "signal=USR2@120")} <= options, options
    assert "export OMP_NUM_THREADS=1" in script.read_text() and "--cpu-bind=none" in script.read_text()


@pytest.mark.long
@pytest.mark.slurm
def test_job_matches_command(proposer, sft, slurm_cluster, tmp_path):
    """The job is bitwise equal to the command; GPU and memory are not requested, because test clusters lack them."""
    small = ("hardware.gpus=0", "hardware.device=cpu", "hardware.precision=highest", "hardware.memory_gb=1")
    record = submitted(tmp_path, proposer, *small, "hardware.cores=1", "method.optimizer.steps=12", "seed=0")
    assert "1 finished" in record
    folder = find_finetuning_folder(tmp_path)
    assert read_run(folder).state == "finished"
    (job,) = {path.name.partition("_")[0] for path in (tmp_path / ".sweeps").rglob("*_log.out")}
    fields = slurm_cluster.show(job)
    assert (fields["JobState"], fields["Requeue"], fields["TimeLimit"]) == ("COMPLETED", "1", "4-00:00:00")
    assert_equal_runs(sft, folder)
