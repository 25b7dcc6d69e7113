"""Sweeps whose runs share processes: they end as runs of their own do, and outlive the death of their process."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from experiments import load_comparable_metrics
from llmrl.core.errors import RunFolderError
from llmrl.run.queued import read_launch_record
from llmrl.sweeps.run_control import cancel_runs, query_run_records
from sweeping import load_status, run_sweep, run_sweep_command, start_sweep, wait_for

ROOM = (
    *(
        "env=escape_room",
        "env.n_envs=4",
        "agent=pg",
        "design.references=0",
        "design.evaluations=0",
        "design.confirm_steps=0",
    ),
    *("design.adapt_rounds=2", "design.validate_episodes=4", "principal=ucb,random"),
)


def metrics(cwd: Path, root: str) -> dict[tuple[str, int], list[dict]]:
    """Rows of metrics by (principal, seed)."""
    rows = load_status(cwd, root)
    assert {row["state"] for row in rows} == {"finished"}, rows
    return {(row["overrides"]["principal"], row["seed"]): load_comparable_metrics(Path(row["folder"])) for row in rows}


@pytest.mark.slow
def test_rows_match_single_runs(tmp_path):
    """Four runs in two processes, and one after the other: bit for bit."""
    overrides = (*ROOM, "design.steps=3", "seed=0,1")
    packed = ("hardware=local", "hardware.memory_gb=0.5", "hardware.cores=1", "hardware.parallel=2")
    done = run_sweep(*overrides, *packed, "output_root=rows", cwd=tmp_path)
    assert done.returncode == 0 and "4 finished" in done.stdout, done.stdout + done.stderr
    options = ("hardware/backend=here", "hardware.rows=1")
    done = run_sweep(*overrides, *options, "output_root=alone", cwd=tmp_path)
    assert done.returncode == 0 and "4 finished" in done.stdout, done.stdout + done.stderr
    rows, single = metrics(tmp_path, "rows"), metrics(tmp_path, "alone")
    assert rows.keys() == single.keys() and len(rows) == 4
    for name, record in rows.items():
        assert record == single[name], name
    processes = {row["pid"] for row in load_status(tmp_path, "rows")}
    assert len(processes) == len({row["log"] for row in load_status(tmp_path, "rows")}) in (1, 2)
    assert len({row["pid"] for row in load_status(tmp_path, "alone")}) == 1
    queued = read_launch_record(Path(load_status(tmp_path, "rows")[0]["folder"]))
    assert queued is not None and len(queued.other_run_folders) == 4 / len(processes) - 1


@pytest.mark.long
@pytest.mark.slow
def test_rows_resume_after_process_death(tmp_path):
    """Each by itself after the death of their process; and what is told of them."""
    overrides = (*ROOM, "hardware.parallel=1", "design.steps=40", "seed=0,1", "checkpoint_seconds=0")
    launcher = start_sweep(*overrides, cwd=tmp_path)

    def has_started() -> bool:
        rows = load_status(tmp_path) if (tmp_path / "outputs").exists() else []
        steps = [row["last_metrics"].get("principal_steps", 0) for row in rows]
        return len(steps) == 4 and {row["state"] for row in rows} == {"running"} and min(steps) >= 2

    wait_for(has_started)
    rows = load_status(tmp_path)
    with pytest.raises(RunFolderError, match=r" 2 more, .* cancel .*: "):
        cancel_runs(query_run_records(Path(rows[0]["folder"])))
    [pid] = {row["pid"] for row in rows}
    os.kill(pid, signal.SIGKILL)
    out, err = launcher.communicate(timeout=300)
    assert launcher.returncode == 0 and "4 finished" in out, out + err
    assert len(re.findall(r"process of 4 .*SIGKILL; 4 ", out)) == 1
    rows = load_status(tmp_path)
    assert {row["attempt"] for row in rows} == {2} and len({row["pid"] for row in rows}) == 4
    for row in rows:
        assert "other_run_folders" not in json.loads((Path(row["folder"]) / "queued.json").read_text())


@pytest.mark.long
@pytest.mark.slow
def test_stop_saves_all_rows(tmp_path):
    overrides = (*ROOM, "hardware.parallel=1", "design.steps=80", "seed=0,1")
    launcher = start_sweep(*overrides, cwd=tmp_path)
    wait_for(
        lambda: (tmp_path / "outputs").exists() and [row["state"] for row in load_status(tmp_path)] == ["running"] * 4
    )
    done = run_sweep_command("cancel", "outputs", cwd=tmp_path)
    assert done.returncode == 0 and "1 processes" in done.stdout, done.stdout + done.stderr
    out, err = launcher.communicate(timeout=100)
    assert launcher.returncode == 143, out + err
    assert {row["state"] for row in load_status(tmp_path)} == {"preempted"}
    second_sweep = run_sweep(*overrides, cwd=tmp_path)
    assert second_sweep.returncode == 0 and "4 finished" in second_sweep.stdout, (
        second_sweep.stdout + second_sweep.stderr
    )


@pytest.mark.long
def test_ten_kills_at_random_moments_change_no_number(tmp_path):
    """Every time the launcher and its process are killed, and the same command goes on."""
    overrides = (*ROOM, "design.steps=200", "seed=0,1", "checkpoint_seconds=0.05")
    done = run_sweep(*overrides, "output_root=calm", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    moments, n_kills = random.Random(0), set()

    def living() -> set[int]:
        """Return processes that compute and were not killed: for a moment a dead one looks as if it did."""
        rows = load_status(tmp_path) if (tmp_path / "outputs").exists() else []
        return {row["pid"] for row in rows if row["state"] == "running"} - n_kills

    for _ in range(10):
        launcher = start_sweep(*overrides, cwd=tmp_path)
        wait_for(living)
        time.sleep(moments.uniform(0, 1.0))
        for pid in (launcher.pid, *living()):
            with suppress(ProcessLookupError):  # a process may end by itself when its launcher is dead
                os.kill(pid, signal.SIGKILL)
            n_kills.add(pid)
        launcher.communicate(timeout=100)
    done = run_sweep(*overrides, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert metrics(tmp_path, "outputs") == metrics(tmp_path, "calm")
    assert max(row["attempt"] for row in load_status(tmp_path)) > 3
