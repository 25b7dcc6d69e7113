"""Sweeps on this machine with failed, killed, stopped and repeated runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import commands
from sweeping import (
    FAULTY_AGENT,
    load_states,
    load_status,
    run_refused_sweep,
    run_sweep,
    run_sweep_command,
    start_sweep,
    wait_for,
)


def folders(cwd: Path) -> list[Path]:
    return sorted(path.parent for path in cwd.rglob("queued.json"))


@pytest.mark.slow
def test_retry_finishes_sweep(tmp_path):
    overrides = (*FAULTY_AGENT, "agent.trouble=none,raise", "agent.until=ok", "seed=0", "name=sub/study")
    assert run_sweep(*overrides, cwd=tmp_path).returncode == 1
    no_retry = run_sweep_command("retry", "outputs", "--states", "lost", cwd=tmp_path)
    assert no_retry.returncode == 0 and re.search("outputs .*lost", no_retry.stdout)
    rejection = run_sweep_command("retry", "outputs", "--states", "finished", cwd=tmp_path)
    assert rejection.returncode == 1 and "finished" in rejection.stderr
    (tmp_path / "ok").touch()
    done = run_sweep_command("retry", "outputs", "--trust", "signal_game", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert load_states(tmp_path) == {("none", 0): "finished", ("raise", 0): "finished"}
    assert len(folders(tmp_path)) == 2


@pytest.mark.slow
def test_two_launchers_share_sweep(tmp_path):
    """Concurrent launchers execute each run once, and a later launcher executes none."""
    slow = ("agent.trouble=slow", "agent.until=ok", "design.steps=60")  # until the late one has looked
    overrides = (*FAULTY_AGENT, "hardware=local", *slow, "seed=0,1,2,3")
    first = start_sweep(*overrides, cwd=tmp_path)
    second = start_sweep(*overrides, cwd=tmp_path)
    wait_for(lambda: any(row["state"] == "running" for row in load_status(tmp_path, ".")))
    late = run_sweep(*overrides, cwd=tmp_path)
    assert late.returncode == 0 and "4 elsewhere" in late.stdout, late.stdout + late.stderr
    (tmp_path / "ok").touch()
    for launcher in (first, second):
        out, err = launcher.communicate(timeout=200)
        assert launcher.returncode == 0, out + err
    rows = load_status(tmp_path)
    assert [(row["state"], row["attempt"]) for row in rows] == [("finished", 1)] * 4


@pytest.mark.slow
def test_launcher_sigkill_keeps_runs(tmp_path):
    overrides = (
        *FAULTY_AGENT,
        "hardware.parallel=1",
        "agent.trouble=slow",
        "agent.until=ok",
        "seed=0,1",
        "design.steps=20",
    )
    launcher = start_sweep(*overrides, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "outputs").exists() and "running" in load_states(tmp_path).values())
    launcher.kill()
    launcher.wait()
    assert sorted(load_states(tmp_path).values()) == ["lost", "running"]
    (tmp_path / "ok").touch()
    wait_for(lambda: "finished" in load_states(tmp_path).values())
    done = run_sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 0 and {row["attempt"] for row in load_status(tmp_path)} == {1}


@pytest.mark.slow
def test_overrides_with_special_characters(tmp_path):
    """Values with spaces, `=`, `/` and commas reach the run unchanged from any working directory."""
    marker = tmp_path / "a b=c,d" / "ok file"
    marker.parent.mkdir()
    marker.touch()
    done = run_sweep(*FAULTY_AGENT, "agent.trouble=none,slow", f"agent.until='{marker}'", "seed=0", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for folder in folders(tmp_path):
        assert yaml.safe_load((folder / "config.yaml").read_text())["agent"]["until"] == str(marker)


@pytest.mark.slow
def test_invalid_run_prevents_sweep(tmp_path):
    done = run_refused_sweep("env=escape_room", "principal=none,nonsense", "seed=0,1", cwd=tmp_path)
    assert done.returncode == 1 and "nonsense" in done.stderr and not (tmp_path / "outputs" / "escape_room").exists()
    done = run_refused_sweep("env=escape_room", "hardware.memory_gb=-1,2", cwd=tmp_path)
    assert done.returncode == 1 and "hardware.memory_gb=-1" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "outputs" / "escape_room").exists()
    done = run_refused_sweep("env=escape_room", "hydra.launcher.wait=false", "seed=0,1", cwd=tmp_path)
    assert done.returncode == 1 and "hardware=slurm_cpu" in done.stderr and "Traceback" not in done.stderr
    for wrong, message in (
        ("env.n_envs=4,abc", "env.n_envs='abc'"),
        ("agent.ppo.learning_rate=1e-3,-1", "learning_rate=-1"),
        ("seed=0,-1", "seed=-1"),
        ("design.steps=1,0", "design.steps=0"),
        ("hardware.precision=highest,medium", "hardware.precision cannot be swept"),
        (["hardware/backend=here", "hardware.parallel=2"], "or use hardware/backend=local"),
    ):
        done = run_refused_sweep(
            "env=escape_room", "principal=ucb", *([wrong] if isinstance(wrong, str) else wrong), cwd=tmp_path
        )
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, (wrong, done.stderr)
    done = run_refused_sweep("env=escape_room", "seed=range(0,0)", cwd=tmp_path)
    assert done.returncode == 1 and "no runs" in done.stderr and "Traceback" not in done.stderr
    done = run_refused_sweep("env=escape_room", "dry_run=true,false", cwd=tmp_path)
    assert done.returncode == 1 and "dry_run must" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "file").touch()
    done = run_refused_sweep("env=escape_room", "seed=0,1", "output_root=file/outputs", cwd=tmp_path)
    assert done.returncode == 1 and "output_root=<folder>" in done.stderr and "Traceback" not in done.stderr
    for gpus in ("", "NoDevFiles"):
        done = run_sweep("env=escape_room", "hardware=gpu", "seed=0,1", cwd=tmp_path, CUDA_VISIBLE_DEVICES=gpus)
        assert done.returncode == 1 and "hardware.gpus=1" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "outputs" / "escape_room").exists()


@pytest.mark.long
@pytest.mark.slow
def test_full_disk_fails_affected_runs(tmp_path):
    """A small file system becomes full during a sweep; after space is freed, the same command finishes the sweep."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    overrides = (
        *FAULTY_AGENT,
        "agent.trouble=none",
        f"agent.until={tmp_path / 'ok'}",
        "seed=0,1,2,3",
        "design.steps=100",
    )
    try:
        done = run_sweep(*overrides, "output_root=disk/outputs", "checkpoint_seconds=0", cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "No space left" in done.stdout, done.stdout + done.stderr
        results = {row["seed"]: row["result"] for row in load_status(tmp_path, "disk") if row["state"] == "finished"}
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        second_sweep = run_sweep(*overrides, "output_root=disk/outputs", "checkpoint_seconds=0", cwd=tmp_path)
        assert second_sweep.returncode == 0, second_sweep.stdout + second_sweep.stderr
        after = {row["seed"]: row["result"] for row in load_status(tmp_path, "disk")}
        assert len(after) == 4 and results.items() <= after.items()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.long
@pytest.mark.slow
def test_damaged_folders_are_preserved(tmp_path):
    overrides = (*FAULTY_AGENT, "agent.trouble=none", "agent.until=ok", "seed=0,1,2")
    assert run_sweep(*overrides, cwd=tmp_path).returncode == 0
    corrupt_folder, newer, _ = sorted(path.parent for path in tmp_path.rglob("status.json"))
    (corrupt_folder / "status.json").write_text('{"state": "fini')
    content = json.loads((newer / "status.json").read_text())
    (newer / "status.json").write_text(json.dumps({**content, "format": 99}))
    output = run_sweep_command("status", "outputs", cwd=tmp_path)
    assert output.returncode == 1 and "2 unreadable, 1 finished" in output.stdout, output.stdout
    done = run_sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    message = " ".join(done.stdout.replace("│", " ").split())
    assert "status.json" in message and "(layout 99, " in message, done.stdout
    assert (newer / "metrics.jsonl").exists() and (corrupt_folder / "metrics.jsonl").exists()
    (corrupt_folder / "status.json").unlink()
    (newer / "status.json").write_text(json.dumps(content))
    assert run_sweep(*overrides, cwd=tmp_path).returncode == 0


@pytest.mark.long
@pytest.mark.slow
def test_clean_preserves_running_run(tmp_path):
    overrides = (*FAULTY_AGENT, "agent.trouble=none,raise", "agent.until=ok", "seed=0")
    run_sweep(*overrides, cwd=tmp_path)
    run_sweep(*overrides, "rerun=true", cwd=tmp_path)
    no_clean = run_sweep_command("clean", "outputs", cwd=tmp_path)
    assert no_clean.returncode == 1 and "--backups" in no_clean.stderr
    all_kinds = ("--backups", "--checkpoints", "--unfinished", "--launches")
    files = sorted(tmp_path.rglob("*"))
    output = run_sweep_command("clean", "outputs", *all_kinds, cwd=tmp_path)
    assert " 5 items" in output.stdout, output.stdout
    assert sorted(tmp_path.rglob("*")) == files
    assert "removed 5 items" in run_sweep_command("clean", "outputs", *all_kinds, "--yes", cwd=tmp_path).stdout
    (row,) = load_status(tmp_path)
    assert row["state"] == "finished" and (Path(row["folder"]) / "metrics.jsonl").exists()
    assert not (Path(row["folder"]) / "checkpoints").exists()


def test_command_errors(tmp_path):
    for name, *flags in (("status",), ("cancel",), ("retry",), ("clean", "--backups")):
        done = run_sweep_command(name, "nowhere", *flags, cwd=tmp_path)
        assert done.returncode == 1 and "folder nowhere" in done.stderr and "Traceback" not in done.stderr
    done = run_sweep_command("logs", ".", cwd=tmp_path)
    assert done.returncode == 1 and "no run in" in done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_thousand_runs_load_quickly(tmp_path):
    """Counts file accesses instead of time: each folder is read once, and only the ends of its files."""
    from llmrl.results.run_records import read_runs
    from llmrl.run.status import RunProgress, Status

    for i in range(1000):
        folder = tmp_path / "outputs" / "study" / f"principal_p{i // 10}-{i // 10:08x}" / f"s{i % 10}"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text("{}")
        Status("finished", result=float(i), overrides=[f"principal=p{i // 10}"], progress=RunProgress(1, 1)).write(
            folder
        )
        rows = '{"kind": "update", "x": "updates", "updates": 1, "loss": 0.5, "episode/return": %d}\n'
        rows += '{"kind": "probe", "x": "updates", "updates": 2, "probe/a/b": 0.5}\n{"kind": "upd'
        (folder / "metrics.jsonl").write_text(rows.replace("%d", str(i)))
    runs = read_runs(tmp_path)
    assert len(runs) == 1000 and runs[17].read_last_metrics() == {
        "updates": 2,
        "loss": 0.5,
        "episode/return": runs[17].result,
        "probe/a/b": 0.5,
    }
    status_process = commands.run(
        [sys.executable, "-c", "from llmrl.cli.sweep import main; main()", "status", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert status_process.returncode == 0 and "1000 finished" in status_process.stdout


@pytest.mark.slow
def test_group_signal_is_not_repeated(tmp_path):
    """`timeout` signals the process group; the fork server survives and reports the ends of runs."""
    overrides = (
        *FAULTY_AGENT,
        "hardware=local",
        "agent.trouble=slow",
        "agent.until=ok",
        "seed=0,1,2",
        "design.steps=500",
    )
    launcher = start_sweep(*overrides, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "outputs").exists() and "running" in load_states(tmp_path).values())
    os.killpg(launcher.pid, signal.SIGTERM)
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 143, out + err
    assert set(load_states(tmp_path).values()) <= {"preempted", "canceled"} and "preempted" in out


@pytest.mark.slow
def test_runs_survive_fork_server(tmp_path):
    """If the fork server is killed, the launcher waits for the runs."""
    overrides = (*FAULTY_AGENT, "hardware=local", "agent.trouble=slow", "agent.until=ok", "seed=0", "design.steps=20")
    launcher = start_sweep(*overrides, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "outputs").exists() and "running" in load_states(tmp_path).values())
    (run,) = load_status(tmp_path)
    server = int(Path(f"/proc/{run['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    (tmp_path / "ok").touch()
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0 and "1 finished" in out, out + err


@pytest.mark.slow
def test_long_error_is_truncated(tmp_path):
    overrides = (*FAULTY_AGENT, "agent.trouble=shout", "agent.until=ok", "seed=0")
    done = run_sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 1 and "AAAA" in done.stdout
    assert (next(tmp_path.rglob("traceback.txt"))).stat().st_size > 200_000


def test_remote_queue_expires_with_heartbeat(tmp_path):
    """Runs of a rebooted workstation are lost when its heartbeat has expired."""
    from llmrl.results.run_records import read_run
    from llmrl.run.queued import LaunchRecord

    run = tmp_path / "study" / "defaults-00000000" / "s0"
    sweep_folder = tmp_path / ".sweeps" / "one"
    for folder in (run, sweep_folder):
        folder.mkdir(parents=True)
    alive = sweep_folder / "launcher.alive"
    for backend in ("llmrl.sweeps.backends.local.Local", "llmrl.sweeps.backends.slurm_submission.Slurm"):
        LaunchRecord(
            backend, 0, "", "elsewhere", 1, "1", "elsewhere", str(sweep_folder), "", "", "", 0.0, "", []
        ).write(run)
        alive.touch()
        assert read_run(run).state == "queued"
        os.utime(alive, (0, 0))
        assert read_run(run).state == "lost"


@pytest.mark.slow
def test_run_variables_reach_runs(tmp_path):
    overrides = ("env=escape_room", "principal=random", "agent=random", "design.steps=1", "design.adapt_rounds=0")
    done = run_sweep(*overrides, "design.validate_episodes=1", "+hydra.job.env_set.OMP_NUM_THREADS='7'", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = tmp_path.rglob("provenance.json")
    assert json.loads(record.read_text())["attempts"][0]["environment"]["OMP_NUM_THREADS"] == "7"


def test_queue_answers_only_for_visible_jobs(tmp_path):
    """Jobs of other clusters or users keep their states; jobs missing in the queried queue are lost."""
    from llmrl.results.run_records import QueueSnapshot, read_run
    from llmrl.run.queued import LaunchRecord

    run = tmp_path / "study" / "defaults-00000000" / "s0"
    run.mkdir(parents=True)
    slurm = "llmrl.sweeps.backends.slurm_submission.Slurm"
    queued = LaunchRecord(slurm, 0, "7", "here", 1, "1", "here", str(tmp_path), "", "atlas", "ada", 0.0, "", [])
    queued.write(run)
    for cluster, user, jobs, state in (
        ("atlas", "ada", {"7": "PENDING"}, "queued"),
        ("atlas", "ada", {"8": "PENDING"}, "lost"),
        ("atlas", "eve", {}, "queued"),
        ("other", "ada", {}, "queued"),
    ):
        assert read_run(run, [QueueSnapshot(slurm, cluster, frozenset([user]), jobs)]).state == state, (cluster, user)


def test_missing_slurm_raises_early(tmp_path):
    overrides = ("env=escape_room", "hardware=slurm_cpu", "seed=0,1")
    done = run_sweep(*overrides, cwd=tmp_path, PATH=str(Path(sys.executable).parent))
    assert done.returncode == 1 and all(name in done.stderr for name in ("sbatch", "srun", "squeue")), done.stderr
    assert "hardware=local" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "outputs").exists()
