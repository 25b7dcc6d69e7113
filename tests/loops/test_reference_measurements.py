"""Reference lines: what a principal has to beat is measured by runs of their own, once, and shown beside its run."""

import json
import signal
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import comparable_metrics, compose, run
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.display.run_summary import sentences
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.reference_line_runs import absence, affordable, known, needed
from llmrl.loops.reference_measurements import References
from llmrl.principals.fixed import ListedPrincipal
from llmrl.run.config_hash import config_hash
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.run.status import read_status
from societies import toy

pytestmark = pytest.mark.slow

ROOM = (
    "env=escape_room",
    "env.n_envs=8",
    "design.adapt_rounds=1",
    "design.validate_episodes=4",
    "design.evaluations=2",
)
BANDIT = (*ROOM, "principal=ucb", "principal.points=2", "design.steps=10", "design.references=2")
HERE = (*BANDIT, "env.fixed_context=0")


def wanted(*overrides):
    """The runs that a run needs for its reference lines."""
    config = compose(*overrides)
    parts = build_parts(config, build_llm(config, None, check=False))
    try:
        return needed(config, parts, build_loop(config, parts))
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
def test_a_coarse_scan_begins_with_no_mechanism_and_has_every_corner_once(bounds):
    numbers = tuple(Parameter(f"x{i}", low, low + width, "", "") for i, (low, width) in enumerate(bounds))
    space = ParameterSpace("box", numbers)
    vectors = space.coarse_scan.tolist()
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
def test_every_vector_is_measured_in_every_context_as_often_as_asked_for(candidates, contexts):
    games = f"env.n_envs={8 * candidates}"
    runs = wanted(*BANDIT, games, f"design.candidates={candidates}", "principal=random", *contexts)
    for each, n in zip(runs, (8, 1), strict=True):
        design, own = each.config["design"], each.config
        assert own["env"]["n_envs"] // design["candidates"] == 8 and n % design["candidates"] == 0
        asked = ListedPrincipal(toy(5, low=0.0, high=5.0).mechanism, own["principal"]["vectors"])
        times = Counter()
        for step in range(design["steps"]):
            vectors = {tuple(vector) for vector in asked.ask(n=design["candidates"]).tolist()}
            assert len(vectors) == design["candidates"]
            times.update((vector, step % (1 if contexts else 3)) for vector in vectors)
        assert set(times.values()) == {2} and len(times) == n * (1 if contexts else 3)
        assert design["contexts"] == "in_turn" and design["references"] == 0
        assert design["confirm_steps"] == design["evaluations"] == 0
    assert runs[0].config["design"]["candidates"] == {1: 1, 3: 2, 4: 4}[candidates]


@pytest.mark.slow
def test_a_sweep_shares_them_and_other_games_do_not():
    def hashes(*overrides):
        run = (*ROOM, "principal=ucb", "design.references=2")
        return [(each.config["name"], config_hash(each.config)) for each in wanted(*run, *overrides)]

    own = hashes()
    assert own == hashes(
        "seed=3", "principal=llm", "design.steps=4", "design.evaluations=0", "llm.cache_across_seeds=true"
    )
    assert own == hashes("env.n_envs=16", "design.replicates=2", "design.reset_agents=true")
    for other in ("design.objective=minimum", "agent.ppo.epochs=2", "env.n_agents=6", "design.references=1"):
        assert not set(own) & set(hashes(other)), other


@pytest.mark.slow
def test_untrained_agents_begin_with_nothing_and_never_adapt():
    begun = wanted("env=cleanup", "principal=ucb", "env.horizon=20", "design.rollout_steps=10", "design.references=1")
    scan, untrained = (each.config for each in begun)
    assert scan["resolved_runs"]["agent.init_from"]["as"] == "preset:regimes/cleanup_pretrain"
    assert untrained["agent"]["init_from"] is None and "pretraining_digest" not in untrained
    assert untrained["design"]["adapt_rounds"] == 0 and untrained["principal"]["vectors"] == [[0, 0, 0]]
    assert [each.env_steps for each in begun] == [6 * 3 * 20 * 2, 20 * 2]


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("agent=random",), "do not learn"),
        (("agent.freeze=all",), "do not learn"),
        (("design.references=0",), "design.references=0"),
    ],
)
def test_where_there_are_none_it_is_said_why(overrides, why, tmp_path, capsys):
    command = (*HERE, *overrides, f"output_root={tmp_path}")
    assert wanted(*command) == []
    run(*command, "dry_run=true")
    assert why in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize("agent", ["llm_player", "llm_ppo"])
