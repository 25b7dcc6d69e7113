"""Recommendation of a design run: confirmation by new measurements and evaluation with separate random numbers."""

import json
import signal

import numpy as np
import pytest

from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.cli.evaluate import build_parser, evaluate
from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import plan
from llmrl.run.artifacts import load_saved_state
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.statistics.estimators import standard_error_of_mean
from some import mark_long_except

pytestmark = pytest.mark.slow

ROOM = (
    "env=escape_room",
    "env.n_envs=4",
    "design.adapt_rounds=1",
    "design.validate_episodes=4",
    "design.references=0",
)
BANDIT = (*ROOM, "principal=egreedy", "principal.points=2", "principal.epsilon=0.5", "design.steps=30")
WIDE = (*BANDIT, "design.candidates=2", "env.n_envs=8")
SINGLE = (*BANDIT, "env.fixed_context=0", "design.anytime=true")
TRIAL = (1 + 1) * 5 * 8
"""Environment steps of a trial of `WIDE`."""


def design(root, *overrides):
    run("design.evaluations=4", *overrides, f"output_root={root}")
    folder = find_run_folder(root)
    return folder, json.loads((folder / "summary.json").read_text())


def key(row):
    return row["context"], tuple(row["mechanism"].values())


def pooled(rows):
    """Return the objectives by (context, vector)."""
    values = {}
    for row in rows:
        values.setdefault(key(row), []).append(row["objective"])
    return {key: np.array(values) for key, values in values.items()}


def planned(*overrides):
    config = compose("design.evaluations=4", *overrides)
    parts = build_parts(config, build_llm(config, None))
    rows = dict(plan(config, parts, build_loop(config, parts)))
    parts.close()
    return rows


@pytest.fixture(scope="module")
def confirmed_run(tmp_path_factory):
    return design(tmp_path_factory.mktemp("confirmed"), *WIDE)


@pytest.fixture(scope="module")
def anytime(tmp_path_factory):
    return design(tmp_path_factory.mktemp("anytime"), *SINGLE)


def test_the_last_steps_confirm_the_leading_candidates(confirmed_run):
    _, summary = confirmed_run
    assert summary["principal_steps"] == 30 and summary["measurements"] == 60
    assert summary["proposals"] == len(summary["history"]) == 48 and summary["confirmed"] == 12
    means = {vector_key: values.mean() for vector_key, values in pooled(summary["history"]).items()}
    for context in {row["context"] for row in summary["confirmations"]}:
        confirmed_keys = {key(row) for row in summary["confirmations"] if row["context"] == context}
        ranking = sorted(
            (vector_key for vector_key in means if vector_key[0] == context), key=lambda vector_key: -means[vector_key]
        )
        assert confirmed_keys == set(ranking[:2]), "four measurements confirm two candidates"
    all_values = pooled(summary["history"] + summary["confirmations"])
    for row in summary["recommendations"]:
        finalists = {key(outcome) for outcome in summary["confirmations"] if outcome["context"] == row["context"]}
        assert key(row) == max(finalists, key=lambda vector_key: all_values[vector_key].mean())
        assert row["measurements"] == len(all_values[key(row)])


def test_result_is_mean_fresh_evaluation(confirmed_run):
    folder, summary = confirmed_run
    rows = summary["recommendations"]
    assert [row["evaluations"] for row in rows] == [4, 4, 4]
    for row in rows:
        assert row["objective"] == pytest.approx(np.mean(row["values"]))
        assert row["standard_error"] == pytest.approx(standard_error_of_mean(np.array(row["values"])))
    assert [row["objective"] for row in rows] == sorted((row["objective"] for row in rows), reverse=True)
    mean = np.mean([row["objective"] for row in rows])
    status = json.loads((folder / "status.json").read_text())
    assert status["result"] == summary["recommendation"] == pytest.approx(mean)
    late = [row["objective"] for row in summary["history"]][-4 * 2 :]
    assert summary["online_performance"] == pytest.approx(np.mean(late)), "the last fifth of 24 steps"
    [last] = [row for row in load_comparable_metrics(folder) if row["kind"] == "recommendation"]
    assert last["measurements"] == 60 and last["recommendation/objective"] == pytest.approx(mean)


def test_trial_counts_match_plan(confirmed_run):
    _, summary = confirmed_run
    assert summary["evaluation_env_steps"] == 6 * TRIAL, "two of the four evaluations in a trial, three contexts"
    assert summary["env_steps"] == 36 * TRIAL
    assert planned(*WIDE)["environment steps"] == f"{36 * TRIAL:,}"


