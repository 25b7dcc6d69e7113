"""Runs of policy search: episodes, feedback to the principal, files, and exact resuming."""

import json
import random
import time
from dataclasses import replace

import numpy as np
import pytest

import commands
from experiments import compose, find_run_folder, list_search_overrides, load_comparable_metrics, run, run_silently
from llmrl.cli.evaluate import build_parser, evaluate
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.seeding import Seeds
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import plan
from llmrl.experiment.resources import RunResources
from llmrl.llms.call_log import CALL_LOG_NAME as LEDGER
from llmrl.llms.call_log import read_calls
from llmrl.loops.loop_parts import LoopParts
from llmrl.loops.play import PlayLoop
from llmrl.loops.search import SearchLoop
from llmrl.loops.search_settings import SearchSettings, draw_warmup_vectors
from llmrl.principals.nonadaptive import RandomPrincipal
from llmrl.run.artifacts import load_saved_state
from llmrl.run.proposals import FILE_NAME, read_proposal_lines
from policies import LAKE, POLE
from shipped import build_search_agent
from societies import make_toy_spec

SMALL = ("env=cartpole", "agent=linear", "env.horizon=60", "search.episodes=4", "search.evaluate_episodes=10")


def run_search(tmp_path, *overrides):
    """Run a small search and return its result, folder, metrics and proposals."""
    result = run(*SMALL, f"output_root={tmp_path}", *overrides)
    folder = find_run_folder(tmp_path)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return result, folder, rows, read_proposal_lines(folder)


def pooled(proposals):
    """Return the mean return of each vector; equal proposals of an iteration share their episodes."""
    episodes = {}
    for p in proposals:
        episodes.setdefault(tuple(p["vector"]), {})[p["iteration"]] = p["returns"]
    return {vector: np.mean([x for returns in values.values() for x in returns]) for vector, values in episodes.items()}


def compute_mean_return(proposals, confirmations, vector):
    """Return the mean return of a vector, confirmations included."""
    returns = [x for p in proposals if tuple(p["vector"]) == vector for x in p["returns"]]
    means = [row["return"] for row in confirmations if tuple(row["vector"]) == vector]
    return (sum(returns) + 4 * sum(means)) / (len(returns) + 4 * len(means))


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


