"""Reference measurements for principals: separate runs that are executed once and shown with the run."""

import json
import re
import signal
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import compose, load_comparable_metrics, run
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.display.results import describe_references
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.reference_line_runs import (
    find_reason_without_references,
    list_measurement_runs,
    plan_within_steps,
    read_measured_references,
)
from llmrl.experiment.resources import RunResources
from llmrl.loops.reference_measurements import References
from llmrl.principals.nonadaptive import ListedPrincipal
from llmrl.run.config_hash import config_hash
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.run.status import read_status
from societies import make_toy_spec

pytestmark = pytest.mark.slow

ROOM = (
    "env=escape_room",
    "env.n_envs=8",
    "design.adapt_rounds=1",
    "design.validate_episodes=4",
    "design.evaluations=2",
)
BANDIT = (*ROOM, "principal=ucb", "principal.points=2", "design.steps=10", "design.references=2")
BANDIT_COMMAND = (*BANDIT, "env.fixed_context=0")


def planned_runs(*overrides):
    """Return the runs that a run needs for its reference lines."""
    config = compose(*overrides)
    parts = build_parts(config, RunResources(config, build_used_model).model)
    try:
        return list_measurement_runs(config, parts, build_loop(config, parts))
    finally:
        parts.close()


@pytest.fixture(scope="module")
def has_principal(tmp_path_factory):
    root = tmp_path_factory.mktemp("has_principal")
    run(*BANDIT, f"output_root={root}")
    return root


def summaries(root, name):
    return [json.loads(path.read_text()) for path in sorted((root / name).rglob("summary.json"))]


# --- what is measured ---


@given(bounds=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_coarse_scan_starts_with_no_mechanism(bounds):
    numbers = tuple(Parameter(f"x{i}", low, low + width, "", "") for i, (low, width) in enumerate(bounds))
    space = ParameterSpace("box", numbers)
    vectors = space.probe_vectors.tolist()
    none = [min(max(0.0, low), low + width) for low, width in bounds]
    highest = [low + width for low, width in bounds]
    assert vectors[0] == none == space.neutral.tolist()
    for i in range(len(bounds)):
        assert [*none[:i], highest[i], *none[i + 1 :]] in vectors
    assert highest in vectors and [low + width / 2 for low, width in bounds] in vectors
    assert len(vectors) == len({tuple(vector) for vector in vectors}) <= len(bounds) + 3
    ListedPrincipal(space, vectors)  # which refuses what is outside


@pytest.mark.parametrize("candidates", [1, 3, 4])
@pytest.mark.parametrize("contexts", [(), ("env.fixed_context=0",)])
def test_vectors_have_measurements_in_all_contexts(candidates, contexts):
    games = f"env.n_envs={8 * candidates}"
    runs = planned_runs(*BANDIT, games, f"design.candidates={candidates}", "principal=random", *contexts)
    for planned, n in zip(runs, (8, 1), strict=True):
        design, settings = planned.config["design"], planned.config
        assert settings["env"]["n_envs"] // design["candidates"] == 8 and n % design["candidates"] == 0
        principal = ListedPrincipal(make_toy_spec(5, low=0.0, high=5.0).mechanism, settings["principal"]["vectors"])
        times = Counter()
        for step in range(design["steps"]):
            vectors = {tuple(vector) for vector in principal.ask(n=design["candidates"]).tolist()}
            assert len(vectors) == design["candidates"]
            times.update((vector, step % (1 if contexts else 3)) for vector in vectors)
        assert set(times.values()) == {2} and len(times) == n * (1 if contexts else 3)
        assert design["contexts"] == "in_turn" and design["references"] == 0
        assert design["confirm_steps"] == design["evaluations"] == 0
    assert runs[0].config["design"]["candidates"] == {1: 1, 3: 2, 4: 4}[candidates]


@pytest.mark.slow
def test_sweep_shares_references():
    def hashes(*overrides):
        run = (*ROOM, "principal=ucb", "design.references=2")
        return [(run.config["name"], config_hash(run.config)) for run in planned_runs(*run, *overrides)]

    original = hashes()
    assert original == hashes(
        "seed=3", "principal=llm", "design.steps=4", "design.evaluations=0", "llm.share_cache=true"
    )
    assert original == hashes("env.n_envs=16", "design.replicates=2", "design.reset_agents=true")
    for override in ("design.objective=minimum", "agent.ppo.epochs=2", "env.n_agents=6", "design.references=1"):
        assert not set(original) & set(hashes(override)), override


@pytest.mark.slow
def test_random_agents_never_adapt():
    runs = planned_runs(
        "env=cleanup", "principal=ucb", "env.horizon=20", "design.rollout_steps=10", "design.references=1"
    )
    scan, random_agents = (run.config for run in runs)
    assert scan["resolved_runs"]["agent.init_from"]["as"] == "preset:regimes/cleanup_pretrain"
    assert random_agents["agent"]["init_from"] is None and "pretraining_digest" not in random_agents
    assert random_agents["design"]["adapt_rounds"] == 0 and random_agents["principal"]["vectors"] == [[0, 0, 0]]
    assert [run.env_steps for run in runs] == [6 * 3 * 20 * 2, 20 * 2]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("agent=random",), "do not learn"),
        (("agent.freeze=all",), "do not learn"),
        (("design.references=0",), "design.references=0"),
    ],
)
def test_missing_references_state_reason(overrides, reason, tmp_path, capsys):
    command = (*BANDIT_COMMAND, *overrides, f"output_root={tmp_path}")
    assert planned_runs(*command) == []
    run(*command, "dry_run=true")
    assert reason in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize("agent", ["llm_player", "llm_ppo"])