@pytest.mark.long
def test_evaluations_keep_step_measurements(tmp_path, confirmed_run):
    folder, summary = design(tmp_path, *WIDE, "design.evaluations=0", "design.confirm_steps=6")
    assert summary["history"] == confirmed_run[1]["history"]
    assert summary["confirmations"] == confirmed_run[1]["confirmations"]
    assert [key(row) for row in summary["recommendations"]] != [] and "recommendation" not in summary
    assert json.loads((folder / "status.json").read_text())["result"] == summary["online_performance"]
    assert summary["online_performance"] == confirmed_run[1]["online_performance"]
    mine, second = (load_saved_state(folder)[1]["agents"] for folder in (folder, confirmed_run[0]))
    for a, b in zip(mine, second, strict=True):
        assert all((x == b["policy"][name]).all() for name, x in a["policy"].items())


@pytest.mark.long
def test_principals_with_equal_recommendations_have_equal_results(tmp_path):
    """The seeds of the evaluation are the same for all principals."""
    fixed = design(tmp_path / "fixed", *ROOM, "env.fixed_context=0", "principal=fixed", "principal.values=[5,0,0,0,0]")
    vectors = "principal.vectors=[[5,0,0,0,0],[5,0,0,0,0]]"
    list_run = design(tmp_path / "listed", *ROOM, "env.fixed_context=0", "principal=listed", vectors, "design.steps=5")
    assert fixed[1]["recommendations"][0]["values"] == list_run[1]["recommendations"][0]["values"]
    assert fixed[1]["history"][0]["objective"] != fixed[1]["recommendations"][0]["values"][0]


def test_anytime_recommendations_follow_from_the_first_measurements(anytime):
    folder, summary = anytime
    rows = [row for row in load_comparable_metrics(folder) if row["kind"] == "recommendation"]
    assert [row["measurements"] for row in rows] == [1, 2, 5, 10, 20, 30]
    names = list(summary["history"][0]["mechanism"])
    for row in rows[:-1]:
        means = pooled(summary["history"][: row["measurements"]])
        best = max(means.values(), key=np.mean).mean()
        [leading] = [vector_key for vector_key, values in means.items() if values.mean() == best][:1]
        assert [row[f"recommendation/{name}"] for name in names] == pytest.approx(list(leading[1]))
        assert 4 <= row["recommendation/evaluations"] <= 16
    assert rows[-1]["recommendation/objective"] == summary["recommendation"]


@pytest.mark.parametrize(
    "moment", mark_long_except(["confirmation"], ["proposal", "confirmation", "evaluation", "between"])
)
def test_interruption_keeps_results(tmp_path, monkeypatch, confirmed_run, moment):
    safe_point, stopped = Run.safe_point, []
    places = {"proposal": 9 * 2 + 1, "confirmation": 25 * 2 + 1, "evaluation": 31 * 2 + 1, "between": 30 * 2}[moment]

    def interrupted(self, iteration, state):
        if iteration == places and not stopped:
            stopped.append(iteration)
            signal.raise_signal(signal.SIGTERM)
        safe_point(self, iteration, state)

    monkeypatch.setattr(Run, "safe_point", interrupted)
    with pytest.raises(Stopped):
        run("design.evaluations=4", *WIDE, f"output_root={tmp_path}")
    folder, summary = design(tmp_path, *WIDE)
    assert stopped and summary == confirmed_run[1]
    assert load_comparable_metrics(folder) == load_comparable_metrics(confirmed_run[0])


def test_evaluate_plays_the_recommendation(confirmed_run):
    folder, summary = confirmed_run
    evaluation = evaluate(build_parser().parse_args([str(folder), "--episodes", "8", "--mechanism", "best"]))
    assert evaluation["mechanism"] == pytest.approx(summary["recommendations"][0]["mechanism"])
    assert evaluation["context"] == summary["recommendations"][0]["context"]


def test_gradient_principal_is_evaluated(tmp_path):
    _, summary = design(
        tmp_path,
        *ROOM,
        "principal=metagrad",
        "agent=pg",
        "env.fixed_context=0",
        "design.steps=4",
        "design.confirm_steps=2",
    )
    assert summary["confirmed"] == 2 and summary["recommendations"][0]["evaluations"] == 4


