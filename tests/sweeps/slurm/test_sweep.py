"""Sweeps on a one-node SLURM cluster: arrays, requeueing, time limits, cancellation and failures."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

import commands
from cluster import Cluster, get_environment_outside_jobs
from experiments import load_comparable_metrics
from llmrl.results.run_records import read_runs
from sweeping import FAULTY_AGENT, load_states, load_status, run_sweep, run_sweep_command, start_sweep, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

SLURM = ("hardware=slurm_cpu", "hardware.memory_gb=1")
ROOM = ("env=escape_room", "env.n_envs=4", "design.adapt_rounds=2", "design.validate_episodes=4", "design.references=0")
ROOM += ("design.evaluations=1",)


def runs_per_seed(cwd: Path) -> dict[int, dict]:
    return {row["seed"]: row for row in load_status(cwd)}


def path_with_array_limit(folder: Path, limit: int) -> str:
    """Return a PATH whose scontrol reports `limit` as the maximum size of job arrays."""
    smaller = folder / "bin" / "scontrol"
    smaller.parent.mkdir()
    edit = f"sed 's/^MaxArraySize .*/MaxArraySize = {limit}/'"
    smaller.write_text(f'#!/bin/bash\nset -o pipefail\n{shutil.which("scontrol")} "$@" | {edit}\n')
    smaller.chmod(0o755)
    return os.pathsep.join([str(smaller.parent), os.environ["PATH"]])


def check_finished_sweep(cluster: Cluster, cwd: Path, n_runs: int, path: str, *overrides: str) -> None:
    """Execute a sweep as two job arrays, and check that the repeated command submits no job."""
    done = run_sweep(*overrides, cwd=cwd, PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{n_runs} finished" in done.stdout
    rows = load_status(cwd)
    assert {row["state"] for row in rows} == {"finished"} and {row["attempt"] for row in rows} == {1}
    jobs = {row["job_id"] for row in rows}
    assert len(jobs) == n_runs and len({job.split("_")[0] for job in jobs}) == 2
    assert all(cluster.show(job)["JobState"] == "COMPLETED" for job in jobs)
    output = run_sweep_command("status", "outputs", cwd=cwd)
    assert output.returncode == 0 and output.stdout.count("100%") == n_runs

    second_sweep = run_sweep(*overrides, cwd=cwd)
    assert second_sweep.returncode == 0 and second_sweep.stdout.count("nothing to do") == n_runs
    assert [row["updated"] for row in load_status(cwd)] == [row["updated"] for row in rows]


def test_sweep_is_computed_by_arrays_of_jobs(slurm_cluster: Cluster, tmp_path: Path):
    """Three seeds with arrays of at most two jobs."""
    path = path_with_array_limit(tmp_path, 2)
    overrides = (*SLURM, *ROOM, "principal=ucb", "seed=0,1,2", "design.steps=2")
    check_finished_sweep(slurm_cluster, tmp_path, 3, path, *overrides)
    assert {row["seed"] for row in load_status(tmp_path)} == {0, 1, 2}


@pytest.mark.long
def test_single_command_sweep_produces_report(slurm_cluster: Cluster, tmp_path: Path):
    """Two principals with two seeds, more runs than the maximum size of an array."""
    path = path_with_array_limit(tmp_path, 3)
    overrides = (*SLURM, *ROOM, "principal=ucb,llm", "seed=0,1", "design.steps=2")
    check_finished_sweep(slurm_cluster, tmp_path, 4, path, *overrides)

    report = [sys.executable, "-c", "from llmrl.cli.sweep_report import main; main()", "outputs/escape_room"]
    report_process = commands.run(report, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert report_process.returncode == 0, report_process.stdout + report_process.stderr
    page = (tmp_path / "outputs" / "escape_room" / "report" / "report.html").read_text()
    assert all(f"principal={name}" in page for name in ("ucb", "scripted rule"))
    assert "not a language model" in page

    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    curves = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "outputs"))
    curves.Reload()
    runs = {name for name, tags in curves.Runs().items() if "Compare/2_online_objective" in tags["scalars"]}
    assert len(runs) == 4 and all("principal_" in name and name.startswith("escape_room/") for name in runs)


@pytest.mark.long
def test_rows_of_jobs_match_single_jobs(slurm_cluster: Cluster, tmp_path: Path):
    """Four runs in separate jobs and in two jobs with two runs each."""
    overrides = (*SLURM, *ROOM, "principal=ucb,llm", "seed=0,1", "design.steps=2")
    done = run_sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 0 and "4 finished" in done.stdout, done.stdout + done.stderr
    rows = load_status(tmp_path)
    packed = run_sweep(*overrides, "hardware.jobs=2", "output_root=packed", cwd=tmp_path)
    assert packed.returncode == 0 and "4 finished" in packed.stdout, packed.stdout + packed.stderr
    packed_rows = load_status(tmp_path, "packed")
    assert len({row["job_id"] for row in packed_rows}) == 2
    numbers = {
        (row["overrides"]["principal"], row["seed"]): load_comparable_metrics(Path(row["folder"])) for row in rows
    }
    for row in packed_rows:
        assert load_comparable_metrics(Path(row["folder"])) == numbers[row["overrides"]["principal"], row["seed"]]
        assert list(Path(row["folder"]).glob("events.out.tfevents.*"))


@pytest.mark.long
def test_interruptions_keep_results(slurm_cluster: Cluster, tmp_path: Path):
    """One run is requeued twice, one gets the signal before its time limit, one is killed and one fails."""
    room = (*ROOM, "principal=ucb", "design.steps=400", "checkpoint_seconds=0.5", "seed=0,1,2")
    (tmp_path / "reference").mkdir()
    reference = run_sweep(*room, "hardware=local", cwd=tmp_path / "reference")
    assert reference.returncode == 0, reference.stdout + reference.stderr

    launcher = start_sweep(*SLURM, *room, cwd=tmp_path)
    failing = start_sweep(*FAULTY_AGENT, *SLURM, "agent.trouble=raise", "agent.until=ok", "seed=9", cwd=tmp_path)
    done: dict[int, int] = {0: 0, 1: 0, 2: 0}

    def interrupt_runs() -> bool:
        """Apply the next interruption to every run with enough progress; return whether all have been applied."""
        folder = tmp_path / "outputs" / "escape_room"
        for run in read_runs(folder) if folder.exists() else []:
            step, seed = run.read_last_metrics().get("principal_steps", 0), run.seed
            if run.state != "running" or step < 50 * (done[seed] + 1):
                continue
            if seed == 0 and done[0] < 2 and run.attempt == done[0] + 1:
                slurm_cluster.run("scontrol", "requeue", run.job_id)
            elif seed == 1 and done[1] < 1:
                slurm_cluster.run("scancel", "--signal=USR2", run.job_id)
                # The second harms nothing. Not by scancel, which waits for a job that ends to begin anew.
                with suppress(ProcessLookupError):
                    os.kill(run.pid, signal.SIGUSR2)
            elif seed == 2 and done[2] < 1:
                try:
                    os.kill(run.pid, signal.SIGKILL)
                except ProcessLookupError:  # a new attempt has begun since its status was read
                    continue
            else:
                continue
            done[seed] += 1
        return done == {0: 2, 1: 1, 2: 1}

    wait_for(interrupt_runs, 300)
    out, err = launcher.communicate(timeout=300)
    assert launcher.returncode == 1, out + err
    assert "2 finished, 1 lost" in out, out
    out, err = failing.communicate(timeout=300)
    assert failing.returncode == 1 and "ZeroDivisionError" in out, out + err
    rows = runs_per_seed(tmp_path)
    assert {seed: row["state"] for seed, row in rows.items()} == {
        0: "finished",
        1: "finished",
        2: "lost",
        9: "failed",
    }
    assert {seed: row["attempt"] for seed, row in rows.items()} == {0: 3, 1: 2, 2: 1, 9: 1}
    assert "ZeroDivisionError" in (Path(rows[9]["folder"]) / "traceback.txt").read_text()
    in_slurm = {seed: slurm_cluster.show(row["job_id"]) for seed, row in rows.items()}
    assert {seed: job["JobState"] for seed, job in in_slurm.items()} == {
        0: "COMPLETED",
        1: "COMPLETED",
        2: "FAILED",
        9: "FAILED",
    }
    assert (in_slurm[0]["Restarts"], in_slurm[1]["Restarts"]) == ("2", "1")
    assert "SLURM: FAILED" in rows[2]["error"]

    second_sweep = run_sweep(*SLURM, *room, cwd=tmp_path)
    output = second_sweep.stdout + second_sweep.stderr
    assert second_sweep.returncode == 0 and second_sweep.stdout.count("nothing to do") == 2, output
    assert {row["attempt"] for seed, row in runs_per_seed(tmp_path).items() if seed == 2} == {2}
    for seed in range(3):
        (reference_folder,) = (tmp_path / "reference").rglob(f"escape_room/*/s{seed}")
        (folder,) = (tmp_path / "outputs").rglob(f"escape_room/*/s{seed}")
        assert load_comparable_metrics(folder) == load_comparable_metrics(reference_folder), f"seed {seed}"
        assert json.loads((folder / "summary.json").read_text()) == json.loads(
            (reference_folder / "summary.json").read_text()
        )


@pytest.mark.long
def test_time_limit_saves(slurm_cluster: Cluster, tmp_path: Path):
    """A run that exceeds its time limit saves; without further timeouts it ends as FAILED and can be resumed."""
    limits = ("hardware.backend.time_min=2", "hardware.backend.warn_s=30", "hardware.backend.max_timeouts=0")
    overrides = (*FAULTY_AGENT, "agent.trouble=slow", "agent.until=ok", "seed=0", "design.steps=2000")
    done = run_sweep(*overrides, *SLURM, *limits, cwd=tmp_path)
    assert done.returncode == 143, done.stdout + done.stderr
    (row,) = load_status(tmp_path)
    assert row["state"] == "preempted" and "timed-out" in row["error"], row
    assert slurm_cluster.show(row["job_id"])["JobState"] == "FAILED"
    step = row["last_metrics"]["principal_steps"]
    assert step > 5  # SLURM warns up to a minute early
    (tmp_path / "ok").touch()
    done = run_sweep(*overrides, *SLURM, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = load_status(tmp_path)
    assert row["attempt"] == 2 and "from iteration" in (Path(row["folder"]) / "run.log").read_text()


@pytest.mark.long
def test_submitted_sweep_is_canceled(slurm_cluster: Cluster, tmp_path: Path):
    overrides = (*FAULTY_AGENT, *SLURM, "agent.trouble=slow", "agent.until=ok", "design.steps=2000")
    done = run_sweep(*overrides, "seed=0,1,2,3", "hydra.launcher.wait=false", cwd=tmp_path)
    assert done.returncode == 0 and "4 submitted" in done.stdout, done.stdout + done.stderr
    wait_for(lambda: "running" in load_states(tmp_path).values())
    second_sweep = run_sweep(*overrides, "seed=0,1,2,3", cwd=tmp_path)
    assert second_sweep.returncode == 0 and "4 elsewhere" in second_sweep.stdout, second_sweep.stdout
    canceled = run_sweep_command("cancel", "outputs", cwd=tmp_path)
    assert canceled.returncode == 0 and "canceled 4 jobs" in canceled.stdout
    wait_for(lambda: not {"running", "queued"} & set(load_states(tmp_path).values()))
    rows = load_status(tmp_path)
    assert {row["state"] for row in rows} <= {"preempted", "canceled"} and "preempted" in load_states(tmp_path).values()
    for row in rows:
        message = "everything is saved" if row["state"] == "preempted" else "canceled before it started"
        assert message in row["error"], row


@pytest.mark.long
def test_launch_inside_allocation(slurm_cluster: Cluster, tmp_path: Path):
    """Variables of the enclosing job are not passed on; overrides with spaces, `=` and `/` are unchanged."""
    marker = tmp_path / "a b=c" / "ok file"
    marker.parent.mkdir()
    marker.touch()
    (tmp_path / "elsewhere").mkdir()
    inner = [
        *(sys.executable, "-m", "llmrl.cli.train", "--multirun", *FAULTY_AGENT, *SLURM),
        *("agent.trouble=slow", f"agent.until='{marker}'", "seed=0,1", f"output_root='{tmp_path}/out put'"),
        *("hydra.launcher.wait=false",),
    ]
    outer = ["srun", "--ntasks=1", "--cpus-per-task=1", "--mem=500M", "--job-name=enclosing", *inner]
    done = subprocess.run(
        outer,
        cwd=tmp_path / "elsewhere",
        env=get_environment_outside_jobs(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "2 submitted" in done.stdout, done.stdout + done.stderr
    wait_for(lambda: {row["state"] for row in load_status(tmp_path, "out put")} == {"finished"})
    for row in load_status(tmp_path, "out put"):
        assert yaml.safe_load((Path(row["folder"]) / "config.yaml").read_text())["agent"]["until"] == str(marker)
        assert slurm_cluster.show(row["job_id"])["JobName"] == "llmrl"


@pytest.mark.long
def test_slurm_rejection_can_be_resubmitted(slurm_cluster: Cluster, tmp_path: Path):
    overrides = (*FAULTY_AGENT, "agent.trouble=none", "agent.until=ok", "seed=0")
    done = run_sweep(*overrides, *SLURM, "hardware.backend.partition=no_such", cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    output = " ".join(done.stdout.replace("│", " ").split())
    assert re.search("sbatch refused: .*: no_such", output), done.stdout
    (row,) = load_status(tmp_path)
    assert row["state"] == "lost" and "no_such" in row["error"]
    assert "no_such" in run_sweep_command("logs", row["folder"], cwd=tmp_path).stdout
    done = run_sweep(*overrides, *SLURM, cwd=tmp_path)
    assert done.returncode == 0 and load_states(tmp_path) == {("none", 0): "finished"}, done.stdout + done.stderr


@pytest.mark.long
def test_code_change_warns(slurm_cluster: Cluster, tmp_path: Path):
    """The code on disk, here a copy of the package, changes before a held job starts."""
    import shutil

    import llmrl

    copy = tmp_path / "code"
    shutil.copytree(Path(llmrl.__file__).parent, copy / "llmrl", ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(copy), os.environ["PYTHONPATH"]])
    overrides = (*FAULTY_AGENT, *SLURM, "agent.trouble=none", "agent.until=ok", "seed=0")
    held = ("hydra.launcher.wait=false", "hardware.backend.extra={hold: true}")
    done = run_sweep(*overrides, *held, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    (copy / "llmrl" / "__init__.py").open("a").write("\n# changed\n")
    (row,) = load_status(tmp_path)
    slurm_cluster.run("scontrol", "release", row["job_id"])
    wait_for(lambda: load_status(tmp_path)[0]["state"] == "finished")
    assert "submission (digest" in (Path(row["folder"]) / "run.log").read_text()


@pytest.mark.long
def test_preemption_requeues_run(slurm_cluster: Cluster, tmp_path: Path):
    """In a partition with GraceTime, SIGTERM arrives while the job is still in the state RUNNING."""
    overrides = (*FAULTY_AGENT, "agent.trouble=slow", "agent.until=ok", "seed=0", "design.steps=2000")
    launcher = start_sweep(*overrides, *SLURM, "hardware.backend.partition=scavenge", cwd=tmp_path)
    wait_for(lambda: (tmp_path / "outputs").exists() and "running" in load_states(tmp_path).values())
    (row,) = load_status(tmp_path)
    slurm_cluster.run("scancel", "--signal=TERM", row["job_id"])  # what its grace begins with
    wait_for(lambda: load_status(tmp_path)[0]["attempt"] >= 2)
    (tmp_path / "ok").touch()
    out, err = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, out + err
    # Jobs of tests in other processes are in the partition `main` and may preempt this one again.
    assert int(slurm_cluster.show(row["job_id"])["Restarts"]) >= 1
    assert load_states(tmp_path) == {("slow", 0): "finished"}


@pytest.mark.long
def test_pending_retry_is_not_resubmitted(slurm_cluster: Cluster, tmp_path: Path):
    """SLURM reports a requeued job with slow setup lines as RUNNING before the run starts."""
    slow = ("hardware.backend.setup=[sleep 6]", "agent.trouble=slow", "agent.until=ok", "design.steps=2000")
    overrides = (*FAULTY_AGENT, *SLURM, *slow, "seed=0")
    launcher = start_sweep(*overrides, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "outputs").exists() and "running" in load_states(tmp_path).values())
    (row,) = load_status(tmp_path)
    slurm_cluster.run("scontrol", "requeue", row["job_id"])
    state_history = set()

    def is_rerunning() -> bool:
        (now,) = load_status(tmp_path)
        if now["attempt"] == 1 and slurm_cluster.show(row["job_id"])["JobState"] in ("PENDING", "RUNNING"):
            state_history.add(now["state"])
        return now["attempt"] == 2

    wait_for(lambda: slurm_cluster.show(row["job_id"])["Restarts"] == "1")
    second_sweep = run_sweep(*overrides, cwd=tmp_path)
    assert second_sweep.returncode == 0 and "1 elsewhere" in second_sweep.stdout, (
        second_sweep.stdout + second_sweep.stderr
    )
    wait_for(is_rerunning)
    assert state_history <= {"queued", "running"}, state_history
    (tmp_path / "ok").touch()
    out, err = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, out + err


@pytest.mark.long
def test_unstarted_rerun_differs_from_previous_run(slurm_cluster: Cluster, tmp_path: Path):
    overrides = (*FAULTY_AGENT, *SLURM, "agent.trouble=none", "agent.until=ok", "seed=0")
    assert run_sweep(*overrides, cwd=tmp_path).returncode == 0
    launcher = start_sweep(*overrides, "rerun=true", "hardware.backend.extra={hold: true}", cwd=tmp_path)
    wait_for(lambda: load_states(tmp_path) == {("none", 0): "queued"})
    canceled = run_sweep_command("cancel", "outputs", cwd=tmp_path)
    assert "canceled 1 jobs" in canceled.stdout, canceled.stdout + canceled.stderr
    out, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 130 and "left the queue" in out, out + err
    assert load_states(tmp_path) == {("none", 0): "finished"}