class TestRun:
    @pytest.fixture(scope="class")
    def small(self, tmp_path_factory):
        root = tmp_path_factory.mktemp("search")
        overrides = ("principal=cem", "search.iterations=9", "search.candidates=3", "search.evaluation_interval=4")
        return run_search(root, *overrides)

    def test_proposals_are_logged(self, small):
        _, _, _, proposals = small
        assert [(p["iteration"], p["candidate"]) for p in proposals] == [(i, k) for i in range(1, 10) for k in range(3)]
        space = build_search_agent("linear", replace(POLE, observation=compose_spec().observation)).controller.space
        for p in proposals:
            vector = space.check(p["vector"])
            assert np.array_equal(vector, space.round_values(vector))
            assert p["return"] == pytest.approx(np.mean(p["returns"])) and len(p["returns"]) == 4

    def test_metrics_match_proposals(self, small):
        _, folder, rows, proposals = small
        proposal_rows = [row for row in rows if row["kind"] == "proposal"]
        assert [row["iterations"] for row in proposal_rows] == list(range(1, 10)) and proposal_rows[0][
            "x"
        ] == "proposals"
        for i, row in enumerate(proposal_rows):
            returns = [p["return"] for p in proposals if p["iteration"] == i + 1]
            best = max(pooled([p for p in proposals if p["iteration"] <= i + 1]).values())
            assert row["search/return"] == pytest.approx(np.mean(returns))
            assert row["search/best_of_iteration"] == max(returns) and row["search/best_return"] == pytest.approx(best)
            assert row["episodes"] == 12 * (i + 1) and row["proposals"] == 3 * (i + 1)
        # CartPole pays 1 a step.
        assert proposal_rows[-1]["env_steps"] == sum(sum(p["returns"]) for p in proposals)
        # And so are the episodes of confirmations, which come after the last iteration.
        confirmations = [row for row in rows if row["kind"] == "confirmation"]
        assert [row["episodes"] for row in confirmations] == [108 + 4 * i for i in range(1, 17)]
        assert all(row["x"] == "episodes" and row["iterations"] == 9 for row in confirmations)
        assert summary(folder)["env_steps"] == rows[-1]["env_steps"] > proposal_rows[-1]["env_steps"]

    def test_best_is_evaluated_on_new_seeds(self, small):
        result, folder, rows, proposals = small
        evaluation_rows = [row for row in rows if row["kind"] == "evaluation"]
        assert [(row["iterations"], row["proposals"]) for row in evaluation_rows] == [(4, 12), (8, 24), (9, 27)]
        summary_ = summary(folder)
        assert result == summary_["incumbent_return"] == evaluation_rows[-1]["search/incumbent_return"]
        assert summary_["highest_return"] == max(p["return"] for p in proposals)
        assert summary_["best_return"] == pytest.approx(max(pooled(proposals).values()))
        best = tuple(summary_["best"]["vector"])
        assert summary_["best"]["return"] == pytest.approx(
            compute_mean_return(proposals, summary_["confirmations"], best)
        )
        assert summary_["best"]["iteration"] == next(p["iteration"] for p in proposals if tuple(p["vector"]) == best)
        assert summary_["incumbent_standard_error"] >= 0 and 0 <= summary_["incumbent_success"] <= 1

    def test_summaries(self, small):
        _, folder, rows, _ = small
        means = [row["search/return"] for row in rows if "search/return" in row]
        bests = [row["search/best_return"] for row in rows if "search/best_return" in row]
        summary_ = summary(folder)
        assert summary_["area"] == pytest.approx(np.mean(means)) and summary_["area_of_best"] == pytest.approx(
            np.mean(bests)
        )
        assert summary_["final_return"] == means[-1] and summary_["episodes"] == 108 + summary_["confirmation_episodes"]

    def test_policy_can_be_evaluated(self, small):
        _, folder, _, _ = small
        results = evaluate(build_parser().parse_args([str(folder), "--episodes", "40", "--seed", "5"]))
        mean_return = np.mean(results["per_episode"]["return per agent"])
        summary_ = summary(folder)
        assert mean_return == pytest.approx(
            summary_["incumbent_return"], abs=6 * summary_["incumbent_standard_error"] + 1
        )
        assert load_saved_state(folder)[1]["agents"][0]["parameters"].tolist() == summary_["best"]["vector"]


def compose_spec():
    parts = build_search("principal=random")
    try:
        return parts.env.spec
    finally:
        parts.close()


def build_search(*overrides):
    config = compose(*SMALL, *overrides)
    return build_parts(config, RunResources(config, build_used_model).model)


class TestSeeds:
    FIXED = ("principal=fixed", f"principal.values={[0.1] * 10}", "search.iterations=3", "search.candidates=2")

    def test_iteration_proposals_share_games(self, tmp_path):
        *_, proposals = run_search(tmp_path, *self.FIXED)
        returns = [p["returns"] for p in proposals]
        assert returns[0] == returns[1] and returns[2] == returns[3] and returns[0] != returns[2]

    def test_all_iterations_can_share_games(self, tmp_path):
        *_, proposals = run_search(tmp_path, *self.FIXED, "search.episode_seeds=common")
        assert len({tuple(p["returns"]) for p in proposals}) == 1

    def test_run_seed_changes_games(self, tmp_path):
        a = run_search(tmp_path / "a", *self.FIXED)[3]
        b = run_search(tmp_path / "b", *self.FIXED, "seed=1")[3]
        assert a[0]["returns"] != b[0]["returns"]


