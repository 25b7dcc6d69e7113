"""Updates within episodes, after each part of a rollout."""

import json
import signal

import pytest

from experiments import find_run_folder, load_comparable_metrics, run
from llmrl.core.errors import ConfigError
from llmrl.run.artifacts import load_saved_state
from llmrl.run.run import Run
from llmrl.run.signals import Stopped

ROOM = (
    *("env=escape_room", "env.n_envs=8", "env.horizon=6", "principal=fixed", "principal.values=[3,1,0,2,0]"),
    *(
        "design.evaluations=1",
        "design.steps=2",
        "design.adapt_rounds=3",
        "design.validate_episodes=8",
        "checkpoint_seconds=0",
    ),
)


def design(root, *overrides):
    run(*ROOM, *overrides, f"output_root={root}")
    folder = find_run_folder(root)
    return folder, json.loads((folder / "summary.json").read_text())


def optimizer_steps(folder):
    optimizer = load_saved_state(folder)[1]["agents"][0]["learner"]["optimizers"][0]
    return next(iter(optimizer["state"].values()))["step"]


def test_society_learns_after_rollout(tmp_path):
    reference, result = design(tmp_path / "whole", "agent.ppo.epochs=1", "agent.ppo.minibatch_size=null")
    folder, pieces = design(
        tmp_path / "pieces", "design.rollout_steps=2", "agent.ppo.epochs=1", "agent.ppo.minibatch_size=null"
    )
    assert float(optimizer_steps(reference)) == 3 and float(optimizer_steps(folder)) == 9
    assert pieces["env_steps"] == result["env_steps"]
    assert pieces["history"] != result["history"]
    rounds = load_comparable_metrics(folder, "adaptation")
    assert [row["rounds"] for row in rounds] == [1, 2, 3, 4, 5, 6] and all("train/return" in row for row in rounds)


def test_full_episode_is_single_rollout(tmp_path):
    _, result = design(tmp_path / "whole")
    _, divided = design(tmp_path / "same", "design.rollout_steps=6")
    assert result["history"] == divided["history"]


@pytest.mark.slow
def test_stop_in_round_resumes_exactly(tmp_path, monkeypatch):
    """A round is discarded and repeated if the grace period ends after its first part."""
    reference = design(tmp_path / "whole", "design.rollout_steps=2")
    original, checks = Run.stop_after_grace, []

    def impatient(self, iteration, state):
        checks.append(iteration)
        if len(checks) == 6 + 3:  # the first step of the second piece of the second round
            signal.raise_signal(signal.SIGTERM)
            self.safe_point(iteration, state)
        original(self, iteration, state)

    monkeypatch.setattr(Run, "stop_after_grace", impatient)
    with pytest.raises(Stopped):
        run(*ROOM, "design.rollout_steps=2", f"output_root={tmp_path / 'stopped'}")
    folder, summary = design(tmp_path / "stopped", "design.rollout_steps=2")
    assert summary == reference[1]
    assert load_comparable_metrics(folder) == load_comparable_metrics(reference[0])


def test_pieces_divide_an_episode(tmp_path):
    with pytest.raises(ConfigError, match=r"design.rollout_steps=4.*6"):
        design(tmp_path, "design.rollout_steps=4")
