"""`llmrl.load`: tables of runs in whatever state they are."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import llmrl
from experiments import only_run_folder, run
from llmrl.core.errors import ConfigError, EngineError, LlmrlError
from llmrl.run.run import Run
from llmrl.run.training_episodes import TrainingEpisodes
from run_folders import SCRIPTED, write_calls, write_run

TABLES = ("runs", "metrics", "proposals", "episodes", "llm_calls")


@pytest.fixture
def outputs(tmp_path):
    """Two principals with two seeds each, one of which failed, and a run that waits."""
    root = tmp_path / "outputs"
    write_run(root, "sweep", ["principal=ucb", "design.steps=3"], 0, [1.0, 2.0, 3.0])
    write_run(root, "sweep", ["principal=ucb", "design.steps=3"], 1, [4.0, math.nan])
    write_run(root, "sweep", ["principal=llm", "design.steps=12"], 0, [5.0], llm=SCRIPTED)
    write_run(root, "sweep", ["principal=llm", "design.steps=12"], 1, [6.0], error=EngineError("it died"))
    return root


def test_one_row_a_run_with_the_overrides_that_differ(outputs):
    runs = llmrl.load(outputs).runs.set_index(["principal", "seed"])
    assert runs.state.to_dict() == {
        ("ucb", 0): "finished",
        ("ucb", 1): "finished",
        ("llm", 0): "finished",
        ("llm", 1): "failed",
    }
    assert runs.result[("ucb", 0)] == 3.0 and math.isnan(runs.result[("llm", 1)])
    assert runs["design.steps"].tolist() == [12.0, 12.0, 3.0, 3.0]
    assert runs.error[("llm", 1)].endswith("it died")
    assert runs.label[("ucb", 1)] == "principal=ucb, steps=3"
    assert runs.run.is_unique and runs.hash.nunique() == 2
    assert runs.updated.dt.tz is not None and (runs.started <= runs.updated).all()


def test_what_all_runs_share_is_no_column(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "one", ["principal=ucb"], seed)
    assert "principal" not in llmrl.load(tmp_path).runs


def test_an_override_that_a_run_lacks_is_missing(tmp_path):
    write_run(tmp_path, "one", [], 0)
    write_run(tmp_path, "one", ["env.n_envs=8"], 0)
    column = llmrl.load(tmp_path).runs["env.n_envs"]
    assert column.isna().sum() == 1 and column.max() == 8


def test_metrics_are_long_and_typed(outputs):
    metrics = llmrl.load(outputs).where(principal="ucb", seed=0).metrics
    objective = metrics[metrics.metric == "principal/objective"]
    assert objective.value.tolist() == [1.0, 2.0, 3.0]
    assert objective.place.tolist() == [4, 8, 12] and set(objective.axis) == {"proposals"}
    assert objective.env_steps.tolist() == [100, 200, 300]
    assert set(objective.kind) == {"proposal"} and (objective.elapsed_s >= 0).all()
    assert not metrics.metric.str.startswith("time/").any()


def test_numbers_that_were_not_finite_are_left_out(outputs):
    metrics = llmrl.load(outputs).metrics
    assert np.isfinite(metrics.value).all()
    assert len(metrics[(metrics.metric == "principal/objective") & (metrics.value == 4.0)]) == 1


def test_proposals_of_mechanism_design_have_their_numbers_by_name(tmp_path):
    run("env=escape_room", "principal=ucb", "env.n_envs=2", "design.steps=3", "design.adapt_rounds=1",
        "design.validate_episodes=2", "design.confirm_steps=0", f"output_root={tmp_path}")  # fmt: skip
    folder = only_run_folder(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    history = summary["history"]
    [scores] = llmrl.load(folder).runs[["result", "recommendation", "online_performance"]].to_numpy()
    assert scores.tolist() == [summary["recommendation"], summary["recommendation"], summary["online_performance"]]
    proposals = llmrl.load(folder).proposals
    assert proposals.objective.tolist() == [row["objective"] for row in history]
    assert proposals.context.tolist() == [row["context"] for row in history]
    assert proposals["parameter.door"].tolist() == [row["mechanism"]["door"] for row in history]
    assert proposals.episodes.tolist() == [2, 2, 2]
    # As long as the run goes on there is no summary.
    (folder / "summary.json").unlink()
    pd.testing.assert_frame_equal(llmrl.load(folder).proposals, proposals)


def test_proposals_and_episodes_of_a_search(tmp_path):
    run("env=cartpole", "agent=linear", "principal=random", "search.iterations=2", "search.candidates=3",
        "search.warmup=2", "search.evaluate_episodes=2", f"output_root={tmp_path}")  # fmt: skip
    proposals = llmrl.load(tmp_path).proposals
    assert proposals.step.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert proposals.candidate.tolist() == [0, 1, 0, 1, 2, 0, 1, 2]
    assert proposals.filter(like="parameter.").shape == (8, 10)
    assert not proposals.filter(like="parameter.").isna().any().any()


def test_training_episodes_and_those_of_an_evaluation(tmp_path):
    folder = write_run(tmp_path, "learned", ["agent=ppo"], 3)
    episodes = TrainingEpisodes(folder, 2, 5, ["return", "base_return", "success"])
    episodes.write([(0, 0, 4), (1, 0, 5)], [[1.0, 0.5, 1.0], [0.0, 0.0, math.nan]])
    episodes.close()
    (folder / "evaluation").mkdir()
    columns = {
        "objective (mean)": [1.0, 2.0],
        "return per agent": [3.0, 4.0],
        "length": [5.0, 6.0],
        "apples": [7, None],
    }
    player = {"policy": "student", "mode": "stochastic", "per_episode": columns}
    (folder / "evaluation" / "results.json").write_text(json.dumps({"name": "last", "players": [player]}))
    table = llmrl.load(tmp_path).episodes
    training, evaluation = (table[table.source == source] for source in ("training", "evaluation"))
    assert training.length.tolist() == [4, 5] and training.start.tolist() == [0, 0]
    assert training.base_return.tolist() == [0.5, 0.0] and training.game.tolist() == [0, 1]
    assert evaluation["return"].tolist() == [3.0, 4.0] and evaluation.objective.tolist() == [1.0, 2.0]
    assert evaluation.mechanism.tolist() == ["last", "last"] and set(evaluation.policy) == {"student"}
    assert evaluation.apples.tolist()[0] == 7 and math.isnan(evaluation.apples.tolist()[1])
    assert (table.seed == 3).all()


def test_episodes_of_a_player_and_its_calls(tmp_path):
    run("env=frozen_lake", "agent=llm_player", "llm=scripted", "play.episodes=2", f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    results = llmrl.load(tmp_path)
    assert sorted(results.episodes.episode) == [0, 1] and set(results.episodes.source) == {"final"}
    calls = results.llm_calls
    assert len(calls) == results.episodes.replies.sum() > 0
    assert calls.valid.all() and (calls.outcome == "reply").all() and (calls.cost == 0).all()
    assert calls.prompt_tokens.sum() == results.episodes.prompt_tokens.sum()
    assert results.runs.model.tolist() == [SCRIPTED]
    assert str(folder) in results.runs.folder.tolist()


def test_what_a_call_cost_is_known_unknown_or_possible(tmp_path):
    folder = write_run(tmp_path, "paid", [], 0)
    write_calls(folder, "gpt", [0.25, None])
    lines = [
        {"model": "gpt", "hash": "a", "reply": "x", "cached": True, "cost": 0.5, "valid": None},
        {"model": "gpt", "hash": "b", "error": "no key"},
        {"asked": "1", "model": "gpt", "hash": "c", "attempt": 2, "reserved": {"tokens": 9, "cost": 0.75}},
    ]
    with (folder / "llm_calls.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.write('{"cut sho')
    calls = llmrl.load(tmp_path).llm_calls
    assert calls.outcome.tolist() == ["reply", "reply", "reply", "failed", "lost"]
    assert [x if x == x else None for x in calls.cost] == [0.25, None, 0.0, None, None]
    assert calls.possible_cost.tolist()[-1] == 0.75 and calls.attempts.tolist()[-1] == 2
    assert calls.error.tolist()[3] == "no key"


def test_a_folder_without_runs_gives_empty_tables_with_the_same_types(tmp_path, outputs):
    (tmp_path / "nothing").mkdir()
    empty, full = llmrl.load(tmp_path / "nothing"), llmrl.load(outputs)
    for name in TABLES:
        table, other = getattr(empty, name), getattr(full, name)
        assert len(table) == 0
        assert table.dtypes.astype("str").equals(other.dtypes.astype("str")[: table.shape[1]])
    assert repr(empty).startswith("Results(0 runs")


def test_a_run_that_only_waits_or_is_running_is_there(tmp_path):
    with Run.open(tmp_path, "now", {"of": 1}, ["principal=ucb", "seed=0"], 0) as running:
        running.metrics.log("update", "env_steps", {"loss": 1.0}, env_steps=5)
        results = llmrl.load(tmp_path)
        assert results.runs.state.tolist() == ["running"]
        assert results.metrics.value.tolist() == [1.0]
        assert len(results.proposals) == len(results.episodes) == len(results.llm_calls) == 0


def test_a_damaged_file_costs_its_rows_and_is_named(outputs, caplog):
    folder = next((outputs / "sweep").glob("*ucb*")) / "s0"
    (folder / "metrics.jsonl").write_text("no json\n")
    metrics = llmrl.load(outputs).metrics
    assert set(metrics.value) >= {5.0, 6.0} and 3.0 not in set(metrics.value)
    assert str(folder) in caplog.text and "metrics.jsonl" in caplog.text


def test_several_folders_and_selections(outputs, tmp_path):
    other = write_run(tmp_path / "elsewhere", "sweep", ["principal=gp"], 0)
    results = llmrl.load([outputs / "sweep", other, other])
    assert len(results) == 5 and results.runs.run.is_unique
    assert len(results.where(state="failed")) == 1
    assert results.where(seed=[0, 1], principal=["ucb", "gp"]).runs.principal.tolist() == ["ucb", "ucb", "gp"]
    with pytest.raises(ConfigError, match="no such column"):
        results.where(colour="red")


def test_runs_of_one_name_in_two_places_are_told_apart(tmp_path):
    one, two = (write_run(tmp_path / place, "same", ["principal=ucb"], 0) for place in ("a", "b"))
    assert llmrl.load([one, two]).metrics.run.nunique() == 2


def test_tables_are_saved_with_their_types(outputs, tmp_path):
    results = llmrl.load(outputs)
    files = results.save(tmp_path / "tables")
    assert [file.name for file in files] == [f"{name}.parquet" for name in TABLES]
    for name, file in zip(TABLES, files, strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(file), getattr(results, name), check_categorical=False)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(LlmrlError, match="there is no folder"):
        llmrl.load(tmp_path / "nowhere")


def test_pandas_is_named_where_it_is_missing():
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "import llmrl\n"
        "try: llmrl.load('.')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("ConfigError") and "llmrl[analysis]" in said
