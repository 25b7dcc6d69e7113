"""Episodes depend on nothing but their own games, unless a player carries something over; then results say so."""

import json
import re

import numpy as np
import pytest

from experiments import compose, only_run_folder, run
from llmrl.analysis.aggregate import summarize
from llmrl.analysis.final_episodes import players_table
from llmrl.analysis.report_settings import ReportSettings
from llmrl.cli.evaluate import evaluate, main, parser
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_parts
from llmrl.llms.call_log import read_calls
from llmrl.run.files import read_lines

SHORT = ("agent=llm_player", "env.horizon=6", "play.episodes=6", "play.records=6")
TOLD = "agent.show=[reward,last_episode]"
CARRYING = {"last_episode": (TOLD,), "lessons": ("agent.lessons=2",)}


def play(root, *overrides):
    run(*overrides, f"output_root={root}")
    return only_run_folder(root)


def results(folder):
    return json.loads((folder / "results.json").read_text())


def asked(folder):
    """Every question of a run with all its messages, sorted."""
    return sorted(json.dumps(call["messages"]) for call in read_calls(folder / "llm_calls.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("env", ["taxi", "blackjack", "frozen_lake", "cartpole"])
def test_an_episode_is_the_same_however_many_games_there_are_at_once(tmp_path, env):
    """Prompts, replies and results of each episode, with the default settings."""
    one, four = (play(tmp_path / str(n), f"env={env}", f"env.n_envs={n}", *SHORT) for n in (1, 4))
    for k in range(6):
        first, second = (read_lines(folder / "episodes" / str(k) / "replies.jsonl") for folder in (one, four))
        assert [{**line, "latency": 0} for line in first] == [{**line, "latency": 0} for line in second]
    assert asked(one) == asked(four)
    assert results(one)["per_episode"] == results(four)["per_episode"]
    assert results(one)["carried"] == [] and results(one)["table"]["return"]["standard_error"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("what", CARRYING)
def test_what_is_carried_over_is_said_and_no_error_is_given(tmp_path, capsys, what):
    # The scripted player knows no rule of this game, and half of its replies are no action that helps.
    folder = play(tmp_path, "env=taxi", "env.n_envs=2", "llm.max_invalid=null", *SHORT, *CARRYING[what])
    found = results(folder)
    assert found["carried"] == [what] and not found["learned"]
    for row in found["table"].values():
        assert (row["standard_error"], row["low"], row["high"]) == (None, None, None) and row["min"] <= row["mean"]
    evaluated = evaluate(parser().parse_args([str(folder), "--episodes", "3"]))
    assert evaluated["carried"] == [what] and evaluated["table"]["length"]["standard_error"] is None
    main([str(folder), "--episodes", "2"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"carry something over to the next ones ({what})" in said
    alone = evaluate(parser().parse_args([str(folder), "--episodes", "3", "--policy", "random"]))
    assert alone["carried"] == [] and alone["table"]["length"]["standard_error"] is not None


@pytest.mark.slow
def test_a_film_changes_no_evaluated_episode(tmp_path):
    """Where episodes are told of the one before, too."""
    folder = play(tmp_path, "env=blackjack", "env.n_envs=1", *SHORT, TOLD)

    def first_questions(*more):
        out = tmp_path / f"out{len(more)}"
        evaluate(parser().parse_args([str(folder), "--episodes", "3", "--out", str(out), *more]))
        starts = [text for text in asked(out) if re.search(r"last_episode", text.split('"role": "user"')[1])]
        return asked(out), starts

    (plain, told), (filmed, _) = first_questions(), first_questions("--video", "--video-steps", "2")
    assert told and set(plain) <= set(filmed)


def test_then_runs_are_what_reports_count(tmp_path):
    for seed in (0, 1, 2):
        run("env=blackjack", *SHORT, TOLD, f"seed={seed}", f"output_root={tmp_path}", "env.n_envs=2", "llm=scripted")
    [player] = summarize(tmp_path, ReportSettings()).players
    means = [np.mean(results(path.parent)["per_episode"]["return"]) for path in sorted(tmp_path.rglob("results.json"))]
    assert player.carried == ("last_episode",) and not player.learned
    assert player.errors["return"] == pytest.approx(np.std(means, ddof=1) / 3**0.5)
    table = players_table([player])
    assert any("episodes carry last_episode over to the next ones" in note for note in table.notes)
    header, row = table.data
    assert row[header.index("carried")] == "last_episode"


def test_plans_that_are_drawn_once_are_shared_by_all_episodes():
    """So runs are what is counted there, too; the rules of the oracle are nobody's draw."""
    shared = {}
    for teacher in ("llm", "oracle"):
        config = compose("env=simple_doorkey", "agent=teacher", f"teacher={teacher}", "llm=scripted")
        parts = build_parts(config, build_llm(config, None))
        shared[teacher] = parts.agents[0].shares_learning
        parts.close()
    assert shared == {"llm": True, "oracle": False}


def test_the_published_player_was_told_of_no_other_episode():
    for study in ("taxi", "blackjack", "lunar_lander"):
        config = compose(f"experiment=zero_shot/{study}", "treatment=observation_only", "llm=scripted")
        assert config["agent"]["show"] == [] and config["agent"]["lessons"] == 0
