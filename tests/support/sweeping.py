"""Sweeps started with the commands that users call, in a society with short runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import commands
from in_process import run_in_process
from llmrl.cli.sweep import main as sweep_main
from llmrl.cli.train import main

THIRD_PARTY = Path(__file__).parents[1] / "third_party"
FAULTY_AGENT = (
    "--config-dir",
    str(THIRD_PARTY / "conf"),
    "trusted_modules=[signal_game]",
    "env=signal_game",
    "principal=random",
    "agent=troubled",
    "design.evaluations=1",
    "design.steps=2",
    "design.references=0",
    "design.adapt_rounds=1",
    "design.validate_episodes=4",
)


def build_environment(**extra: str) -> dict[str, str]:
    """Return the environment variables without API keys of language models and without those of SLURM."""
    inherited = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY") and not k.startswith("SLURM_")}
    return {**inherited, **extra}


def start_sweep(*overrides: str, cwd: Path, python: str = sys.executable, **extra: str) -> subprocess.Popen[str]:
    """Start `llmrl-train --multirun` in a new session, like a shell."""
    # The command server has not imported other copies of the package or other interpreters.
    popen = subprocess.Popen if "PYTHONPATH" in extra or python != sys.executable else commands.Popen
    return popen(
        [python, "-m", "llmrl.cli.train", "--multirun", *overrides],
        cwd=cwd,
        env=build_environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_sweep(
    *overrides: str, cwd: Path, python: str = sys.executable, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run `llmrl-train --multirun` until it ends."""
    process = start_sweep(*overrides, cwd=cwd, python=python, **extra)
    out, err = process.communicate(timeout=1500)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_refused_sweep(*overrides: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `llmrl-train --multirun` in this process, with options for which it must not start a process."""
    return run_in_process(main, "llmrl-train", "--multirun", *overrides, cwd=cwd, environment=build_environment())


def run_sweep_command(*arguments: str, cwd: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run `llmrl-sweep <arguments>`."""
    run = commands.run if python == sys.executable else subprocess.run
    return run(
        [python, "-c", "from llmrl.cli.sweep import main; main()", *arguments],
        cwd=cwd,
        env=build_environment(),
        capture_output=True,
        text=True,
        timeout=500,
    )


def load_status(cwd: Path, folder: str = "outputs") -> list[dict]:
    """Return the rows of `llmrl-sweep status --json`."""
    done = run_in_process(
        sweep_main, "llmrl-sweep", "status", folder, "--json", cwd=cwd, environment=build_environment()
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def load_states(cwd: Path) -> dict[tuple[str, int], str]:
    """Return the states of runs by (option `agent.trouble`, seed)."""
    return {(row["overrides"].get("agent.trouble", ""), row["seed"]): row["state"] for row in load_status(cwd)}


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    """Wait until a condition is true.

    Raises:
        AssertionError: the condition is false after `seconds`.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not true after {seconds} s"
        time.sleep(0.1)


def wait_without_folder(config: dict[str, object], overrides: list[str]) -> None:
    """Simulate a long run that never opens its folder."""
    Path(str(config["begun"])).touch()
    time.sleep(120)