def test_llm_agents_have_no_references(agent):
    parts = build_parts(compose(*BANDIT_COMMAND), None)
    assert "language model" in str(find_reason_without_references(compose(*BANDIT_COMMAND, f"agent={agent}"), parts))
    assert find_reason_without_references(compose(*BANDIT_COMMAND), parts) is None


def test_lone_agents_have_no_references():
    config = compose("env=escape_room", "design.references=2")
    parts = build_parts(config, None)
    assert list_measurement_runs(config, parts, build_loop(config, parts)) == []
    assert find_reason_without_references(config, parts) is None and read_measured_references([]) is None


# --- how much is measured ---


@given(budget=st.integers(0, 10_000), vector=st.integers(1, 300), n_random=st.integers(1, 300), scan=st.integers(1, 12))
def test_references_fit_budget(budget, vector, n_random, scan):
    plan = plan_within_steps(budget, vector, n_random, scan)
    n = plan.n_repetitions
    cost = n * (plan.n_vectors * vector + plan.measures_untrained * n_random)
    assert cost <= budget and n <= 2 and plan.n_vectors <= scan
    # No mechanism comes first, then untrained agents, then at least three vectors of the scan.
    assert bool(n) == (budget >= vector) and bool(plan.n_vectors) == bool(n)
    assert plan.measures_untrained == (budget >= vector + n_random)
    assert plan.n_vectors in (0, 1) or plan.n_vectors >= min(3, scan)
    if plan.n_vectors == 1 < scan:
        assert budget < 3 * vector + n_random or scan == 2
    elif 1 < plan.n_vectors < scan:
        assert cost + n * vector > budget
    if budget >= 2 * (scan * vector + n_random):
        assert (n, plan.n_vectors, plan.measures_untrained) == (2, scan, True)


def test_default_reference_budget_is_run_length(tmp_path, capsys):
    small = (*ROOM, "principal=ucb", "design.references=null")
    for steps in ("design.steps=6", "design.steps=12", "design.steps=100"):
        config = compose(*small, steps)
        parts = build_parts(config, None)
        loop = build_loop(config, parts)
        runs = list_measurement_runs(config, parts, loop)
        assert runs and sum(run.env_steps for run in runs) <= loop.env_steps
    assert len(runs[0].config["principal"]["vectors"]) == 8 * 3 and runs[0].config["design"]["steps"] == 8 * 3 * 2
    run(*small, "design.steps=6", "dry_run=true", f"output_root={tmp_path}")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "are omitted" in text and "design.references=" in text
    run(*small, "design.steps=100", "dry_run=true", f"output_root={tmp_path}")
    assert "design.references=" not in capsys.readouterr().out


def test_runs_share_affordable_references():
    small = (*ROOM, "design.steps=12", "design.references=null")
    folders = {
        tuple(run.folder for run in planned_runs(*small, f"principal={principal}", f"seed={seed}"))
        for principal in ("ucb", "random")
        for seed in (0, 1)
    }
    [shared] = folders
    assert len(shared) == 2


# --- what the lines say ---


def history(objectives, context=None, names=("a", "b")):
    """Return the rows of a scan with objectives [n_vectors][n_measurements]."""
    rows = []
    for i, values in enumerate(objectives):
        record = {"context": context, "mechanism": dict.fromkeys(names, i), "standard_error": 0.5}
        rows += [{**record, "objective": x, "values": [x, x]} for x in values]
    return rows


