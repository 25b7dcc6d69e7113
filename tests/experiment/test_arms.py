"""Runs that are too short for their grids: default sizes, and warnings about explicit ones."""

import logging
import re

import pytest

from experiments import compose, run
from llmrl.core.option_files import load_options
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import describe_arm_shortage, plan

ROOM = ("env=escape_room", "env.n_envs=2", "design.adapt_rounds=0")
SHORT = (*ROOM, "design.validate_episodes=2", "design.evaluations=1")
POLE = ("env=cartpole", "agent=linear", "principal=ucb")


def planned(*overrides):
    """Return the plan's rows below the principal and the warning about excess arms."""
    config = compose(*overrides)
    parts = build_parts(config, None)
    try:
        rows = plan(config, parts, build_loop(config, parts))
        first = next(i for i, (label, _) in enumerate(rows) if label == "principal")
        return rows[first : first + 2], describe_arm_shortage(config, parts)
    finally:
        parts.close()


def test_excess_arms():
    [(_, principal), row], short = planned(*ROOM, "principal=ucb", "principal.points=3", "design.steps=90")
    assert re.match("UCBPrincipal: 243 arms, 0.123 .* context", principal)
    assert row == ("  but", short)
    assert re.match("about 30 .* 3 contexts, 243 arms: .* 213 .*points=null .*steps=2187, .*cem, cmaes, gp, llm", short)
    # What it says to set is enough.
    assert planned(*ROOM, "principal=ucb", "principal.points=3", "design.steps=2187")[1] is None
    assert planned(*ROOM, "principal=ucb", "design.steps=90")[1] is None


def test_candidates_count():
    room = (*ROOM, "env.fixed_context=0", "principal=thompson", "principal.points=4", "design.steps=8")
    _, short = planned(*room, "design.candidates=2")
    assert short.startswith("16 proposals, 1,024 arms")
    _, short = planned(*room, "design.candidates=8", "env.n_envs=8")
    assert "principal.points=null" in short and "design.steps=384," in short


def test_scan_has_no_point_option():
    _, short = planned(*ROOM, "principal=scan", "design.steps=6")
    assert "8 arms" in short and "points" not in short


@pytest.mark.parametrize(
    ("steps", "arms", "mean"),
    [(3 * 3 * 243, 243, "3"), (3 * 3 * 243 - 1, 121, "6.02"), (72, 8, "3"), (12, 2, "2")],
    ids=["published", "long list", "list", "shortest list"],
)
def test_default_arms_fit(steps, arms, mean):
    [(_, principal), _], short = planned(*ROOM, "principal=ucb", f"design.steps={steps}")
    assert principal.startswith(f"UCBPrincipal: {arms} arms, {mean} ") and short is None


def test_policy_searches_fit():
    """Use ten parameters of CartPole's linear policy: two points each are too many for a short search."""
    [(_, principal), _], short = planned(*POLE, "search.iterations=10", "search.candidates=8")
    assert principal.startswith("UCBPrincipal: 22 arms, 3.64 ") and short is None
    [(_, principal), _], short = planned(*POLE, "search.iterations=500", "search.candidates=8")
    assert principal.startswith("UCBPrincipal: 666 arms, 6.01 ") and short is None


def list_mechanism_environments():
    # The rates of tax_economy cannot be switched off, so it has no such option.
    return [name for name, option in load_options("env").items() if option.get("mechanism") or name == "tax_economy"]


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize("env", list_mechanism_environments())
def test_default_gives_three_measurements_per_arm(env):
    config = compose(f"env={env}", "principal=ucb", "agent.init_from=null")
    parts = build_parts(config, None)
    try:
        n_measurements = config["design"]["steps"] * config["design"]["candidates"]
        assert 3 * parts.principal.n_arms * parts.env.spec.proposal_space.n_context_rows <= n_measurements
    finally:
        parts.close()


def test_environments_with_mechanism():
    assert {"cleanup", "harvest", "escape_room", "tax_economy", "fishery"} <= set(list_mechanism_environments())


@pytest.mark.slow
@pytest.mark.parametrize("principal", ["random", "cem", "llm"])
def test_arms_require_mechanism(principal):
    if principal != "llm":
        [(_, plan_text), _], short = planned(*ROOM, f"principal={principal}", "design.steps=1")
        assert short is None and "arms" not in plan_text


@pytest.mark.slow
def test_run_warns_at_start(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="llmrl"):
        run(*SHORT, "principal=ucb", "principal.points=3", "design.steps=3", f"output_root={tmp_path / 'short'}")
        [warning] = [record.message for record in caplog.records if "arms" in record.message]
        assert re.match("about 1 .* 3 contexts, 243 arms: ", warning)
        caplog.clear()
        run(*SHORT, "principal=random", "design.steps=3", f"output_root={tmp_path / 'none'}")
        assert not any("arms" in record.message for record in caplog.records)
