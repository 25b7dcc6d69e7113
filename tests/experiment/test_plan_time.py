"""A plan says how long a run takes here."""

import re

import pytest

from experiments import compose, run
from llmrl.core.seeding import Seeds
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.loops.rehearsals import STEPS, steps_per_second

SMALL = ("env=escape_room", "principal=ucb", "env.n_envs=8", "design.candidates=2", "design.adapt_rounds=3")


def test_the_plan_of_a_principals_run_tells_its_time(capsys, tmp_path):
    run(*SMALL, "dry_run=true", f"output_root={tmp_path}")
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert re.search(r"time about \d+ (s|min \d+ s|h \d+ min) on this machine, at [\d,]+ environment steps/s", said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "overrides",
    [
        ("env=escape_room", "principal=none"),
        ("env=simple_doorkey", "teacher=llm", "env.n_envs=2", "learn.evaluate_every=1"),
        ("env=cartpole", "agent=linear", "principal=random"),
        ("env=taxi",),
        ("env=nim", "agent=random"),
        ("env=simple_doorkey", "agent=teacher", "teacher=oracle"),
        ("env=cleanup", "agent=random"),
    ],
)
def test_other_loops_are_timed_and_leave_no_trace(capsys, tmp_path, overrides):
    run(*overrides, "dry_run=true", f"output_root={tmp_path}")
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert re.search(r"time about \d+ (s|min \d+ s|h \d+ min) on this machine", said)
    assert not list(tmp_path.iterdir())


def test_players_that_wait_for_replies_are_not_timed(capsys, tmp_path):
    run("env=taxi", "agent=llm_player", "dry_run=true", f"output_root={tmp_path}")
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "time unknown" in said and not list(tmp_path.iterdir())


def test_it_is_the_rate_of_steps_and_updates():
    config = compose(*SMALL)
    parts = build_parts(config, None)
    loop = build_loop(config, parts)
    played = []
    step = parts.env.step

    def counted(actions):
        played.append(len(actions))
        return step(actions)

    parts.env.step = counted
    before = {name: x.clone() for name, x in parts.agents[0].policy.state_dict().items()}
    assert steps_per_second(loop.adaptation, Seeds(0)) > 0
    assert len(played) >= STEPS and set(played) == {8}
    after = parts.agents[0].policy.state_dict()
    assert any((after[name] != x).any() for name, x in before.items()), "updates count, too"


def test_the_measured_updates_have_a_full_minibatch(capsys, tmp_path):
    """A plan plays fewer steps than an update of the run learns from, which `drop_last` needs."""
    large = ("agent.ppo.drop_last=true", "agent.ppo.minibatch_size=4000", "env.horizon=1000")
    run(*SMALL, *large, "dry_run=true", f"output_root={tmp_path}")
    assert "environment steps/s" in " ".join(capsys.readouterr().out.split())