def test_agents_that_ask_a_language_model_have_none(agent):
    parts = build_parts(compose(*HERE), None)
    assert "the agent asks a language model" in str(absence(compose(*HERE, f"agent={agent}"), parts))
    assert absence(compose(*HERE), parts) is None


def test_agents_alone_have_none():
    config = compose("env=escape_room", "design.references=2")
    parts = build_parts(config, None)
    assert needed(config, parts, build_loop(config, parts)) == []
    assert absence(config, parts) is None and known([]) is None


# --- how much is measured ---


@given(
    budget=st.integers(0, 10_000), vector=st.integers(1, 300), untrained=st.integers(1, 300), scan=st.integers(1, 12)
)
def test_references_cost_at_most_the_budget_and_no_measurement_that_fits_is_omitted(budget, vector, untrained, scan):
    plan = affordable(budget, vector, untrained, scan)
    n = plan.repetitions
    cost = n * (plan.vectors * vector + plan.untrained * untrained)
    assert cost <= budget and n <= 2 and plan.vectors <= scan
    # No mechanism comes first, then untrained agents, then at least three vectors of the scan.
    assert bool(n) == (budget >= vector) and bool(plan.vectors) == bool(n)
    assert plan.untrained == (budget >= vector + untrained)
    assert plan.vectors in (0, 1) or plan.vectors >= min(3, scan)
    if plan.vectors == 1 < scan:
        assert budget < 3 * vector + untrained or scan == 2
    elif 1 < plan.vectors < scan:
        assert cost + n * vector > budget
    full = max(n, 1) * (scan * vector + untrained)
    assert plan.omitted_env_steps == full - cost
    if budget >= 2 * (scan * vector + untrained):
        assert (n, plan.vectors, plan.omitted_env_steps) == (2, scan, 0)


def test_by_default_references_cost_no_more_than_the_run(tmp_path, capsys):
    small = (*ROOM, "principal=ucb", "design.references=null")
    for steps in ("design.steps=6", "design.steps=12", "design.steps=100"):
        config = compose(*small, steps)
        parts = build_parts(config, None)
        loop = build_loop(config, parts)
        runs = needed(config, parts, loop)
        assert runs and sum(each.env_steps for each in runs) <= loop.env_steps
    assert len(runs[0].config["principal"]["vectors"]) == 8 * 3 and runs[0].config["design"]["steps"] == 8 * 3 * 2
    run(*small, "design.steps=6", "dry_run=true", f"output_root={tmp_path}")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "vectors of the coarse scan" in text and "design.references=" in text
    run(*small, "design.steps=100", "dry_run=true", f"output_root={tmp_path}")
    assert "design.references=" not in capsys.readouterr().out


def test_runs_of_other_principals_and_seeds_share_what_is_affordable():
    small = (*ROOM, "design.steps=12", "design.references=null")
    folders = {
        tuple(each.folder for each in wanted(*small, f"principal={principal}", f"seed={seed}"))
        for principal in ("ucb", "random")
        for seed in (0, 1)
    }
    [shared] = folders
    assert len(shared) == 2


# --- what the lines say ---


def history(objectives, context=None, names=("a", "b")):
    """Rows of a scan: objectives [n_vectors][n_measurements]."""
    rows = []
    for i, own in enumerate(objectives):
        told = {"context": context, "mechanism": dict.fromkeys(names, i), "standard_error": 0.5}
        rows += [{**told, "objective": x, "values": [x, x]} for x in own]
    return rows


def test_an_objective_that_responds_and_one_that_does_not():
    found = References.of(history([[0.0, 1.0], [5.0, 6.0], [9.0, 8.0]]), history([[-3.0, -5.0]]))
    assert found.responds and found.warning is None
    [own] = found.situations
    assert own.no_mechanism.value == 0.5 and own.untrained.value == -4.0 and own.best.mechanism == {"a": 2, "b": 2}
    assert own.untrained.standard_error == pytest.approx(1.0) and own.untrained.episodes == 4
    assert found.metrics(None) == {
        "reference/no_mechanism": 0.5, "reference/untrained": -4.0, "reference/scan_best": 8.5,
    }  # fmt: skip
    flat = References.of(history([[0.0, 9.0], [4.0, 6.0], [9.0, 1.0]]), history([[0.0]]))
    assert flat.responds is False and "does not respond to the mechanism" in str(flat.warning)
    assert "between its 3 vectors it differs by 0.289 (sd), and the noise of each is 3.52" in str(flat.warning)


