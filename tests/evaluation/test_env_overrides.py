"""`llmrl-evaluate --env`: the agents of a run in an environment with other options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import commands
from llmrl.config.env_overrides import parsed
from llmrl.core.errors import ConfigError


def run(script: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = f"from llmrl.cli.{script} import main; main()"
    return commands.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    done = run("train", "env=escape_room", "learn.env_steps=200", "learn.evaluate_episodes=2", folder=folder)
    assert done.returncode == 0, done.stderr
    [found] = (folder / "outputs" / "escape_room").glob("*/s0")
    return found


@pytest.mark.slow
def test_other_options_are_played_and_kept_apart(trained: Path) -> None:
    done = run("evaluate", str(trained), "--episodes", "4", "--env", "horizon=9", folder=trained)
    assert done.returncode == 0, done.stderr
    results = json.loads((trained / "evaluation_horizon_9" / "results.json").read_text())
    assert results["env"] == ["horizon=9"]
    assert max(results["per_episode"]["length"]) > 5  # the run's own horizon


def test_agents_that_do_not_fit_are_named(trained: Path) -> None:
    done = run("evaluate", str(trained), "--env", "n_levers=4", folder=trained)
    assert done.returncode != 0 and "do not fit the changed environment" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "message"), [("engine", "KEY=VALUE"), ("motor=1", "no option 'motor'"), ("engine={", "no YAML value")]
)
def test_changes_that_mean_nothing(change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed([change], {"_target_": "x", "engine": "native"})


def test_values_are_read_as_yaml() -> None:
    assert parsed(["n=3", "observe=[grid]"], {"n": 1, "observe": []}) == {"n": 3, "observe": ["grid"]}