def test_objective_response_detection():
    references = References.from_histories(history([[0.0, 1.0], [5.0, 6.0], [9.0, 8.0]]), history([[-3.0, -5.0]]))
    assert references.objective_responds and references.warning is None
    [situation] = references.contexts
    assert (
        situation.no_mechanism.value == 0.5
        and situation.untrained.value == -4.0
        and situation.best.mechanism == {"a": 2, "b": 2}
    )
    assert situation.untrained.standard_error == pytest.approx(1.0) and situation.untrained.episodes == 4
    assert references.metrics(None) == {
        "reference/no_mechanism": 0.5, "reference/untrained": -4.0, "reference/scan_best": 8.5,
    }  # fmt: skip
    flat = References.from_histories(history([[0.0, 9.0], [4.0, 6.0], [9.0, 1.0]]), history([[0.0]]))
    assert flat.objective_responds is False
    assert re.search(r" 3 vectors .* 0\.289, .* 3\.52 ", str(flat.warning))


def test_single_measurement_is_inconclusive():
    references = References.from_histories(history([[0.0], [5.0]]), history([[1.0]]))
    assert references.objective_responds is None and references.warning is None and references.anova.noise is None
    assert references.contexts[0].no_mechanism.standard_error == 0.5  # of its own episodes


def test_no_mechanism_has_no_noise_estimate():
    references = References.from_histories(history([[1.0, 2.0]]), [])
    [situation] = references.contexts
    assert situation.no_mechanism.value == 1.5 and situation.untrained is None and situation.best is None
    assert references.metrics(None) == {"reference/no_mechanism": 1.5}
    assert references.objective_responds is None and references.noise is None and references.warning is None
    summary = references.summary(make_value(3.0), history([[1.0], [3.0]]), 1)
    [context] = summary["contexts"]
    assert context["scan_best"] is None and context["untrained"] is None and summary["spread"] is None
    assert context["gain"] == {"value": 1.5, "standard_error": None, "beyond_noise": None}
    assert any("1.5 above" in sentence for sentence in describe_references(summary))


