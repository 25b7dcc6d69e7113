"""Failures of the environment: each gives a clear message, loses no results and exits non-zero, in real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import commands
from experiments import find_run_folder

SMALL = (
    "env=escape_room",
    "env.n_envs=4",
    "design.references=0",
    "design.adapt_rounds=2",
    "design.validate_episodes=4",
    "checkpoint_seconds=0",
)


def command(*overrides):
    return [sys.executable, "-m", "llmrl.cli.train", *overrides]


def train(cwd, *overrides):
    return commands.run(command(*overrides), cwd=cwd, capture_output=True, text=True, timeout=300)


def state(folder: Path) -> str:
    return json.loads((folder / "status.json").read_text())["state"]


def interrupt(cwd, number, *overrides, saved=1):
    """Start a long run, signal it once it has `saved` checkpoints, and return the ended process with its output."""
    process = commands.Popen(command(*overrides), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started, deadline = time.time(), time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if new_checkpoints(cwd, started) >= saved:
            break
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def new_checkpoints(cwd, started) -> int:
    """Count the checkpoints that were written after `started`; files may vanish meanwhile."""
    try:
        return sum(path.stat().st_mtime > started for path in cwd.rglob("checkpoint_*.pt"))
    except FileNotFoundError:
        return 0


@pytest.fixture
def interrupted_run(tmp_path):
    """Return the folder of an interrupted run with two checkpoints."""
    done = interrupt(tmp_path, signal.SIGTERM, *SMALL, "principal=ucb", "design.steps=3000", saved=2)
    assert done.returncode == 128 + signal.SIGTERM and "SIGTERM" in done.stderr
    return find_run_folder(tmp_path / "outputs")


@pytest.mark.slow
def test_signals_print_resume_hint(tmp_path):
    done = interrupt(tmp_path, signal.SIGINT, *SMALL, "principal=ucb", "design.steps=3000")
    folder = find_run_folder(tmp_path / "outputs")
    assert done.returncode == 128 + signal.SIGINT and folder.parent.name in done.stderr
    assert state(folder) == "stopped" and list((folder / "checkpoints").glob("*.pt"))


@pytest.mark.slow
def test_corrupt_checkpoint_falls_back_to_previous(interrupted_run, tmp_path):
    newest = max((interrupted_run / "checkpoints").glob("*.pt"))
    newest.write_bytes(newest.read_bytes()[:-100])
    done = interrupt(tmp_path, signal.SIGTERM, *SMALL, "principal=ucb", "design.steps=3000")
    assert newest.name in done.stdout + done.stderr and "from iteration" in done.stdout + done.stderr


@pytest.mark.slow
def test_missing_checkpoints_give_advice(interrupted_run, tmp_path):
    for path in (interrupted_run / "checkpoints").glob("*.pt"):
        path.write_bytes(path.read_bytes()[:-100])
    rows = (interrupted_run / "metrics.jsonl").read_bytes()
    done = train(tmp_path, *SMALL, "principal=ucb", "design.steps=3000")
    assert done.returncode == 1 and "checkpoint" in done.stderr and "rerun=true" in done.stderr
    assert (interrupted_run / "metrics.jsonl").read_bytes() == rows


@pytest.mark.slow
def test_rejects_checkpoint_of_different_config(interrupted_run, tmp_path):
    done = train(tmp_path, *SMALL, "principal=random", "design.steps=1")
    assert done.returncode == 0, done.stderr
    (other_checkpoints,) = (p for p in (tmp_path / "outputs").rglob("checkpoints") if p.parent != interrupted_run)
    for path in (interrupted_run / "checkpoints").glob("*.pt"):
        path.unlink()
    shutil.copytree(other_checkpoints, interrupted_run / "checkpoints", dirs_exist_ok=True)
    done = train(tmp_path, *SMALL, "principal=ucb", "design.steps=3000")
    assert done.returncode == 1 and "config" in done.stderr
    assert all(p.parent.name.rsplit("-", 1)[1] in done.stderr for p in (interrupted_run, other_checkpoints.parent))


def test_language_model_server_down(tmp_path):
    llm = ("principal=llm", "llm=openai_compatible", "llm.base_url=http://127.0.0.1:9/v1", "llm.model=m")
    done = train(tmp_path, *SMALL, *llm)
    assert done.returncode == 1 and "http://127.0.0.1:9/v1" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("s[0-9]*")), "nothing was begun"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.meltingpot
def test_engine_crash_during_episode_is_resumable(tmp_path):
    overrides = (
        "env=harvest_pixels",
        "principal=random",
        "env.n_envs=1",
        "env.horizon=300",
        "design.steps=2",
        "design.references=0",
    )
    overrides += ("design.adapt_rounds=2", "design.validate_episodes=1", "checkpoint_seconds=0")
    process = commands.Popen(
        command(*overrides), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("checkpoint_*.pt")) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in descendants(process.pid):
        os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1 and "game 0" in err and "Traceback" not in err, err
    folder = find_run_folder(tmp_path / "outputs")
    assert state(folder) == "failed" and list((folder / "checkpoints").glob("*.pt"))
    done = train(tmp_path, *overrides)
    assert done.returncode == 0, done.stderr
    assert "from iteration" in done.stdout + done.stderr and state(folder) == "finished"


def descendants(pid: int) -> list[int]:
    """Return all processes started by `pid`, directly or indirectly."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it ended while we looked
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    process_ids = list(children.get(pid, []))
    for child in process_ids:
        process_ids += children.get(child, [])
    return process_ids