def test_repetitions_in_step_draw_independently(tmp_path):
    vectors = "principal.vectors=[[5,0,0,0,0],[5,0,0,0,0],[0,0,0,0,0],[5,0,0,0,0]]"
    common = ("principal=listed", vectors, "env.fixed_context=0", "design.steps=1")
    _, batch = design(tmp_path / "batch", *ROOM, *common, "design.candidates=4", "env.n_envs=16")
    values = [row["values"] for row in batch["history"]]
    assert values[0] != values[1] != values[3] != values[0]
    assert [row.get("repetition", 0) for row in batch["history"]] == [0, 1, 0, 2]
    assert batch["recommendations"][0]["measurements"] in (1, 3)
    single_vector = ("principal=listed", "principal.vectors=[[5,0,0,0,0]]", "env.fixed_context=0", "design.steps=1")
    _, single = design(tmp_path / "single", *ROOM, *single_vector)
    assert single["history"][0]["values"] == values[0], "the first draws what it draws alone"


def test_validation_after_earlier_rounds(tmp_path):
    common = (*ROOM, "principal=listed", "principal.vectors=[[5,0,0,0,0],[0,0,0,0,0]]", "env.fixed_context=0")
    common = (*common, "design.candidates=2", "env.n_envs=8", "design.steps=1", "design.evaluations=0")
    common = (*common, "design.adapt_rounds=3")
    folder, summary = design(tmp_path / "at", *common, "design.validation_rounds=[0,2]")
    _, plain = design(tmp_path / "plain", *common)
    assert [row["objective"] for row in summary["history"]] == [row["objective"] for row in plain["history"]]
    for outcome in summary["history"]:
        *earlier, last = outcome["validated"]
        assert earlier == ["0", "2"]
        assert outcome["validated"][last] == outcome["objective"]
    [row] = [row for row in load_comparable_metrics(folder) if row["kind"] == "proposal"]
    for n in ("0", "2"):
        mean = np.mean([outcome["validated"][n] for outcome in summary["history"]])
        assert row[f"validation/objective_after_{n}"] == pytest.approx(mean)
    assert summary["env_steps"] == plain["env_steps"] + 2 * 5 * 8


def test_validation_rounds_have_returns_of_kinds(tmp_path):
    members = (
        "agent.members=[{count: 1, agent: ppo, name: deviator}, {count: 4, agent: ppo, freeze: all, name: others}]"
    )
    common = (*ROOM, "env.n_agents=5", "env.fixed_context=0", "principal=fixed", "principal.values=[5,0,0,0,0]")
    common = (*common, "agent=mixed", members, "design.steps=1", "design.evaluations=0", "design.adapt_rounds=2")
    folder, summary = design(tmp_path, *common, "design.validation_rounds=[0]")
    [row] = summary["history"]
    assert list(row["kinds"]) == ["0", "2"] and set(row["kinds"]["0"]) == {"deviator", "others"}
    [logged] = [line for line in load_comparable_metrics(folder) if line["kind"] == "proposal"]
    for name, value in row["kinds"]["2"].items():
        assert value == pytest.approx(logged[f"validation/return_{name}"])


@pytest.mark.parametrize(
    "overrides",
    [
        ("design.confirm_steps=4", "design.reset_agents=false"),
        ("design.confirm_steps=30",),
        ("design.confirm_steps=2",),
        ("design.anytime=true", "design.evaluations=0"),
        ("design.validation_rounds=[4]",),
    ],
)
def test_contradictory_settings_raise(tmp_path, overrides):
    with pytest.raises(ConfigError) as error:
        design(tmp_path, *BANDIT, *overrides)
    assert overrides[0].split("=")[0] in str(error.value)


def test_persistent_societies_are_evaluated_directly(tmp_path):
    _, summary = design(tmp_path, *BANDIT, "design.reset_agents=false", "design.steps=6")
    assert summary["confirmed"] == 0 and summary["recommendations"][0]["evaluations"] == 4


def test_society_standard_error():
    """Checks the pooled estimate of a proposal measured twice in three societies."""
    pool, societies = PooledEstimates(), [np.array([1.0, 2.0, 6.0]), np.array([0.0, 4.0, 5.0])]
    for society in societies:
        pool.add([1.0], float(society.mean()), standard_error_of_mean(society), 3, 12)
    assert pool.get([1.0]).standard_error == pytest.approx(standard_error_of_mean(np.concatenate(societies)))
    assert pool.get([1.0]).n_episodes == 24 and pool.count([1.0]) == 2 and pool.count([2.0]) == 0