def test_response_in_single_context_suffices():
    flat, steep = [[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [50.0, 51.0]]
    references = References.from_histories(
        history(flat, "x") + history(steep, "y"), history([[0.0]], "x") + history([[2.0]], "y")
    )
    assert references.objective_responds and references.metrics("x")["reference/scan_best"] == 0.5
    assert (
        references.metrics("y")["reference/scan_best"] == 50.5 and references.metrics("y")["reference/untrained"] == 2.0
    )


def make_value(value, error=None, evaluations=1):
    row = {"mechanism": {"a": 1, "b": 1}, "context": None, "objective": value, "standard_error": error}
    return [{**row, "evaluations": evaluations}]


@pytest.mark.parametrize(
    ("best", "part"),
    [
        # The noise of a mean of two is 0.5, so that of one measurement 0.71 and of the difference 0.87.
        (make_value(9.0), r" 8.5 above .* 0.87\)\."),
        (make_value(3.0), r" 2.5 above .* 0.87\): within noise"),
        (make_value(9.0, 4.0), r" 8.5 above .* 4\): within noise"),
        (make_value(5.0), r" 0.5 below .* 2 noisy means\."),
        (make_value(-9.0, evaluations=4), r" 9.5 below .* 0.61\): within noise"),
    ],
)  # fmt: skip
def test_best_proposal_is_compared_with_no_mechanism(best, part):
    references = References.from_histories(history([[0.0, 1.0], [5.0, 6.0]]), history([[0.0]]))
    sentence = describe_references(references.summary(best, history([[1.0], [9.0]]), 1))[0]
    assert re.search(part, sentence) and ("coarse scan" in sentence) == (best[0]["objective"] < 5.5)


@pytest.mark.parametrize(
    ("objectives", "has_learned"),
    [
        ([1.0, 1.5, 2.0, 1.5], False),
        ([1.0, 1.5, 9.0, 9.5], True),  # better than at first, and than the scan's mean of 3
        ([9.0, 9.5, 9.0, 9.5], True),  # found at once
        ([1.0, 1.5, 9.0], None),  # the first are the last
    ],
)
def test_learning_detection(objectives, has_learned):
    references = References.from_histories(history([[0.0, 1.0], [5.0, 6.0]]), history([[0.0]]))
    rows = history([[x] for x in objectives])
    summary = references.summary(make_value(3.0), rows, 2)
    assert summary["learned"] is has_learned
    assert any("nothing shows" in sentence for sentence in describe_references(summary)) == (has_learned is False)
    repeated_rows = [{**row, "mechanism": {"a": 1, "b": 1}} for row in rows]
    assert references.summary(make_value(3.0), repeated_rows, 2)["learned"] is None  # there was nothing to choose from


# --- a run ---


@pytest.mark.slow
def test_references_precede_run(has_principal):
    [summary] = summaries(has_principal, "escape_room")
    scan, random_agents = sorted(summaries(has_principal, "escape_room_references"), key=lambda s: -s["proposals"])
    assert scan["proposals"] == 8 * 3 * 2 and random_agents["proposals"] == 3 * 2
    references = summary["references"]
    assert {situation["context"] for situation in references["contexts"]} == {f"lever_{i}_works" for i in range(3)}
    for situation in references["contexts"]:
        for line, rows in (("no_mechanism", scan["history"]), ("untrained", random_agents["history"])):
            values = [
                row["objective"] for row in rows
                if row["context"] == situation["context"] and not any(row["mechanism"].values())
            ]  # fmt: skip
            assert len(values) == 2 and situation[line]["value"] == pytest.approx(np.mean(values))
    situations = {situation["context"]: situation for situation in references["contexts"]}
    [folder] = (has_principal / "escape_room").rglob("s0")
    for row, outcome in zip(load_comparable_metrics(folder, "proposal"), summary["history"], strict=True):
        for line in ("no_mechanism", "untrained", "scan_best"):
            assert row[f"reference/{line}"] == situations[outcome["context"]][line]["value"]
    assert {"reference=scan", "reference=untrained"} == {
        read_status(path).overrides[0] for path in (has_principal / "escape_room_references").rglob("s0")
    }


def test_references_keep_run_results(has_principal, tmp_path):
    run(*BANDIT[:-1], f"output_root={tmp_path}")
    [single], [referenced] = summaries(tmp_path, "escape_room"), summaries(has_principal, "escape_room")
    assert not (tmp_path / "escape_room_references").exists() and "references" not in single
    assert single == {name: value for name, value in referenced.items() if name != "references"}


def test_plan_lists_references(has_principal, tmp_path, capsys):
    def planned(root):
        run(*BANDIT, "dry_run=true", f"output_root={root}")
        return " ".join(capsys.readouterr().out.replace("│", " ").split())

    plan = planned(tmp_path)
    scan, random_steps = 8 * 3 * 2 * 2 * 5 * 8, 3 * 2 * 1 * 5 * 8
    assert re.search(f" 8 vectors, [^,]*, {scan:,} .*untrained agents, [^,]*, {random_steps:,} ", plan)
    run_steps = (10 + 3 * 2) * 2 * 5 * 8
    assert f" in all {run_steps + scan + random_steps:,}" in plan
    done = planned(has_principal)
    assert " 8 vectors, finished:" in done and "steps in all" not in done
    assert "lever_0_works: untrained agents -" in done


@pytest.mark.long
@pytest.mark.slow
def test_stop_during_references_resumes(has_principal, tmp_path, monkeypatch):
    command, safe_point = (*BANDIT, f"output_root={tmp_path}"), Run.safe_point
    folders = []

    def interrupted(self, iteration, state):
        folders.append(self.folder)
        if len(folders) == 20:
            self.stop_flag.signal = signal.SIGTERM
        safe_point(self, iteration, state)

    monkeypatch.setattr(Run, "safe_point", interrupted)
    with pytest.raises(Stopped):
        run(*command)
    states = {path.parent.name: read_status(path).state for path in tmp_path.rglob("s0")}
    assert len(states) == 2 and set(states.values()) == {"preempted"} and "_references" in str(folders[-1])
    monkeypatch.setattr(Run, "safe_point", safe_point)
    run(*command)
    for name in ("escape_room", "escape_room_references"):
        assert summaries(tmp_path, name) == summaries(has_principal, name)


def test_new_seed_reuses_references(has_principal, tmp_path, capsys):
    mtimes = {path: path.stat().st_mtime_ns for path in (has_principal / "escape_room_references").rglob("status.json")}
    run(*BANDIT, "seed=1", f"output_root={has_principal}")
    table = capsys.readouterr().out
    after = {path: path.stat().st_mtime_ns for path in (has_principal / "escape_room_references").rglob("status.json")}
    assert mtimes == after and len(mtimes) == 2
    first, second = summaries(has_principal, "escape_room")
    for a, b in zip(first["references"]["contexts"], second["references"]["contexts"], strict=True):
        assert [a[line] for line in ("untrained", "no_mechanism", "scan")] == [
            b[line] for line in ("untrained", "no_mechanism", "scan")
        ]
    for words in (
        "Reference levels",
        "untrained agents",
        "best of the coarse scan",
        "recommendation",
        "no mechanism (",
    ):
        assert words in table, words


def test_contexts_in_turn(tmp_path):
    run(*ROOM, "principal=random", "design.steps=4", "design.contexts=in_turn", f"output_root={tmp_path}")
    [summary] = summaries(tmp_path, "escape_room")
    assert [row["context"] for row in summary["history"]] == [f"lever_{i}_works" for i in (0, 1, 2, 0)]