class TestWarmup:
    def test_warmup_precedes_search(self, tmp_path):
        overrides = (
            "principal=llm",
            "llm=scripted",
            "search.iterations=4",
            "search.warmup=5",
            "search.warmup_episodes=1",
            "search.confirm_candidates=0",
        )
        _, folder, rows, proposals = run_search(tmp_path, *overrides, "search.warmup_draw=normal3_round1")
        first = [p for p in proposals if p["iteration"] == 0]
        assert len(first) == 5 and all(len(p["returns"]) == 1 and p["standard_error"] is None for p in first)
        assert rows[0]["iterations"] == 0 and rows[0]["episodes"] == rows[0]["proposals"] == 5
        assert summary(folder)["episodes"] == 5 + 4 * 4
        prompt = next(read_calls(folder / LEDGER))["messages"][0]["content"]
        assert prompt.count(" -> ") == 5 and "This is iteration 1 of 4." in prompt
        # A single lucky episode is not taken for the best mean.
        assert summary(folder)["highest_return"] == max(p["return"] for p in proposals if p["iteration"])
        assert summary(folder)["best_return"] == max(p["return"] for p in proposals if p["iteration"])

    def test_default_episode_counts(self):
        """Random policies: 20 with one episode each, or 21 evaluated like proposals and one lost proposal."""
        for treatment, episodes in (("props", 8020), ("props_main", 8820)):
            config = compose(*list_search_overrides("cartpole", treatment), "llm=scripted")
            parts = build_parts(config, RunResources(config, build_used_model).model)
            try:
                assert build_loop(config, parts).total_episodes == episodes
            finally:
                parts.close()

    def test_extra_episode_is_counted(self, tmp_path):
        overrides = (
            "principal=random",
            "search.iterations=2",
            "search.extra_rollout=true",
            "search.confirm_candidates=0",
        )
        _, folder, rows, proposals = run_search(tmp_path, *overrides)
        assert summary(folder)["episodes"] == 2 * 5
        assert rows[-1]["env_steps"] > sum(sum(p["returns"]) for p in proposals)

    def test_draws(self):
        space, rng = build_search_agent("linear", POLE).controller.space, np.random.default_rng(0)
        normal = draw_warmup_vectors(space, "normal3_round1", 4000, rng)
        assert np.array_equal(normal, normal.round(1)) and normal.std() == pytest.approx(3, abs=0.05)
        assert np.abs(normal).max() > 6, "the published draw heeds no bounds"
        uniform = draw_warmup_vectors(space, "uniform3.5_round4", 4000, rng)
        assert np.array_equal(uniform, uniform.round(4)) and 3.49 < np.abs(uniform).max() <= 3.5
        table = draw_warmup_vectors(toy_table(), "uniform", 6000, rng)
        assert [np.mean(table == a) for a in (0, 1, 2)] == pytest.approx([1 / 3] * 3, abs=0.02)
        with pytest.raises(ConfigError, match=r"search.warmup_draw=normal3_round1.*uniform"):
            draw_warmup_vectors(toy_table(), "normal3_round1", 1, rng)

    @pytest.mark.parametrize("principal", ["cem", "ucb"])
    def test_unsupported_principals_raise(self, principal):
        parts = build_search(f"principal={principal}")
        try:
            with pytest.raises(ConfigError, match=r"search.warmup=3.*search.warmup=0"):
                build_loop(compose(*SMALL, f"principal={principal}", "search.warmup=3"), parts)
        finally:
            parts.close()


def toy_table():
    from llmrl.agents.search_agent import TabularAgent

    return TabularAgent(LAKE).controller.space


@pytest.mark.parametrize(
    "overrides",
    [
        ("principal=random",),
        ("principal=fixed",),
        ("principal=egreedy",),
        ("principal=ucb",),
        ("principal=thompson",),
        ("principal=gp", "principal.initial=2"),
        ("principal=cem", "principal.population=4"),
        ("principal=cmaes", "principal.population=4"),
        ("principal=llm",),
        ("principal=random", "agent=mlp_policy"),
        ("principal=random", "agent=projection"),
    ],
    ids=lambda overrides: ", ".join(overrides),
)
def test_all_principals_with_all_policies(tmp_path, overrides):
    _, _, _, proposals = run_search(tmp_path, *overrides, "search.iterations=3", "search.candidates=2")
    assert len(proposals) == 6
    principal = overrides[0].removeprefix("principal=")
    if principal not in ("fixed", "thompson"):  # two arms, drawn from the posterior
        assert len({tuple(p["vector"]) for p in proposals}) > 1


