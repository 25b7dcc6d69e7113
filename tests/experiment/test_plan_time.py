"""Estimates of a run's duration in its plan."""

import re

import pytest

from experiments import compose, run
from llmrl.core.seeding import Seeds
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.loops.rehearsals import TIMED_STEPS, measure_steps_per_second

SMALL = ("env=escape_room", "principal=ucb", "env.n_envs=8", "design.candidates=2", "design.adapt_rounds=3")


def test_principal_plan_reports_time(capsys, tmp_path):
    run(*SMALL, "dry_run=true", f"output_root={tmp_path}")
    output = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert re.search(r"time about \d+ (s|min \d+ s|h \d+ min) .* [\d,]+ environment steps/s", output)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "overrides",
    [
        ("env=escape_room", "principal=none"),
        ("env=simple_doorkey", "teacher=llm", "env.n_envs=2", "learn.evaluation_interval=1"),
        ("env=cartpole", "agent=linear", "principal=random"),
        ("env=taxi",),
        ("env=nim", "agent=random"),
        ("env=simple_doorkey", "agent=teacher", "teacher=oracle"),
        ("env=cleanup", "agent=random"),
    ],
)
def test_timing_leaves_no_trace(capsys, tmp_path, overrides):
    run(*overrides, "dry_run=true", f"output_root={tmp_path}")
    output = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert re.search(r"time about \d+ (s|min \d+ s|h \d+ min) ", output)
    assert not list(tmp_path.iterdir())


def test_waiting_players_are_not_timed(capsys, tmp_path):
    run("env=taxi", "agent=llm_player", "dry_run=true", f"output_root={tmp_path}")
    output = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "time unknown" in output and not list(tmp_path.iterdir())


def test_estimate_uses_measured_rates():
    config = compose(*SMALL)
    parts = build_parts(config, None)
    loop = build_loop(config, parts)
    steps_played = []
    step = parts.env.step

    def count_step(actions):
        steps_played.append(len(actions))
        return step(actions)

    parts.env.step = count_step
    initial_weights = {name: x.clone() for name, x in parts.agents[0].policy.state_dict().items()}
    assert measure_steps_per_second(loop.adaptation, Seeds(0)) > 0
    assert len(steps_played) >= TIMED_STEPS and set(steps_played) == {8}
    after = parts.agents[0].policy.state_dict()
    assert any((after[name] != x).any() for name, x in initial_weights.items()), "updates count, too"


def test_timed_updates_have_full_minibatch(capsys, tmp_path):
    """Check a plan that plays fewer steps than an update needs with `drop_last`."""
    large = ("agent.ppo.drop_last=true", "agent.ppo.minibatch_size=4000", "env.horizon=1000")
    run(*SMALL, *large, "dry_run=true", f"output_root={tmp_path}")
    assert "environment steps/s" in " ".join(capsys.readouterr().out.split())
