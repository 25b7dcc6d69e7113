"""The reward of docs/extending.md: agents learn from a changed reward, and welfare keeps its definition."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import find_run_folder
from in_process import run_in_process
from llmrl import make_env
from llmrl.cli.train import main as train
from llmrl.core.records import Step

SECTION = (Path(__file__).parents[2] / "docs" / "extending.md").read_text().split("## A reward")[1].split("\n## ")[0]
LEARN = (
    "design.steps=1",
    "design.adapt_rounds=1",
    "design.validate_episodes=1",
    "design.references=0",
    "design.rollout_steps=20",
)


@pytest.fixture
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the module and the option file of the page."""
    folder = tmp_path / "my"
    (folder / "conf" / "env").mkdir(parents=True)
    (folder / "my_games.py").write_text(SECTION.split("```python\n")[1].split("```")[0])
    (folder / "conf" / "env" / "fair_cleanup.yaml").write_text(SECTION.split("```yaml\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("my_games", None)


def test_inequality_lowers_rewards(project_folder: Path) -> None:
    from my_games import FairGame

    reward, ends = np.array([[4, 0], [1, 1]], dtype=np.float32), np.zeros(2, dtype=bool)
    step = Step(observation={}, reward=reward, base_reward=reward, terminated=ends, truncated=ends)
    spec = make_env("escape_room", n_envs=2, api="vec").spec
    game = FairGame(SimpleNamespace(spec=spec, step=lambda action: step, close=lambda: "closed"), weight=0.25)
    new_step = game.step(None)
    assert new_step.reward.tolist() == [[3.5, -0.5], [1.0, 1.0]]
    assert new_step.base_reward is reward and game.close() == "closed"
    assert game.spec == replace(spec, has_reward_jacobian=False)


def test_reward_weight_affects_results(project_folder: Path, tmp_path: Path) -> None:
    rewards = {}
    for weight in (0, 0.5):
        folder = tmp_path / f"weight_{weight}"
        command = (f"env.weight={weight}", "env.game.n_envs=2", "env.game.horizon=20", *LEARN, "principal=fixed")
        done = run_in_process(
            *(train, "llmrl-train", "--config-dir", str(project_folder / "conf"), "env=fair_cleanup", *command),
            f"output_root={folder}",
            cwd=tmp_path,
            environment=dict(os.environ),
        )
        assert done.returncode == 0, done.stderr
        config = (find_run_folder(folder) / "config.yaml").read_text()
        assert "my_games.FairGame" in config
        rewards[weight] = json.loads((find_run_folder(folder) / "summary.json").read_text())
    assert rewards[0] != rewards[0.5]