@pytest.mark.parametrize("principal", ["random", "cem", "llm", "egreedy"])
def test_tables_use_integers(tmp_path, principal):
    small = ("env=maze", "agent=tabular", "env.horizon=30", "search.episodes=1", "search.evaluate_episodes=1")
    run(*small, f"principal={principal}", "search.iterations=6", "search.candidates=4", f"output_root={tmp_path}")
    vectors = np.array([p["vector"] for p in read_proposal_lines(find_run_folder(tmp_path))])
    assert vectors.shape == (24, 9) and {*vectors.ravel()} == {0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("principal=dual_rl",), "DualRLPrincipal.*principal=cem"),
        (("principal=metagrad",), "MetaGradPrincipal"),
        (("principal=ucb", "principal.points=2", "agent=mlp_policy"), "principal.points=2 .*multilayer perceptron"),
        (("principal=fixed", f"principal.values={[0.05] * 10}"), r"params\[0\]=0.05 "),
        (("principal=egreedy", "principal.points=122", "agent=projection", "agent.rank=1"), "points=122: .* 121 "),
        (("principal=random", "env=escape_room"), "horizon"),
    ],
)
def test_invalid_settings_raise_early(overrides, message):
    config = compose(*SMALL, *overrides)
    if message == "horizon":
        del config["env"]["horizon"]
    with pytest.raises(ConfigError, match=message):
        parts = build_parts(config, RunResources(config, build_used_model).model)
        try:
            build_loop(config, parts)
        finally:
            parts.close()


def test_single_proposal_steps():
    class SequentialPrincipal(RandomPrincipal):
        parallel = False

    parts = build_search("principal=random")
    principal = SequentialPrincipal(parts.agents[0].controller.space, Seeds(0))
    try:
        with pytest.raises(ConfigError, match=r"search.candidates=2.*SequentialPrincipal"):
            SearchLoop(LoopParts(parts.env, parts.agents, Seeds(0), principal=principal), SearchSettings(1, 2, 1))
    finally:
        parts.close()


@pytest.mark.parametrize("agent", ["linear", "tabular", "mlp_policy", "projection"])
def test_non_numeric_policy_raises(agent):
    config = compose("env=frozen_lake" if agent == "tabular" else "env=cartpole", f"agent={agent}")
    parts = build_parts(config, None)
    try:
        with pytest.raises(ConfigError, match=r"principal=none.*principal=cmaes.*principal=fixed"):
            build_loop(config, parts)
        parts.agents[0].set_parameters(np.zeros(parts.agents[0].controller.space.dim))
        assert isinstance(build_loop(config, parts), PlayLoop)
    finally:
        parts.close()


def test_plan_states_episodes():
    config = compose(*list_search_overrides("cartpole", "props"), "llm=scripted")
    parts = build_parts(config, RunResources(config, build_used_model).model)
    try:
        rows = dict(plan(config, parts, build_loop(config, parts)))
    finally:
        parts.close()
    assert rows["episodes"] == "8,020, of at most 500 steps each" and rows["  parameters"] == "10 of a linear policy"
    assert rows["LLM calls"] == "400, at most 2,400 with repairs"
    assert 6e6 < int(rows["  prompt tokens"].removeprefix("about ").replace(",", "")) < 12e6


