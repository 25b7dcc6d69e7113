"""Independence of episodes, and reports of state that a player carries over."""

import json
import re

import numpy as np
import pytest

from experiments import compose, find_run_folder, run
from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.final_episodes import build_players_table
from llmrl.analysis.report import ReportSettings
from llmrl.cli.evaluate import build_parser, evaluate, main
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_parts
from llmrl.llms.call_log import read_calls
from llmrl.run.files import read_json_lines
from some import mark_long_except

SHORT = ("agent=llm_player", "env.horizon=6", "play.episodes=6", "play.records=6")
SHOW_RETURNS = "agent.show=[reward,last_episode]"
CARRYING = {"last_episode": (SHOW_RETURNS,), "lessons": ("agent.lessons=2",)}


def play(root, *overrides):
    run(*overrides, f"output_root={root}")
    return find_run_folder(root)


def results(folder):
    return json.loads((folder / "results.json").read_text())


def list_prompts(folder):
    """Return all requests of a run with all their messages, sorted."""
    return sorted(json.dumps(call["messages"]) for call in read_calls(folder / "llm_calls.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", mark_long_except(["taxi", "cartpole"], ["taxi", "blackjack", "frozen_lake", "cartpole"])
)
def test_batch_size_keeps_episode(tmp_path, env):
    """Compare prompts, replies and results of each episode with the default settings."""
    single, four = (play(tmp_path / str(n), f"env={env}", f"env.n_envs={n}", *SHORT) for n in (1, 4))
    for k in range(6):
        first, second = (read_json_lines(folder / "episodes" / str(k) / "replies.jsonl") for folder in (single, four))
        assert [{**line, "latency": 0} for line in first] == [{**line, "latency": 0} for line in second]
    assert list_prompts(single) == list_prompts(four)
    assert results(single)["per_episode"] == results(four)["per_episode"]
    assert results(single)["carried"] == [] and results(single)["table"]["return"]["standard_error"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("option", CARRYING)
def test_reports_carried_state(tmp_path, capsys, option):
    # The scripted player knows no rule of this game, and half of its replies are no action that helps.
    folder = play(tmp_path, "env=taxi", "env.n_envs=2", "llm.max_invalid=null", *SHORT, *CARRYING[option])
    scores = results(folder)
    assert scores["carried"] == [option] and not scores["learned"]
    for row in scores["table"].values():
        assert (row["standard_error"], row["low"], row["high"]) == (None, None, None) and row["min"] <= row["mean"]
    evaluation = evaluate(build_parser().parse_args([str(folder), "--episodes", "3"]))
    assert evaluation["carried"] == [option] and evaluation["table"]["length"]["standard_error"] is None
    main([str(folder), "--episodes", "2"])
    output = " ".join(capsys.readouterr().out.split())
    assert f"({option})" in output
    random_evaluation = evaluate(build_parser().parse_args([str(folder), "--episodes", "3", "--policy", "random"]))
    assert random_evaluation["carried"] == [] and random_evaluation["table"]["length"]["standard_error"] is not None


@pytest.mark.slow
def test_video_keeps_evaluation_episodes(tmp_path):
    """Check episodes whose prompts summarize the last episode, too."""
    folder = play(tmp_path, "env=blackjack", "env.n_envs=1", *SHORT, SHOW_RETURNS)

    def first_questions(*options):
        out = tmp_path / f"out{len(options)}"
        evaluate(build_parser().parse_args([str(folder), "--episodes", "3", "--out", str(out), *options]))
        starts = [text for text in list_prompts(out) if re.search(r"last_episode", text.split('"role": "user"')[1])]
        return list_prompts(out), starts

    (plain, prompts), (filmed, _) = first_questions(), first_questions("--video", "--video-steps", "2")
    assert prompts and set(plain) <= set(filmed)


def test_reports_count_runs(tmp_path):
    for seed in (0, 1, 2):
        run(
            "env=blackjack",
            *SHORT,
            SHOW_RETURNS,
            f"seed={seed}",
            f"output_root={tmp_path}",
            "env.n_envs=2",
            "llm=scripted",
        )
    [player] = compute_report(tmp_path, ReportSettings()).players
    means = [np.mean(results(path.parent)["per_episode"]["return"]) for path in sorted(tmp_path.rglob("results.json"))]
    assert player.carried_states == ("last_episode",) and not player.is_trained
    assert player.errors["return"] == pytest.approx(np.std(means, ddof=1) / 3**0.5)
    table = build_players_table([player])
    assert any("last_episode" in note for note in table.notes)
    header, row = table.csv_rows
    assert row[header.index("carried")] == "last_episode"


def test_single_plan_is_shared_by_episodes():
    """Check that the unit of analysis is the run; the rules of the oracle are deterministic."""
    shared = {}
    for teacher in ("llm", "oracle"):
        config = compose("env=simple_doorkey", "agent=teacher", f"teacher={teacher}", "llm=scripted")
        parts = build_parts(config, build_llm(config, None))
        shared[teacher] = parts.agents[0].shares_learning
        parts.close()
    assert shared == {"llm": True, "oracle": False}


def test_stateless_player_has_no_memory():
    for study in ("taxi", "blackjack", "lunar_lander"):
        config = compose("experiment=zero_shot/games", f"env={study}", "treatment=observation_only", "llm=scripted")
        assert config["agent"]["show"] == [] and config["agent"]["lessons"] == 0
