"""Runs too short for their grids: what is chosen instead, and what is said where somebody chose otherwise."""

import logging

import pytest

from experiments import compose, run
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import plan, shortage

ROOM = ("env=escape_room", "env.n_envs=2", "design.adapt_rounds=0")
POLE = ("env=cartpole", "agent=linear", "principal=ucb")


def planned(*overrides):
    """The plan's rows under the principal, and what is said of too many arms."""
    config = compose(*overrides)
    parts = build_parts(config, None)
    try:
        rows = plan(config, parts, build_loop(config, parts))
        first = next(i for i, (what, _) in enumerate(rows) if what == "principal")
        return rows[first : first + 2], shortage(config, parts.principal)
    finally:
        parts.close()


def test_too_many_arms():
    [(_, principal), row], short = planned(*ROOM, "principal=ucb", "principal.points=3", "design.steps=90")
    assert principal == "UCBPrincipal: 243 arms"
    assert row == ("  but", short)
    assert short == (
        "about 30 proposals in each of 3 contexts, 243 arms: close to a random search, as 213 arms or more are never "
        "played; set design.steps=1458, or choose a principal without a grid (cem, cmaes, gp, llm)"
    )
    # What it says to set is enough.
    assert planned(*ROOM, "principal=ucb", "principal.points=3", "design.steps=1458")[1] is None


def test_candidates_count_and_a_coarser_grid_is_named_where_there_is_one():
    room = (*ROOM, "env.fixed_context=0", "principal=thompson", "principal.points=4", "design.steps=8")
    _, short = planned(*room, "design.candidates=2")
    assert short.startswith("16 proposals, 1,024 arms") and "points=" not in short
    _, short = planned(*room, "design.candidates=8", "env.n_envs=8")
    assert "set principal.points=2 or design.steps=256, or" in short
    assert planned(*room[:-2], "principal.points=2", "design.steps=8", "design.candidates=8", "env.n_envs=8")[1] is None


@pytest.mark.parametrize(
    ("steps", "arms"), [(3 * 2 * 243, 243), (3 * 2 * 243 - 1, 32), (3 * 32, 32)], ids=["published", "fewer", "fewest"]
)
def test_by_default_the_grid_fits(steps, arms):
    [(_, principal), _], short = planned(*ROOM, "principal=ucb", f"design.steps={steps}")
    assert principal == f"UCBPrincipal: {arms} arms" and short is None


def test_searches_of_policies_fit_too():
    """Ten parameters of CartPole's linear policy: two points each are too many for a short search."""
    [(_, principal), (what, _)], short = planned(*POLE, "search.iterations=10", "search.candidates=8")
    assert principal == "UCBPrincipal: 1,024 arms" and what == "  but"
    assert "80 proposals, 1,024 arms" in short and "search.iterations=256, or" in short
    [(_, principal), _], short = planned(*POLE, "search.iterations=500", "search.candidates=8")
    assert principal == "UCBPrincipal: 1,024 arms" and short is None


@pytest.mark.slow
@pytest.mark.parametrize("principal", ["random", "cem", "llm"])
def test_others_have_no_arms(principal):
    config = compose(*ROOM, f"principal={principal}", "design.steps=1")
    assert shortage(config, None) is None
    if principal != "llm":
        [(_, shown), _], short = planned(*ROOM, f"principal={principal}", "design.steps=1")
        assert short is None and "arms" not in shown


@pytest.mark.slow
def test_a_run_says_so_once_at_its_start(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="llmrl"):
        run(*ROOM, "principal=ucb", "principal.points=3", "design.steps=3", f"output_root={tmp_path / 'short'}")
        [told] = [record.message for record in caplog.records if "arms" in record.message]
        assert told.startswith("about 1 proposal in each of 3 contexts, 243 arms: close to a random search")
        caplog.clear()
        run(*ROOM, "principal=random", "design.steps=3", f"output_root={tmp_path / 'none'}")
        assert not any("arms" in record.message for record in caplog.records)