class TestStop:
    COMMON = ("principal=random", "search.iterations=30", "search.confirm_candidates=0")

    def test_confirmation_stops_search(self, tmp_path):
        _, free, _, proposals = run_search(tmp_path / "free", *self.COMMON)
        level = sorted(np.mean(p["returns"]) for p in proposals)[-8]
        _, folder, _, stopped = run_search(tmp_path / "stopped", *self.COMMON, f"search.target_return={level}")
        summary_ = summary(folder)
        assert summary_["solved"] and summary_["iterations"] == len(stopped) < 30
        assert [p["vector"] for p in stopped] == [p["vector"] for p in proposals[: len(stopped)]]
        assert np.mean(stopped[-1]["returns"]) >= level
        n_reaching = sum(np.mean(p["returns"]) >= level for p in stopped)
        assert summary_["episodes"] == 4 * (len(stopped) + n_reaching), "each confirmation is as many episodes"
        assert "solved" not in summary(free)

    def test_unreachable_return_changes_no_result(self, tmp_path):
        free, stopped = (
            run_search(tmp_path / name, *self.COMMON, "search.iterations=5", *options)
            for name, options in (("free", ()), ("stopped", ("search.target_return=1000",)))
        )
        assert [p | {} for p in free[3]] == stopped[3] and summary(stopped[1])["solved"] is False

    def test_plan_states_maximum_episodes(self, tmp_path, capsys):
        run(*SMALL, *self.COMMON, "search.target_return=50", "dry_run=true", f"output_root={tmp_path}")
        output = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "at most 240," in output and "at a confirmed mean return of 50" in output, (
            "30 x 4, and as many to confirm"
        )

    def test_default_level_is_maximum_return(self, tmp_path):
        _, folder, _, proposals = run_search(tmp_path, "env.horizon=500", *self.COMMON, "search.iterations=400")
        summary_ = summary(folder)
        assert summary_["solved"] and summary_["iterations"] < 400
        assert np.mean(proposals[-1]["returns"]) == 500

    def test_unknown_maximum_has_no_level(self, tmp_path, capsys):
        run("env=frozen_lake", "agent=tabular", "principal=random", "dry_run=true", f"output_root={tmp_path}")
        assert "confirmed mean return" not in capsys.readouterr().out

    def test_external_algorithms_raise(self, tmp_path):
        with pytest.raises(ConfigError, match=r"search\.target_return"):
            run("env=cartpole", "agent=sb3", "search.target_return=100", f"output_root={tmp_path}")


class TestResume:
    def test_exhausted_budget_resumes(self, tmp_path):
        llm = (
            "principal=llm",
            "llm=scripted",
            "search.iterations=12",
            "search.warmup=3",
            "search.evaluation_interval=5",
        )
        _, reference, _, proposals = run_search(tmp_path / "whole", *llm)
        overrides = (*SMALL, *llm, f"output_root={tmp_path / 'parts'}")
        for calls in (4, 9):
            with pytest.raises(BudgetExhausted):
                run(*overrides, f"llm.budget.calls={calls}")
        run(*overrides)
        resumed_folder = find_run_folder(tmp_path / "parts")
        assert [p | {} for p in read_proposal_lines(resumed_folder)] == proposals
        assert _comparable(resumed_folder) == _comparable(reference)

    @pytest.mark.long
    @pytest.mark.slow
    def test_sigkill_resumes_with_equal_numbers(self, tmp_path):
        overrides = (
            *SMALL,
            "principal=cem",
            "principal.population=4",
            "search.iterations=150",
            "checkpoint_seconds=0",
        )

        def child(root):
            process = commands.Process(target=run_silently, args=(*overrides, f"output_root={root}"))
            process.start()
            return process

        def rows(root):
            return sum(path.read_bytes().count(b"\n") for path in root.rglob("metrics.jsonl"))

        child(tmp_path / "whole").join()
        for n_rows in random.Random(0).sample(range(1, rows(tmp_path / "whole") // 2), 2):
            process = child(tmp_path / "killed")
            while process.is_alive() and rows(tmp_path / "killed") < n_rows:
                time.sleep(0.01)
            assert process.is_alive()
            process.kill()
            process.join()
        child(tmp_path / "killed").join()
        reference, killed_run = (find_run_folder(tmp_path / name) for name in ("whole", "killed"))
        assert load_comparable_metrics(reference) == load_comparable_metrics(killed_run)
        assert (reference / FILE_NAME).read_bytes() == (killed_run / FILE_NAME).read_bytes()
        assert summary(reference) == summary(killed_run)


def _comparable(folder):
    """Return the metrics without costs, because a resumed run uses cached replies."""
    return [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(folder)]


def test_mechanism_principal_is_unchanged():
    """A space without decimals is not rounded."""
    space = make_toy_spec().proposal_space
    vectors = RandomPrincipal(space, Seeds(3)).ask(n=4)
    random_vectors = Seeds(3).numpy("principal").uniform(space.low, space.high, (4, 2))
    assert np.array_equal(vectors, random_vectors)
