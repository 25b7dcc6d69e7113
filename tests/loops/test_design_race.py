"""The best proposal of a design run: pooled over its measurements, measured again before it is named."""

import json
import signal

import numpy as np
import pytest

from experiments import comparable_metrics, compose, only_run_folder, run
from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.cli.evaluate import evaluate, parser
from llmrl.core.errors import ConfigError
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import plan
from llmrl.run.artifacts import saved_state
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from some import some

pytestmark = pytest.mark.slow

ROOM = ("env=escape_room", "env.n_envs=4", "design.adapt_rounds=3", "design.validate_episodes=4")
BANDIT = (*ROOM, "principal=egreedy", "principal.points=2", "principal.epsilon=0.5", "design.steps=24", "design.race=0")
RACE = (*BANDIT, "design.race=3", "design.race_rounds=2", "design.candidates=2", "env.n_envs=8")
SOCIETIES = (
    *BANDIT,
    "design.race=2",
    "design.race_rounds=2",
    "design.replicates=3",
    "env.n_envs=12",
    "env.fixed_context=0",
)


def design(root, *overrides):
    run(*overrides, f"output_root={root}")
    folder = only_run_folder(root)
    return folder, json.loads((folder / "summary.json").read_text())


def pooled(history):
    """Objectives of each (context, vector); equal proposals of a step are one measurement."""
    found = {}
    for row in history:
        key = (row["context"], tuple(row["mechanism"].values()))
        found.setdefault(key, {})[row["step"]] = row["objective"]
    return {key: np.array(list(own.values())) for key, own in found.items()}


def key(row):
    return row["context"], tuple(row["mechanism"].values())


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    return design(tmp_path_factory.mktemp("raced"), *RACE)


def test_measurements_of_a_proposal_are_one_estimate(tmp_path):
    folder, summary = design(tmp_path, *BANDIT)
    found = pooled(summary["history"])
    assert max(len(own) for own in found.values()) > 2, "something is tried again"
    means = {each: own.mean() for each, own in found.items()}
    assert summary["best_objective"] == summary["best"]["objective"] == pytest.approx(max(means.values()))
    assert summary["highest_objective"] == max(row["objective"] for row in summary["history"])
    assert summary["best_measured_again"] is False and summary["race"] == [] and summary["race_env_steps"] == 0
    best = {row["context"]: row for row in summary["best_of_contexts"]}
    for context in {row["context"] for row in summary["history"]}:
        own = {each: mean for each, mean in means.items() if each[0] == context}
        assert means[key(best[context])] == pytest.approx(max(own.values()))
        assert best[context]["measurements"] == len(found[key(best[context])])
    curve = [row["principal/best_objective"] for row in comparable_metrics(folder) if "principal/objective" in row]
    until = [pooled(summary["history"][: i + 1]) for i in range(24)]
    assert curve == pytest.approx([max(own.mean() for own in each.values()) for each in until])


def test_winners_are_named_by_fresh_measurements(raced):
    folder, summary = raced
    means = {each: own.mean() for each, own in pooled(summary["history"]).items()}
    assert summary["best_measured_again"] is True
    for row in summary["best_of_contexts"]:
        own = [each for each in summary["race"] if each["context"] == row["context"]]
        first = sorted((m for m in means if m[0] == row["context"]), key=lambda m: -means[m])[:3]
        assert {key(each) for each in own} == set(first) and all(each["measured"] == 2 for each in own)
        assert key(max(own, key=lambda each: each["objective"])) == key(row)
        assert row["measurements"] == 2 and row["standard_error"] is not None
    assert summary["best"] == summary["best_of_contexts"][0]
    assert summary["best_objective"] == max(row["objective"] for row in summary["best_of_contexts"])
    contexts = list(dict.fromkeys(row["context"] for row in summary["history"]))
    last = {row["race/context"]: row for row in comparable_metrics(folder) if "race/named_objective" in row}
    for place, context in enumerate(contexts):
        [row] = [each for each in summary["best_of_contexts"] if each["context"] == context]
        assert last[place]["race/named_objective"] == pytest.approx(row["objective"])
        assert last[place]["race/named_standard_error"] == pytest.approx(row["standard_error"])
    # The result is about the steps, and agents are again what the last step made them.
    late = [row["objective"] for row in summary["history"]][-4 * 2 :]
    assert summary["final_objective"] == pytest.approx(np.mean(late))