def test_one_measurement_cannot_tell():
    found = References.of(history([[0.0], [5.0]]), history([[1.0]]))
    assert found.responds is None and found.warning is None and found.variance.noise is None
    assert found.situations[0].no_mechanism.standard_error == 0.5  # of its own episodes


def test_no_mechanism_alone_has_neither_scan_nor_noise():
    found = References.of(history([[1.0, 2.0]]), [])
    [own] = found.situations
    assert own.no_mechanism.value == 1.5 and own.untrained is None and own.best is None
    assert found.metrics(None) == {"reference/no_mechanism": 1.5}
    assert found.responds is None and found.noise is None and found.warning is None
    summary = found.summary(named(3.0), history([[1.0], [3.0]]), 1)
    [context] = summary["contexts"]
    assert context["scan_best"] is None and context["untrained"] is None and summary["spread"] is None
    assert context["gain"] == {"value": 1.5, "standard_error": None, "beyond_noise": None}
    assert any("1.5 above no mechanism" in sentence for sentence in sentences(summary))


def test_a_response_in_one_context_is_one():
    flat, steep = [[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [50.0, 51.0]]
    found = References.of(history(flat, "x") + history(steep, "y"), history([[0.0]], "x") + history([[2.0]], "y"))
    assert found.responds and found.metrics("x")["reference/scan_best"] == 0.5
    assert found.metrics("y")["reference/scan_best"] == 50.5 and found.metrics("y")["reference/untrained"] == 2.0


def named(value, error=None, evaluations=1):
    row = {"mechanism": {"a": 1, "b": 1}, "context": None, "objective": value, "standard_error": error}
    return [{**row, "evaluations": evaluations}]


@pytest.mark.parametrize(
    ("best", "said"),
    [
        # The noise of a mean of two is 0.5, so that of one measurement 0.71 and of the difference 0.87.
        (named(9.0), "The recommendation is 8.5 above no mechanism (standard error of the difference 0.87)."),
        (named(3.0), "2.5 above no mechanism (standard error of the difference 0.87): not beyond noise"),
        (named(9.0, 4.0), "8.5 above no mechanism (standard error of the difference 4): not beyond noise"),
        (named(5.0), "It is 0.5 below the best of the coarse scan, the highest of 2 noisy means."),
        (named(-9.0, evaluations=4), "9.5 below no mechanism (standard error of the difference 0.61): not beyond"),
    ],
)  # fmt: skip
def test_the_best_proposal_is_compared_with_no_mechanism(best, said):
    found = References.of(history([[0.0, 1.0], [5.0, 6.0]]), history([[0.0]]))
    sentence = sentences(found.summary(best, history([[1.0], [9.0]]), 1))[0]
    assert said in sentence and ("below the best of the coarse scan" in sentence) == (best[0]["objective"] < 5.5)


@pytest.mark.parametrize(
    ("objectives", "learned"),
    [
        ([1.0, 1.5, 2.0, 1.5], False),
        ([1.0, 1.5, 9.0, 9.5], True),  # better than at first, and than the scan's mean of 3
        ([9.0, 9.5, 9.0, 9.5], True),  # found at once
        ([1.0, 1.5, 9.0], None),  # the first are the last
    ],
)
def test_whether_anything_was_learned(objectives, learned):
    found = References.of(history([[0.0, 1.0], [5.0, 6.0]]), history([[0.0]]))
    rows = history([[x] for x in objectives])
    summary = found.summary(named(3.0), rows, 2)
    assert summary["learned"] is learned
    assert any("nothing shows that the principal learned" in each for each in sentences(summary)) == (learned is False)
    same = [{**row, "mechanism": {"a": 1, "b": 1}} for row in rows]
    assert found.summary(named(3.0), same, 2)["learned"] is None  # there was nothing to choose from


# --- a run ---


@pytest.mark.slow
def test_they_are_measured_first_and_stand_beside_the_run(has_principal):
    [summary] = summaries(has_principal, "escape_room")
    scan, untrained = sorted(summaries(has_principal, "escape_room_references"), key=lambda s: -s["proposals"])
    assert scan["proposals"] == 8 * 3 * 2 and untrained["proposals"] == 3 * 2
    told = summary["references"]
    assert {each["context"] for each in told["contexts"]} == {f"lever_{i}_works" for i in range(3)}
    for own in told["contexts"]:
        for line, rows in (("no_mechanism", scan["history"]), ("untrained", untrained["history"])):
            values = [
                row["objective"] for row in rows
                if row["context"] == own["context"] and not any(row["mechanism"].values())
            ]  # fmt: skip
            assert len(values) == 2 and own[line]["value"] == pytest.approx(np.mean(values))
    by_context = {own["context"]: own for own in told["contexts"]}
    [folder] = (has_principal / "escape_room").rglob("s0")
    for row, tried in zip(comparable_metrics(folder, "proposal"), summary["history"], strict=True):
        for line in ("no_mechanism", "untrained", "scan_best"):
            assert row[f"reference/{line}"] == by_context[tried["context"]][line]["value"]
    assert {"reference=scan", "reference=untrained"} == {
        read_status(path).overrides[0] for path in (has_principal / "escape_room_references").rglob("s0")
    }


def test_the_run_itself_is_the_same_without_them(has_principal, tmp_path):
    run(*BANDIT[:-1], f"output_root={tmp_path}")
    [alone], [beside] = summaries(tmp_path, "escape_room"), summaries(has_principal, "escape_room")
    assert not (tmp_path / "escape_room_references").exists() and "references" not in alone
    assert alone == {name: value for name, value in beside.items() if name != "references"}


def test_a_plan_says_what_is_computed_first(has_principal, tmp_path, capsys):
    def planned(root):
        run(*BANDIT, "dry_run=true", f"output_root={root}")
        return " ".join(capsys.readouterr().out.replace("│", " ").split())

    ahead = planned(tmp_path)
    scan, untrained = 8 * 3 * 2 * 2 * 5 * 8, 3 * 2 * 1 * 5 * 8
    assert f"coarse scan of 8 vectors, to be computed first, {scan:,} environment steps" in ahead
    assert f"untrained agents, to be computed first, {untrained:,} environment steps" in ahead
    own = (10 + 3 * 2) * 2 * 5 * 8
    assert f"environment steps in all {own + scan + untrained:,}" in ahead
    done = planned(has_principal)
    assert "coarse scan of 8 vectors, finished:" in done and "environment steps in all" not in done
    assert "lever_0_works: untrained agents -" in done


@pytest.mark.slow
def test_a_stop_while_they_are_computed_loses_nothing(has_principal, tmp_path, monkeypatch):
    command, safe_point = (*BANDIT, f"output_root={tmp_path}"), Run.safe_point
    seen = []

    def interrupted(self, iteration, state):
        seen.append(self.folder)
        if len(seen) == 20:
            self.stop.signal = signal.SIGTERM
        safe_point(self, iteration, state)

    monkeypatch.setattr(Run, "safe_point", interrupted)
    with pytest.raises(Stopped):
        run(*command)
    states = {path.parent.name: read_status(path).state for path in tmp_path.rglob("s0")}
    assert len(states) == 2 and set(states.values()) == {"preempted"} and "_references" in str(seen[-1])
    monkeypatch.setattr(Run, "safe_point", safe_point)
    run(*command)
    for name in ("escape_room", "escape_room_references"):
        assert summaries(tmp_path, name) == summaries(has_principal, name)


def test_another_seed_computes_none_anew(has_principal, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in (has_principal / "escape_room_references").rglob("status.json")}
    run(*BANDIT, "seed=1", f"output_root={has_principal}")
    table = capsys.readouterr().out
    after = {path: path.stat().st_mtime_ns for path in (has_principal / "escape_room_references").rglob("status.json")}
    assert before == after and len(before) == 2
    first, second = summaries(has_principal, "escape_room")
    for a, b in zip(first["references"]["contexts"], second["references"]["contexts"], strict=True):
        assert [a[line] for line in ("untrained", "no_mechanism", "scan")] == [
            b[line] for line in ("untrained", "no_mechanism", "scan")
        ]
    for words in ("What is reached", "untrained agents", "best of the coarse scan", "recommendation", "no mechanism ("):
        assert words in table, words


def test_contexts_in_turn(tmp_path):
    run(*ROOM, "principal=random", "design.steps=4", "design.contexts=in_turn", f"output_root={tmp_path}")
    [summary] = summaries(tmp_path, "escape_room")
    assert [row["context"] for row in summary["history"]] == [f"lever_{i}_works" for i in (0, 1, 2, 0)]
