"""Conformance tests for backends, as a base class whose subclasses define the fixture `backend_setup`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import sweeping
from experiments import load_comparable_metrics
from llmrl.results.run_records import read_runs
from sweeping import FAULTY_AGENT, load_states, load_status, wait_for

LIMIT_S = 20
"""Seconds within which runs and launchers end after a signal."""
WAIT_S = 300
"""Seconds that a test waits for the progress of a run."""
SLOW = (*FAULTY_AGENT, "agent.trouble=slow", "agent.until=ok", "design.steps=60", "checkpoint_seconds=0")
"""Runs that take long until a file `ok` exists."""
SWEEP = (
    *("env=escape_room", "env.n_envs=4", "principal=ucb,thompson,llm", "seed=0,1,2"),
    *("design.adapt_rounds=2", "design.validate_episodes=4", "design.references=0", "design.evaluations=1"),
    *("design.confirm_steps=0", "design.steps=2"),
)
NEEDS = (
    *("experiment=legislative/escape_room_small", "principal=random", "design.steps=1", "design.adapt_rounds=1"),
    *("design.references=0", "design.confirm_steps=0", "design.evaluations=0", "design.validate_episodes=2"),
    *("env.n_envs=2", "agent.init_from=preset:legislative/escape_room_alone", "agent.init_from_seed=shared"),
)
MetricsByRun = dict[tuple[str, int], list[dict]]


@dataclass
class BackendSetup:
    """A backend on this machine.

    Attributes:
        overrides: options that select it.
        loss: part of the message about a run whose process was killed.
        interrupted: state of a run, and exit code of its launcher, after Ctrl-C; None: jobs go on without their
            launcher.
        lose_node: end the machine of the first run of a status, and the launcher if it is there.
        restore: bring the machine back.
        python, variables: interpreter and environment variables of commands.
    """

    overrides: tuple[str, ...]
    loss: str
    interrupted: tuple[str, int] | None
    lose_node: Callable[[list[dict], subprocess.Popen[str]], None]
    restore: Callable[[], None]
    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self, *overrides: str, cwd: Path) -> subprocess.Popen[str]:
        return sweeping.start_sweep(*overrides, *self.overrides, cwd=cwd, python=self.python, **self.variables)

    def sweep(self, *overrides: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return sweeping.run_sweep(*overrides, *self.overrides, cwd=cwd, python=self.python, **self.variables)

    def command(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return sweeping.run_sweep_command(*arguments, cwd=cwd, python=self.python)

    def finish(self, *overrides: str, cwd: Path) -> dict[int, int]:
        """Repeat a command without delays and return the number of attempts of each run by seed."""
        (cwd / "ok").touch()
        done = self.sweep(*overrides, cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = load_status(cwd)
        assert {row["state"] for row in rows} == {"finished"}
        return {row["seed"]: row["attempt"] for row in rows}


def load_metrics(cwd: Path, folder: str = "outputs") -> MetricsByRun:
    """Return the logged metrics of all runs by (principal, seed)."""
    return {
        (row["overrides"]["principal"], row["seed"]): load_comparable_metrics(Path(row["folder"]))
        for row in load_status(cwd, folder)
    }


def compute_reference(cwd: Path, *overrides: str) -> None:
    """Execute the runs sequentially in one process."""
    (cwd / "ok").touch()
    done = sweeping.run_sweep(*overrides, "hardware/backend=here", "hardware.rows=1", cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def to_sink_row(cwd: Path, seed: int) -> dict:
    return next((row for row in load_status(cwd) if row["seed"] == seed), {}) if (cwd / "outputs").exists() else {}


def wait_for_steps(cwd: Path, *seeds: int) -> None:
    """Wait until the runs of these seeds have saved checkpoints."""

    def are_advanced() -> bool:
        rows = [to_sink_row(cwd, seed) for seed in seeds]
        return all(
            row and row["state"] == "running" and row["last_metrics"].get("principal_steps", 0) >= 1 for row in rows
        )

    wait_for(are_advanced, WAIT_S)


class BackendConformance:
    """Conformance tests, inherited by the test class of each backend, which defines the fixture `backend_setup`."""

    def test_failures_affect_single_runs(self, backend_setup: BackendSetup, tmp_path: Path):
        """Status, logs and exit codes show the failures, and the same command resumes only unfinished runs."""
        overrides = (*FAULTY_AGENT, "agent.trouble=none,raise,kill", "agent.until=ok", "seed=0,1")
        done = backend_setup.sweep(*overrides, cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        reference = {("none", s): "finished" for s in (0, 1)} | {("raise", s): "failed" for s in (0, 1)}
        reference |= {("kill", s): "lost" for s in (0, 1)}
        assert load_states(tmp_path) == reference
        assert "2 finished, 2 failed, 2 lost" in done.stdout and backend_setup.loss in done.stdout
        assert "ZeroDivisionError: made to fail" in done.stdout and "Traceback" not in done.stdout + done.stderr
        for row in load_status(tmp_path):
            if row["state"] == "failed":
                assert "in act\n" in (Path(row["folder"]) / "traceback.txt").read_text()
                log = backend_setup.command("logs", row["folder"], cwd=tmp_path)
                assert "made to fail" in log.stdout and "==> " in log.stdout
        output = backend_setup.command("status", "outputs", cwd=tmp_path)
        assert output.returncode == 1 and "made to fail" in output.stdout and "trouble=kill" in output.stdout

        (tmp_path / "ok").touch()
        second_sweep = backend_setup.sweep(*overrides, cwd=tmp_path)
        assert second_sweep.returncode == 0, second_sweep.stdout + second_sweep.stderr
        rows = load_status(tmp_path)
        assert {row["state"] for row in rows} == {"finished"}
        attempts = {row["overrides"]["agent.trouble"]: row["attempt"] for row in rows}
        assert attempts == {"none": 1, "raise": 2, "kill": 2}
        assert second_sweep.stdout.count("nothing to do") == 2

    def test_lost_worker_affects_single_run(
        self, backend_setup: BackendSetup, slow_reference: MetricsByRun, tmp_path: Path
    ):
        launcher = backend_setup.start(*SLOW, "seed=0,1", cwd=tmp_path)
        wait_for_steps(tmp_path, 0, 1)
        os.kill(to_sink_row(tmp_path, 0)["pid"], signal.SIGKILL)
        wait_for(lambda: to_sink_row(tmp_path, 0)["state"] == "lost")
        assert to_sink_row(tmp_path, 1)["state"] == "running"
        (tmp_path / "ok").touch()
        out, err = launcher.communicate(timeout=WAIT_S)
        assert launcher.returncode == 1 and "1 lost" in out and "1 finished" in out, out + err
        assert backend_setup.finish(*SLOW, "seed=0,1", cwd=tmp_path) == {0: 2, 1: 1}
        assert load_metrics(tmp_path) == slow_reference

    def test_lost_node_affects_its_runs(
        self, backend_setup: BackendSetup, slow_reference: MetricsByRun, tmp_path: Path
    ):
        launcher = backend_setup.start(*SLOW, "seed=0,1", cwd=tmp_path)
        wait_for_steps(tmp_path, 0, 1)
        backend_setup.lose_node(sorted(load_status(tmp_path), key=lambda row: row["seed"]), launcher)
        try:
            wait_for(lambda: to_sink_row(tmp_path, 0)["state"] in ("lost", "queued"))
        finally:
            backend_setup.restore()
        (tmp_path / "ok").touch()
        launcher.communicate(timeout=WAIT_S)
        attempts = backend_setup.finish(*SLOW, "seed=0,1", cwd=tmp_path)
        assert attempts[0] == 2 and attempts[1] in (1, 2)
        assert load_metrics(tmp_path) == slow_reference

    def test_cancel_saves(self, backend_setup: BackendSetup, slow_reference: MetricsByRun, tmp_path: Path):
        overrides = (*SLOW, "hardware.parallel=1", "seed=0,1")
        launcher = backend_setup.start(*overrides, cwd=tmp_path)
        wait_for(
            lambda: "running" in (load_states(tmp_path).values() if (tmp_path / "outputs").exists() else ()), WAIT_S
        )
        waiting = next(row for row in load_status(tmp_path) if row["state"] == "queued")
        if backend_setup.interrupted is not None:
            rejection = backend_setup.command("cancel", waiting["folder"], cwd=tmp_path)
            assert rejection.returncode == 1 and "a local queue stops as a whole" in rejection.stderr
        done = backend_setup.command("cancel", "outputs", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        message = "canceled 2 jobs" if backend_setup.interrupted is None else "2 processes of this machine"
        assert message in done.stdout
        wait_for(lambda: sorted(load_states(tmp_path).values()) == ["canceled", "preempted"], LIMIT_S)
        output = launcher.communicate(timeout=WAIT_S if backend_setup.interrupted is None else LIMIT_S)
        assert launcher.returncode == 143, (launcher.returncode, output)
        assert sorted(backend_setup.finish(*overrides, cwd=tmp_path).values()) == [1, 2]
        assert load_metrics(tmp_path) == slow_reference

    def test_interrupted_launcher_ends(self, backend_setup: BackendSetup, tmp_path: Path):
        """Without a scheduler its runs save and waiting runs are canceled; with a scheduler its jobs continue."""
        overrides = (*SLOW, "hardware.parallel=1", "seed=0,1")
        launcher = backend_setup.start(*overrides, cwd=tmp_path)
        wait_for_steps(tmp_path, 0)
        assert to_sink_row(tmp_path, 1)["state"] == "queued"
        os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does
        interrupted_at = time.monotonic()
        out, err = launcher.communicate(timeout=WAIT_S)
        assert time.monotonic() - interrupted_at < LIMIT_S
        if backend_setup.interrupted is None:
            assert launcher.returncode == 130 and "the jobs continue" in out and "2 submitted" in out, out + err
            assert load_states(tmp_path) == {("slow", 0): "running", ("slow", 1): "queued"}
            (tmp_path / "ok").touch()
            wait_for(lambda: set(load_states(tmp_path).values()) == {"finished"}, WAIT_S)
            assert backend_setup.finish(*overrides, cwd=tmp_path) == {0: 1, 1: 1}
            return
        state, code = backend_setup.interrupted
        assert launcher.returncode == code and f"1 {state}, 1 canceled" in out, out + err
        assert load_states(tmp_path) == {("slow", 0): state, ("slow", 1): "canceled"}
        assert backend_setup.finish(*overrides, cwd=tmp_path) == {0: 2, 1: 1}

    def test_dependency_runs_single_time(self, backend_setup: BackendSetup, tmp_path: Path):
        done = backend_setup.sweep(*NEEDS, "seed=0,1", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        first, *dependents = sorted(read_runs(tmp_path / "outputs"), key=lambda run: run.updated)
        assert "init_from" not in first.overrides and len(dependents) == 2
        assert {run.state for run in (first, *dependents)} == {"finished"}
        assert {run.attempt for run in (first, *dependents)} == {1}
        assert all(run.started >= first.updated for run in dependents)

    def test_results_are_identical(self, backend_setup: BackendSetup, sweep_reference: MetricsByRun, tmp_path: Path):
        done = backend_setup.sweep(*SWEEP, cwd=tmp_path)
        assert done.returncode == 0 and "9 finished" in done.stdout, done.stdout + done.stderr
        assert {row["attempt"] for row in load_status(tmp_path)} == {1}
        assert load_metrics(tmp_path) == sweep_reference
