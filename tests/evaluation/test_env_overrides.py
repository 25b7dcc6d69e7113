"""`llmrl-evaluate --env`: the agents of a run in an environment with different options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import commands
from llmrl.config.overrides import parse_env_changes
from llmrl.core.errors import ConfigError


def run(script: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = f"from llmrl.cli.{script} import main; main()"
    return commands.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    done = run("train", "env=escape_room", "learn.env_steps=200", "learn.evaluate_episodes=2", folder=folder)
    assert done.returncode == 0, done.stderr
    [run_folder] = (folder / "outputs" / "escape_room").glob("*/s0")
    return run_folder


@pytest.mark.slow
def test_override_outputs_are_separate(trained_folder: Path) -> None:
    done = run("evaluate", str(trained_folder), "--episodes", "4", "--env", "horizon=9", folder=trained_folder)
    assert done.returncode == 0, done.stderr
    results = json.loads((trained_folder / "evaluation_horizon_9" / "results.json").read_text())
    assert results["env"] == ["horizon=9"]
    assert max(results["per_episode"]["length"]) > 5  # the run's own horizon


def test_error_names_incompatible_agents(trained_folder: Path) -> None:
    done = run("evaluate", str(trained_folder), "--env", "n_levers=4", folder=trained_folder)
    assert done.returncode == 1 and "n_levers=4" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "message"), [("engine", "KEY=VALUE"), ("motor=1", "'motor'"), ("engine={", "engine={")]
)
def test_ineffective_overrides(change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_env_changes([change], {"_target_": "x", "engine": "native"})


def test_values_are_read_as_yaml() -> None:
    assert parse_env_changes(["n=3", "observe=[grid]"], {"n": 1, "observe": []}) == {"n": 3, "observe": ["grid"]}
