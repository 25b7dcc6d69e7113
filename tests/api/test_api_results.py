"""`llmrl.load`: tables of runs in any state."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import llmrl
from experiments import find_run_folder, run
from llmrl.core.errors import ConfigError, EngineError, LlmrlError
from llmrl.run.run import Run
from llmrl.run.training_episodes import TrainingEpisodes
from run_folders import SCRIPTED, write_calls, write_run

TABLES = ("runs", "metrics", "proposals", "episodes", "llm_calls")


@pytest.fixture
def outputs(tmp_path):
    """Write two principals with two seeds each, one of which failed, and a waiting run."""
    root = tmp_path / "outputs"
    write_run(root, "sweep", ["principal=ucb", "design.steps=3"], 0, [1.0, 2.0, 3.0])
    write_run(root, "sweep", ["principal=ucb", "design.steps=3"], 1, [4.0, math.nan])
    write_run(root, "sweep", ["principal=llm", "design.steps=12"], 0, [5.0], llm=SCRIPTED)
    write_run(root, "sweep", ["principal=llm", "design.steps=12"], 1, [6.0], error=EngineError("it died"))
    return root


def test_runs_table_has_differing_overrides(outputs):
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


def test_omits_shared_overrides(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, "one", ["principal=ucb"], seed)
    assert "principal" not in llmrl.load(tmp_path).runs


def test_absent_override_is_missing(tmp_path):
    write_run(tmp_path, "one", [], 0)
    write_run(tmp_path, "one", ["env.n_envs=8"], 0)
    column = llmrl.load(tmp_path).runs["env.n_envs"]
    assert column.isna().sum() == 1 and column.max() == 8


def test_dependency_runs_are_flagged(outputs):
    pretraining = write_run(outputs, "pretraining", [], 0)
    dependent = sorted(outputs.glob("sweep/*/s0"))[0]
    status = json.loads((dependent / "status.json").read_text())
    status["prerequisites"] = [{"what": "pre-training", "name": "pretraining", "folder": str(pretraining)}]
    (dependent / "status.json").write_text(json.dumps(status))
    results = llmrl.load(outputs)
    assert results.runs.set_index("name").is_prerequisite.groupby("name").sum().to_dict() == {
        "pretraining": 1,
        "sweep": 0,
    }
    assert len(results.where(is_prerequisite=False)) == 4


def test_metrics_are_long_and_typed(outputs):
    metrics = llmrl.load(outputs).where(principal="ucb", seed=0).metrics
    objective = metrics[metrics.metric == "principal/objective"]
    assert objective.value.tolist() == [1.0, 2.0, 3.0]
    assert objective.axis_value.tolist() == [4, 8, 12] and set(objective.axis) == {"proposals"}
    assert objective.env_steps.tolist() == [100, 200, 300]
    assert set(objective.kind) == {"proposal"} and (objective.elapsed_s >= 0).all()
    assert not metrics.metric.str.startswith("time/").any()


def test_omits_non_finite_numbers(outputs):
    metrics = llmrl.load(outputs).metrics
    assert np.isfinite(metrics.value).all()
    assert len(metrics[(metrics.metric == "principal/objective") & (metrics.value == 4.0)]) == 1


def test_proposals_have_parameter_columns(tmp_path):
    run("env=escape_room", "principal=ucb", "env.n_envs=2", "design.steps=3", "design.adapt_rounds=1",
        "design.validate_episodes=2", "design.confirm_steps=0", f"output_root={tmp_path}")  # fmt: skip
    folder = find_run_folder(tmp_path)
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


def test_search_proposals_and_episodes(tmp_path):
    run("env=cartpole", "agent=linear", "principal=random", "search.iterations=2", "search.candidates=3",
        "search.warmup=2", "search.evaluate_episodes=2", f"output_root={tmp_path}")  # fmt: skip
    proposals = llmrl.load(tmp_path).proposals
    assert proposals.step.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert proposals.candidate.tolist() == [0, 1, 0, 1, 2, 0, 1, 2]
    assert proposals.filter(like="parameter.").shape == (8, 10)
    assert not proposals.filter(like="parameter.").isna().any().any()


def test_training_and_evaluation_episodes(tmp_path):
    folder = write_run(tmp_path, "learned", ["agent=ppo"], 3)
    episodes = TrainingEpisodes(folder, 2, 5, ["return", "base_return", "success"])
    episodes.write_episodes([(0, 0, 4), (1, 0, 5)], [[1.0, 0.5, 1.0], [0.0, 0.0, math.nan]])
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


def test_player_episodes_and_calls(tmp_path):
    run("env=frozen_lake", "agent=llm_player", "llm=scripted", "play.episodes=2", f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    results = llmrl.load(tmp_path)
    assert sorted(results.episodes.episode) == [0, 1] and set(results.episodes.source) == {"final"}
    calls = results.llm_calls
    assert len(calls) == results.episodes.replies.sum() > 0
    assert calls.valid.all() and (calls.outcome == "reply").all() and (calls.cost == 0).all()
    assert calls.prompt_tokens.sum() == results.episodes.prompt_tokens.sum()
    assert results.runs.model.tolist() == [SCRIPTED]
    assert str(folder) in results.runs.folder.tolist()


def test_call_costs_distinguish_unknown_costs(tmp_path):
    folder = write_run(tmp_path, "paid", [], 0)
    write_calls(folder, "gpt", [0.25, None])
    lines = [
        {"model": "gpt", "hash": "a", "reply": "x", "cached": True, "cost": 0.5, "valid": None},
        {"model": "gpt", "hash": "b", "error": "no key"},
        {"attempt_id": "1", "model": "gpt", "hash": "c", "attempt": 2, "reserved": {"tokens": 9, "cost": 0.75}},
    ]
    with (folder / "llm_calls.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.write('{"cut sho')
    calls = llmrl.load(tmp_path).llm_calls
    assert calls.outcome.tolist() == ["reply", "reply", "reply", "failed", "lost"]
    assert [x if x == x else None for x in calls.cost] == [0.25, None, 0.0, None, None]
    assert calls.possible_cost.tolist()[-1] == 0.75 and calls.attempts.tolist()[-1] == 2
    assert calls.error.tolist()[3] == "no key"


def test_empty_folder_gives_typed_tables(tmp_path, outputs):
    (tmp_path / "nothing").mkdir()
    empty, full = llmrl.load(tmp_path / "nothing"), llmrl.load(outputs)
    for name in TABLES:
        table, full_table = getattr(empty, name), getattr(full, name)
        assert len(table) == 0
        assert table.dtypes.astype("str").equals(full_table.dtypes.astype("str")[: table.shape[1]])
    assert repr(empty).startswith("Results(0 runs")


def test_waiting_and_running_runs_are_included(tmp_path):
    with Run.open(tmp_path, "now", {"of": 1}, ["principal=ucb", "seed=0"], 0) as running:
        running.metrics.log("update", "env_steps", {"loss": 1.0}, env_steps=5)
        results = llmrl.load(tmp_path)
        assert results.runs.state.tolist() == ["running"]
        assert results.metrics.value.tolist() == [1.0]
        assert len(results.proposals) == len(results.episodes) == len(results.llm_calls) == 0


def test_reports_corrupt_file(outputs, caplog):
    folder = next((outputs / "sweep").glob("*ucb*")) / "s0"
    (folder / "metrics.jsonl").write_text("no json\n")
    metrics = llmrl.load(outputs).metrics
    assert set(metrics.value) >= {5.0, 6.0} and 3.0 not in set(metrics.value)
    assert str(folder) in caplog.text and "metrics.jsonl" in caplog.text


def test_multiple_folders_and_filters(outputs, tmp_path):
    other_folder = write_run(tmp_path / "elsewhere", "sweep", ["principal=gp"], 0)
    results = llmrl.load([outputs / "sweep", other_folder, other_folder])
    assert len(results) == 5 and results.runs.run.is_unique
    assert len(results.where(state="failed")) == 1
    assert results.where(seed=[0, 1], principal=["ucb", "gp"]).runs.principal.tolist() == ["ucb", "ucb", "gp"]
    with pytest.raises(ConfigError, match="column"):
        results.where(color="red")


def test_filters_can_be_chained(outputs):
    results = llmrl.load(outputs)
    ucb = results.where(principal="ucb")
    assert set(ucb.runs.label) == set(ucb.metrics.label) == {"principal=ucb, steps=3"}
    again = ucb.where(principal="ucb")
    pd.testing.assert_frame_equal(again.runs, results.runs[results.runs.principal == "ucb"].reset_index(drop=True))


def test_equal_names_in_different_folders_are_distinct(tmp_path):
    first, second = (write_run(tmp_path / place, "same", ["principal=ucb"], 0) for place in ("a", "b"))
    assert llmrl.load([first, second]).metrics.run.nunique() == 2


def test_saved_tables_keep_dtypes(outputs, tmp_path):
    results = llmrl.load(outputs)
    files = results.save(tmp_path / "tables")
    assert [file.name for file in files] == [f"{name}.parquet" for name in TABLES]
    for name, file in zip(TABLES, files, strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(file), getattr(results, name), check_categorical=False)


def test_missing_folder_raises(tmp_path):
    with pytest.raises(LlmrlError, match="no folder"):
        llmrl.load(tmp_path / "nowhere")


def test_reports_missing_pandas():
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "import llmrl\n"
        "try: llmrl.load('.')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.startswith("ConfigError") and "llmrl[analysis]" in output