def test_trials_are_counted_and_planned(raced):
    _, summary = raced
    contexts = len(summary["best_of_contexts"])
    trials = contexts * (2 * 2 + 2)  # rounds of two heats, for three contestants in two places; then the winner
    each = (3 + 1) * 5 * 8
    assert summary["race_env_steps"] == trials * each and summary["env_steps"] == (24 + trials) * each
    config = compose(*RACE)
    parts = build_parts(config, build_llm(config, None))
    rows = dict(plan(config, parts, build_loop(config, parts)))
    parts.close()
    assert rows["environment steps"] == f"at most {(24 + 3 * 6) * each:,}"
    assert "the best 3 of each context measured again, at most 2 times" in rows["  best proposal"]


def test_the_race_changes_nothing_of_the_steps(tmp_path, raced):
    folder, summary = design(tmp_path, *RACE, "design.race=0")
    assert summary["history"] == raced[1]["history"] and summary["final_objective"] == raced[1]["final_objective"]
    mine, theirs = (saved_state(each)[1]["agents"] for each in (folder, raced[0]))
    for a, b in zip(mine, theirs, strict=True):
        assert all((x == b["policy"][name]).all() for name, x in a["policy"].items())


@pytest.mark.long
def test_several_societies_are_what_an_error_is_over(tmp_path):
    _, summary = design(tmp_path, *SOCIETIES)
    [best] = [summary["best"]]
    assert [each["measured"] for each in summary["race"]] == [6, 6] and best["measurements"] == 2
    assert best["standard_error"] is not None and summary["best_of_contexts"] == [best]


@pytest.mark.parametrize("moment", some(["in a heat"], ["in a heat", "after one"]))
def test_stopped_within_the_race_it_goes_on_alike(tmp_path, monkeypatch, raced, moment):
    safe_point, stopped = Run.safe_point, []
    places = 24 * (3 + 1) + (6 if moment == "in a heat" else 8)

    def interrupted(self, iteration, state):
        if iteration == places and not stopped:
            stopped.append(iteration)
            signal.raise_signal(signal.SIGTERM)
        safe_point(self, iteration, state)

    monkeypatch.setattr(Run, "safe_point", interrupted)
    with pytest.raises(Stopped):
        run(*RACE, f"output_root={tmp_path}")
    folder, summary = design(tmp_path, *RACE)
    assert stopped and summary == raced[1]
    assert comparable_metrics(folder) == comparable_metrics(raced[0])


def test_evaluate_plays_the_one_that_is_named(raced):
    folder, summary = raced
    found = evaluate(parser().parse_args([str(folder), "--episodes", "8", "--mechanism", "best"]))
    assert found["mechanism"] == pytest.approx(summary["best"]["mechanism"])
    assert found["context"] == summary["best"]["context"]


def test_a_principal_that_is_told_gradients_can_be_raced_too(tmp_path):
    _, summary = design(tmp_path, *ROOM, "principal=metagrad", "agent=pg", "design.steps=3", "design.race=2")
    assert summary["best_measured_again"] is True


def test_societies_that_do_not_start_anew_are_not_raced(tmp_path):
    with pytest.raises(ConfigError, match=r"design.race=2 measures .* set design.reset_agents=true or design.race=0"):
        design(tmp_path, *BANDIT, "design.race=2", "design.reset_agents=false")


def test_an_error_over_societies():
    """What the pool makes of a proposal that governed three societies, twice."""
    from llmrl.core.pooling import PooledEstimates

    pool, societies = PooledEstimates(), [np.array([1.0, 2.0, 6.0]), np.array([0.0, 4.0, 5.0])]
    for each in societies:
        pool.add([1.0], float(each.mean()), standard_error_of_mean(each), 3, 12)
    assert pool.of([1.0]).standard_error == pytest.approx(standard_error_of_mean(np.concatenate(societies)))
    assert pool.of([1.0]).episodes == 24
