"""Sweeps on this machine: what becomes of runs that fail, are killed, are stopped, or are asked for twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import commands
from sweeping import TROUBLED, command, refused, start, states, sweep, table, until


def folders(cwd: Path) -> list[Path]:
    return sorted(path.parent for path in cwd.rglob("queued.json"))


@pytest.mark.slow
def test_failed_and_killed_runs_stop_nobody_and_the_same_command_runs_only_them(tmp_path):
    overrides = (*TROUBLED, "hardware=local", "agent.trouble=none,raise,kill", "agent.until=ok", "seed=0,1")
    done = sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    expected = {("none", s): "finished" for s in (0, 1)} | {("raise", s): "failed" for s in (0, 1)}
    expected |= {("kill", s): "lost" for s in (0, 1)}
    assert states(tmp_path) == expected
    assert "2 finished, 2 failed, 2 lost" in done.stdout and "killed by SIGKILL" in done.stdout
    assert "ZeroDivisionError: made to fail" in done.stdout and "Traceback" not in done.stdout + done.stderr
    for row in table(tmp_path):
        if row["state"] == "failed":
            assert "in act\n" in (Path(row["folder"]) / "traceback.txt").read_text()
            told = command("logs", row["folder"], cwd=tmp_path)
            assert "made to fail" in told.stdout and "==> " in told.stdout
    shown = command("status", "outputs", cwd=tmp_path)
    assert shown.returncode == 1 and "made to fail" in shown.stdout and "trouble=kill" in shown.stdout

    (tmp_path / "ok").touch()
    again = sweep(*overrides, cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    rows = table(tmp_path)
    assert {row["state"] for row in rows} == {"finished"}
    attempts = {row["overrides"]["agent.trouble"]: row["attempt"] for row in rows}
    assert attempts == {"none": 1, "raise": 2, "kill": 2}
    assert again.stdout.count("nothing to do") == 2


@pytest.mark.slow
def test_retry_finishes_what_the_command_began(tmp_path):
    overrides = (*TROUBLED, "agent.trouble=none,raise", "agent.until=ok", "seed=0", "name=sub/study")
    assert sweep(*overrides, cwd=tmp_path).returncode == 1
    nothing = command("retry", "outputs", "--states", "lost", cwd=tmp_path)
    assert nothing.returncode == 0 and "no run in outputs is lost" in nothing.stdout
    refused = command("retry", "outputs", "--states", "finished", cwd=tmp_path)
    assert refused.returncode == 1 and "finished cannot be retried" in refused.stderr
    (tmp_path / "ok").touch()
    done = command("retry", "outputs", "--trust", "signal_game", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert states(tmp_path) == {("none", 0): "finished", ("raise", 0): "finished"}
    assert len(folders(tmp_path)) == 2


@pytest.mark.slow
def test_two_launchers_share_a_sweep(tmp_path):
    """Started together, they run every run once; one that comes later finds nothing to do."""
    slow = ("agent.trouble=slow", "agent.until=ok", "design.steps=60")  # until the late one has looked
    overrides = (*TROUBLED, "hardware=local", *slow, "seed=0,1,2,3")
    first = start(*overrides, cwd=tmp_path)
    second = start(*overrides, cwd=tmp_path)
    until(lambda: any(row["state"] == "running" for row in table(tmp_path, ".")))
    late = sweep(*overrides, cwd=tmp_path)
    assert late.returncode == 0 and "4 elsewhere" in late.stdout, late.stdout + late.stderr
    (tmp_path / "ok").touch()
    for launcher in (first, second):
        out, err = launcher.communicate(timeout=200)
        assert launcher.returncode == 0, out + err
    rows = table(tmp_path)
    assert [(row["state"], row["attempt"]) for row in rows] == [("finished", 1)] * 4


@pytest.mark.slow
def test_first_interrupt_saves_and_the_same_command_goes_on(tmp_path):
    overrides = (
        *TROUBLED,
        "hardware.parallel=1",
        "agent.trouble=slow",
        "agent.until=ok",
        "seed=0,1",
        "design.steps=60",
    )
    launcher = start(*overrides, cwd=tmp_path)
    until(lambda: states(tmp_path).get(("slow", 0)) == "running" if (tmp_path / "outputs").exists() else False)
    until(lambda: table(tmp_path)[0]["last_metrics"].get("principal_steps", 0) >= 1)
    assert states(tmp_path)["slow", 1] == "queued"
    os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does
    out, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 130, out + err
    assert "1 stopped, 1 cancelled" in out
    assert states(tmp_path) == {("slow", 0): "stopped", ("slow", 1): "cancelled"}
    (tmp_path / "ok").touch()
    done = sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["seed"]: row["attempt"] for row in table(tmp_path)} == {0: 2, 1: 1}


@pytest.mark.slow
def test_cancel_tells_the_launcher_and_its_runs(tmp_path):
    overrides = (
        *TROUBLED,
        "hardware.parallel=1",
        "agent.trouble=slow",
        "agent.until=ok",
        "seed=0,1",
        "design.steps=500",
    )
    launcher = start(*overrides, cwd=tmp_path)
    until(lambda: (tmp_path / "outputs").exists() and "running" in states(tmp_path).values())
    waiting = next(row for row in table(tmp_path) if row["state"] == "queued")
    refused = command("cancel", waiting["folder"], cwd=tmp_path)
    assert refused.returncode == 1 and "a local queue stops as a whole" in refused.stderr
    done = command("cancel", "outputs", cwd=tmp_path)
    assert done.returncode == 0 and "told 2 processes" in done.stdout, done.stdout + done.stderr
    launcher.communicate(timeout=100)
    assert launcher.returncode == 143
    assert sorted(states(tmp_path).values()) == ["cancelled", "preempted"]


@pytest.mark.slow
def test_a_launcher_killed_outright_leaves_its_runs_working_and_its_queue_free(tmp_path):
    overrides = (
        *TROUBLED,
        "hardware.parallel=1",
        "agent.trouble=slow",
        "agent.until=ok",
        "seed=0,1",
        "design.steps=20",
    )
    launcher = start(*overrides, cwd=tmp_path)
    until(lambda: (tmp_path / "outputs").exists() and "running" in states(tmp_path).values())
    launcher.kill()
    launcher.wait()
    assert sorted(states(tmp_path).values()) == ["lost", "running"]
    (tmp_path / "ok").touch()
    until(lambda: "finished" in states(tmp_path).values())
    done = sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 0 and {row["attempt"] for row in table(tmp_path)} == {1}


@pytest.mark.slow
def test_overrides_with_spaces_and_signs(tmp_path):
    """A value with spaces, `=`, `/` and commas reaches the run as it was typed, from whatever folder."""
    marker = tmp_path / "a b=c,d" / "ok file"
    marker.parent.mkdir()
    marker.touch()
    done = sweep(*TROUBLED, "agent.trouble=none,slow", f"agent.until='{marker}'", "seed=0", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for folder in folders(tmp_path):
        assert yaml.safe_load((folder / "config.yaml").read_text())["agent"]["until"] == str(marker)


@pytest.mark.slow
def test_a_mistake_in_one_run_starts_none(tmp_path):
    done = refused("env=escape_room", "principal=none,nonsense", "seed=0,1", cwd=tmp_path)
    assert done.returncode == 1 and "nonsense" in done.stderr and not (tmp_path / "outputs" / "escape_room").exists()
    done = refused("env=escape_room", "hardware.memory_gb=-1,2", cwd=tmp_path)
    assert done.returncode == 1 and "hardware.memory_gb=-1" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "outputs" / "escape_room").exists()
    done = refused("env=escape_room", "hydra.launcher.wait=false", "seed=0,1", cwd=tmp_path)
    assert done.returncode == 1 and "such as hardware=slurm_cpu" in done.stderr and "Traceback" not in done.stderr
    for wrong, told in (
        ("env.n_envs=4,abc", "env.n_envs='abc'"),
        ("agent.ppo.learning_rate=1e-3,-1", "learning_rate=-1"),
        ("seed=0,-1", "seed=-1"),
        ("design.steps=1,0", "design.steps=0"),
        ("hardware.precision=highest,medium", "hardware.precision: different values are not different runs"),
        (["hardware/backend=here", "hardware.parallel=2"], "hardware/backend=local computes several"),
    ):
        done = refused(
            "env=escape_room", "principal=ucb", *([wrong] if isinstance(wrong, str) else wrong), cwd=tmp_path
        )
        assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr, (wrong, done.stderr)
    done = refused("env=escape_room", "seed=range(0,0)", cwd=tmp_path)
    assert done.returncode == 1 and "this sweep has no runs" in done.stderr and "Traceback" not in done.stderr
    done = refused("env=escape_room", "dry_run=true,false", cwd=tmp_path)
    assert done.returncode == 1 and "dry_run is for all runs" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "file").touch()
    done = refused("env=escape_room", "seed=0,1", "output_root=file/outputs", cwd=tmp_path)
    assert done.returncode == 1 and "choose a writable place" in done.stderr.lower() and "Traceback" not in done.stderr
    for gpus in ("", "NoDevFiles"):
        done = sweep("env=escape_room", "hardware=gpu", "seed=0,1", cwd=tmp_path, CUDA_VISIBLE_DEVICES=gpus)
        assert done.returncode == 1 and "this machine shows 0" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "outputs" / "escape_room").exists()


@pytest.mark.slow
def test_a_full_disk_fails_the_runs_it_hits_and_loses_nothing(tmp_path):
    """A small file system fills up in the middle of a sweep; with room again the same command finishes it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    overrides = (*TROUBLED, "agent.trouble=none", f"agent.until={tmp_path / 'ok'}", "seed=0,1,2,3", "design.steps=100")
    try:
        done = sweep(*overrides, "output_root=disk/outputs", "checkpoint_seconds=0", cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "No space left on device" in done.stdout, done.stdout + done.stderr
        before = {row["seed"]: row["result"] for row in table(tmp_path, "disk") if row["state"] == "finished"}
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        again = sweep(*overrides, "output_root=disk/outputs", "checkpoint_seconds=0", cwd=tmp_path)
        assert again.returncode == 0, again.stdout + again.stderr
        after = {row["seed"]: row["result"] for row in table(tmp_path, "disk")}
        assert len(after) == 4 and before.items() <= after.items()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
def test_damaged_and_newer_folders_are_told_apart_and_kept(tmp_path):
    overrides = (*TROUBLED, "agent.trouble=none", "agent.until=ok", "seed=0,1,2")
    assert sweep(*overrides, cwd=tmp_path).returncode == 0
    damaged, newer, _ = sorted(path.parent for path in tmp_path.rglob("status.json"))
    (damaged / "status.json").write_text('{"state": "fini')
    content = json.loads((newer / "status.json").read_text())
    (newer / "status.json").write_text(json.dumps({**content, "format": 99}))
    shown = command("status", "outputs", cwd=tmp_path)
    assert shown.returncode == 1 and "2 unreadable, 1 finished" in shown.stdout, shown.stdout
    done = sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    said = " ".join(done.stdout.replace("│", " ").split())
    assert "delete that file" in said and "newer llmrl" in said, done.stdout
    assert (newer / "metrics.jsonl").exists() and (damaged / "metrics.jsonl").exists()
    (damaged / "status.json").unlink()
    (newer / "status.json").write_text(json.dumps(content))
    assert sweep(*overrides, cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_clean_shows_first_and_touches_no_running_run(tmp_path):
    overrides = (*TROUBLED, "agent.trouble=none,raise", "agent.until=ok", "seed=0")
    sweep(*overrides, cwd=tmp_path)
    sweep(*overrides, "rerun=true", cwd=tmp_path)
    nothing = command("clean", "outputs", cwd=tmp_path)
    assert nothing.returncode == 1 and "--backups" in nothing.stderr
    everything = ("--backups", "--checkpoints", "--unfinished", "--launches")
    files = sorted(tmp_path.rglob("*"))
    shown = command("clean", "outputs", *everything, cwd=tmp_path)
    assert "would remove 5 items" in shown.stdout, shown.stdout
    assert sorted(tmp_path.rglob("*")) == files
    assert "removed 5 items" in command("clean", "outputs", *everything, "--yes", cwd=tmp_path).stdout
    (row,) = table(tmp_path)
    assert row["state"] == "finished" and (Path(row["folder"]) / "metrics.jsonl").exists()
    assert not (Path(row["folder"]) / "checkpoints").exists()


def test_commands_say_what_is_wrong(tmp_path):
    for name, *flags in (("status",), ("cancel",), ("retry",), ("clean", "--backups")):
        done = command(name, "nowhere", *flags, cwd=tmp_path)
        assert done.returncode == 1 and "there is no folder nowhere" in done.stderr and "Traceback" not in done.stderr
    done = command("logs", ".", cwd=tmp_path)
    assert done.returncode == 1 and "has no run in it" in done.stderr


@pytest.mark.slow
def test_a_thousand_finished_runs_are_read_in_seconds(tmp_path):
    """Not timed here; that every folder is read once, and only its end, is what makes it quick."""
    from llmrl.analysis.runs import read_runs
    from llmrl.run.status import RunProgress, Status

    for i in range(1000):
        folder = tmp_path / "outputs" / "study" / f"principal_p{i // 10}-{i // 10:08x}" / f"s{i % 10}"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text("{}")
        Status("finished", result=float(i), overrides=[f"principal=p{i // 10}"], progress=RunProgress(1, 1)).write(
            folder
        )
        rows = '{"kind": "update", "x": "updates", "updates": 1, "loss": 0.5, "ended/return": %d}\n'
        rows += '{"kind": "probe", "x": "updates", "updates": 2, "probe/a/b": 0.5}\n{"kind": "upd'
        (folder / "metrics.jsonl").write_text(rows.replace("%d", str(i)))
    runs = read_runs(tmp_path)
    assert len(runs) == 1000 and runs[17].last_metrics() == {
        "updates": 2,
        "loss": 0.5,
        "ended/return": runs[17].result,
        "probe/a/b": 0.5,
    }
    shown = commands.run(
        [sys.executable, "-c", "from llmrl.cli.sweep import main; main()", "status", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0 and "1000 finished" in shown.stdout


@pytest.mark.slow
def test_a_signal_for_the_whole_process_group_is_handed_on_once(tmp_path):
    """As `timeout` sends it: the server that runs are forked from stays, and tells of their ends."""
    overrides = (*TROUBLED, "hardware=local", "agent.trouble=slow", "agent.until=ok", "seed=0,1,2", "design.steps=500")
    launcher = start(*overrides, cwd=tmp_path)
    until(lambda: (tmp_path / "outputs").exists() and "running" in states(tmp_path).values())
    os.killpg(launcher.pid, signal.SIGTERM)
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 143, out + err
    assert set(states(tmp_path).values()) <= {"preempted", "cancelled"} and "preempted" in out


@pytest.mark.slow
def test_runs_outlive_the_server_they_were_forked_from(tmp_path):
    """Somebody kills it: the launcher goes on waiting for the runs themselves."""
    overrides = (*TROUBLED, "hardware=local", "agent.trouble=slow", "agent.until=ok", "seed=0", "design.steps=20")
    launcher = start(*overrides, cwd=tmp_path)
    until(lambda: (tmp_path / "outputs").exists() and "running" in states(tmp_path).values())
    (run,) = table(tmp_path)
    server = int(Path(f"/proc/{run['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    (tmp_path / "ok").touch()
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0 and "1 finished" in out, out + err


@pytest.mark.slow
def test_a_very_long_error_is_told_and_holds_nobody_up(tmp_path):
    overrides = (*TROUBLED, "agent.trouble=shout", "agent.until=ok", "seed=0")
    done = sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 1 and "AAAA" in done.stdout
    assert (next(tmp_path.rglob("traceback.txt"))).stat().st_size > 200_000


@pytest.mark.slow
def test_batches_go_on_after_a_failure(tmp_path):
    overrides = (*TROUBLED, "agent.trouble=raise,none", "agent.until=ok", "seed=0", "hydra.sweeper.max_batch_size=1")
    done = sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert states(tmp_path) == {("raise", 0): "failed", ("none", 0): "finished"}
    assert {folder.parent.name.rpartition("-")[0] for folder in folders(tmp_path)} == {
        "adapt_rounds_1-steps_2-trouble_raise",
        "adapt_rounds_1-steps_2-trouble_none",
    }


def test_a_queue_of_another_machine_is_believed_for_as_long_as_it_is_heard_of(tmp_path):
    """A workstation that was rebooted leaves runs that nobody will come to."""
    from llmrl.analysis.runs import read_run
    from llmrl.run.queued import Queued

    run = tmp_path / "study" / "defaults-00000000" / "s0"
    sweep_folder = tmp_path / ".sweeps" / "one"
    for folder in (run, sweep_folder):
        folder.mkdir(parents=True)
    alive = sweep_folder / "launcher.alive"
    for backend in ("llmrl.sweeps.backends.local.Local", "llmrl.sweeps.backends.slurm_submission.Slurm"):
        Queued(backend, 0, "", "elsewhere", 1, "1", "elsewhere", str(sweep_folder), "", "", "", 0.0, "", []).write(run)
        alive.touch()
        assert read_run(run).state == "queued"
        os.utime(alive, (0, 0))
        assert read_run(run).state == "lost"


@pytest.mark.slow
def test_variables_for_runs_reach_them(tmp_path):
    overrides = ("env=escape_room", "principal=random", "agent=random", "design.steps=1", "design.adapt_rounds=0")
    done = sweep(*overrides, "design.validate_episodes=1", "+hydra.job.env_set.OMP_NUM_THREADS='7'", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = tmp_path.rglob("provenance.json")
    assert json.loads(record.read_text())["attempts"][0]["environment"]["OMP_NUM_THREADS"] == "7"


def test_a_queue_is_asked_only_about_jobs_it_can_know(tmp_path):
    """Jobs of another cluster, or of a user it was not asked for, are believed; its own are gone if it has none."""
    from llmrl.analysis.runs import Queue, read_run
    from llmrl.run.queued import Queued

    run = tmp_path / "study" / "defaults-00000000" / "s0"
    run.mkdir(parents=True)
    slurm = "llmrl.sweeps.backends.slurm_submission.Slurm"
    queued = Queued(slurm, 0, "7", "here", 1, "1", "here", str(tmp_path), "", "atlas", "ada", 0.0, "", [])
    queued.write(run)
    for cluster, user, jobs, state in (
        ("atlas", "ada", {"7": "PENDING"}, "queued"),
        ("atlas", "ada", {"8": "PENDING"}, "lost"),
        ("atlas", "eve", {}, "queued"),
        ("other", "ada", {}, "queued"),
    ):
        assert read_run(run, [Queue(slurm, cluster, frozenset([user]), jobs)]).state == state, (cluster, user)


def test_slurm_that_is_not_there_is_said_before_anything_is_written(tmp_path):
    overrides = ("env=escape_room", "hardware=slurm_cpu", "seed=0,1")
    done = sweep(*overrides, cwd=tmp_path, PATH=str(Path(sys.executable).parent))
    assert done.returncode == 1 and "sbatch and srun and squeue not found on PATH" in done.stderr, done.stderr
    assert "hardware=local needs none" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "outputs").exists()
