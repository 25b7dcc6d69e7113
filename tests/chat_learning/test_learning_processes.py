"""A chat model that learns in two processes, which give the same run as one process."""

import sys

import pytest

import commands
from experiments import are_rows_close, find_run_folder, load_comparable_metrics, run
from llmrl.run.artifacts import load_saved_state
from some import mark_long_except

PLAYER = ("agent=llm_player", "agent.history=0", "agent.reflection=false", "agent.repair_turns=0", "agent.show=[]")
MODEL = (
    *("llm=small_chat", "llm/learn=grpo", "llm.make.format_steps=40", "llm.make.width=32", "llm.make.layers=2"),
    *("llm.make.heads=2", "llm.make.vocabulary=400", "llm.max_tokens=16", "llm.max_invalid=null"),
)
RUN = ("env=blackjack", "env.n_envs=7", "learn.env_steps=24", "learn.evaluate_episodes=8", *PLAYER, *MODEL)


@pytest.mark.slow
@pytest.mark.parametrize("tune", mark_long_except(["lora"], ["full", "lora"]))
def test_two_processes_match_single_process(tmp_path, tune):
    overrides = (*RUN, f"llm.learn.tune={tune}", "llm.learn.group_size=7")
    arguments = [sys.executable, "-m", "llmrl.cli.train", *overrides, f"output_root={tmp_path / 'two'}"]
    for child in commands.start_ranks(arguments):
        output, _ = child.communicate(timeout=500)
        assert child.returncode == 0, output
    run(*overrides, f"output_root={tmp_path / 'one'}")
    two, single = (find_run_folder(tmp_path / name / "blackjack") for name in ("two", "one"))
    rows, other_rows = load_comparable_metrics(two), load_comparable_metrics(single)
    assert len(rows) > 2
    for row in (*rows, *other_rows):
        # Sequences are padded to other lengths, and the error is one of rounding.
        row.pop("learn/tokens", None)
        assert row.pop("learn/log_prob_error", 0.0) < 1e-5
    assert are_rows_close(rows, other_rows, rel=1e-3)
    states = [load_saved_state(folder)[1]["agents"][0]["learners"][0] for folder in (two, single)]
    weights, other_weights = (state["weights"] for state in states)
    assert weights.keys() == other_weights.keys()
    assert all((weights[name] - other_weights[name]).abs().max() < 1e-4 for name in weights)
