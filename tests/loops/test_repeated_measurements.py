"""Pooled estimates, and repeated measurements before the recommendation of a best vector."""

import json
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.core.pooling import PooledEstimates
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import plan
from llmrl.run.proposals import read_proposal_lines
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.statistics.estimators import standard_error_of_mean

SMALL = ("env=cartpole", "agent=linear", "env.horizon=60", "search.episodes=4", "search.evaluate_episodes=10")
REPEAT_NOTICE = (
    "search.target_return=null",
    *(*SMALL, "env.horizon=500", "search.iterations=40", "seed=1"),
    *("principal=egreedy", "principal.points=2", "principal.epsilon=0.3"),
)
"""A bandit, which tries what looks best again and again."""

NUMBERS = st.lists(st.floats(-100, 100), min_size=1, max_size=6)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


class TestPool:
    @pytest.mark.slow
    @given(st.lists(st.tuples(st.integers(0, 2), NUMBERS), min_size=1, max_size=20))
    def test_estimate_pools_all_episodes(self, measurements):
        pool, episodes = PooledEstimates(), {}
        for vector, values in measurements:
            error = standard_error_of_mean(np.array(values))
            pool.add([vector, 0.5], float(np.mean(values)), error, len(values), len(values))
            episodes.setdefault(vector, []).append(values)
        for vector, values_ in episodes.items():
            estimate, pooled_values = pool.get([vector, 0.5]), np.concatenate(values_)
            assert estimate.value == pytest.approx(pooled_values.mean(), abs=1e-9)
            assert (estimate.n_episodes, estimate.n_measurements) == (len(pooled_values), len(values_))
            if len(pooled_values) > 1:
                assert estimate.standard_error == pytest.approx(standard_error_of_mean(pooled_values), abs=1e-6)
            else:
                assert estimate.standard_error is None
        best = pool.best()
        assert best is pool.ranked()[0]
        assert best.value == max(pool.get([vector, 0.5]).value for vector in episodes)

    def test_lucky_measurement_is_not_best(self):
        pool = PooledEstimates()
        for vector, value in ((0, 122.0), (1, 145.0), (0, 152.2), (0, 148.6)):
            pool.add([vector], value, 1.0, 20, 20)
        assert pool.best().vector == (1.0,) and pool.get([0]).value == pytest.approx(140.933, abs=1e-3)

    def test_small_samples_are_not_best(self):
        pool = PooledEstimates(min_episodes=20)
        pool.add([1.0], 500.0, None, 1, 1)
        assert pool.best() is None and pool.ranked() == []
        pool.add([2.0], 30.0, 2.0, 20, 20)
        assert pool.best().vector == (2.0,)
        pool.add([1.0], 100.0, 2.0, 20, 20)
        assert pool.best().vector == (1.0,) and pool.best().value == pytest.approx(2500 / 21)

    def test_repeated_draw_counts_only_initially(self):
        pool = PooledEstimates()
        for _ in range(3):
            pool.add([1.0], 5.0, 1.0, 4, 4, context="a", draw="step 1")
        pool.add([1.0], 9.0, 1.0, 4, 4, context="b", draw="step 2")
        assert pool.get([1.0], "a").n_episodes == 4 and pool.get([1.0], "b").value == 9 and pool.contexts == ["a", "b"]

    def test_single_society_uses_society_error(self):
        """Episodes of one society are no independent measurements of its proposal."""
        pool = PooledEstimates()
        pool.add([0.0], 10.0, 0.1, 1, 8)
        assert pool.get([0.0]).standard_error == 0.1
        pool.add([0.0], 14.0, 0.1, 1, 8)
        assert pool.get([0.0]).standard_error == pytest.approx(2.0) and pool.get([0.0]).n_episodes == 16


@pytest.fixture(scope="module")
def repeating_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("again")
    run(*REPEAT_NOTICE, f"output_root={root}")
    return find_run_folder(root)


def pooled(proposals):
    episodes = {}
    for p in proposals:
        episodes.setdefault(tuple(p["vector"]), []).extend(p["returns"])
    return episodes


class TestSearch:
    def test_vector_measurements_share_estimate(self, repeating_run):
        """Summaries and the curve of the best vector use the pooled estimate instead of the highest measurement."""
        proposals, summary_ = read_proposal_lines(repeating_run), summary(repeating_run)
        episodes = pooled(proposals)
        assert max(len(values) for values in episodes.values()) > 8, "something is tried again"
        assert summary_["best_return"] == pytest.approx(max(np.mean(values) for values in episodes.values()))
        assert summary_["highest_return"] == max(p["return"] for p in proposals) > summary_["best_return"]
        curve = [
            row["search/best_return"] for row in load_comparable_metrics(repeating_run) if "search/best_return" in row
        ]
        pools = [pooled(proposals[: i + 1]) for i in range(40)]
        assert curve == pytest.approx([max(np.mean(values) for values in pool.values()) for pool in pools])

    def test_fresh_episodes_decide_winner(self, repeating_run):
        summary_, episodes = summary(repeating_run), pooled(read_proposal_lines(repeating_run))
        first = sorted(episodes, key=lambda vector: -np.mean(episodes[vector]))[:4]
        confirmations = pooled([{**row, "returns": [row["return"]]} for row in summary_["confirmations"]])
        assert set(confirmations) == set(first) and {len(means) for means in confirmations.values()} == {2, 6}
        totals = {
            vector: (sum(episodes[vector]) + 4 * sum(means)) / (len(episodes[vector]) + 4 * len(means))
            for vector, means in confirmations.items()
        }
        best = tuple(summary_["best"]["vector"])
        assert len(confirmations[best]) == 6 and summary_["best"]["return"] == pytest.approx(totals[best])
        assert totals[best] == max(totals[vector] for vector, means in confirmations.items() if len(means) == 6)
        rows = load_comparable_metrics(repeating_run, "confirmation")
        assert len(rows) == 16 and all(row["iterations"] == 40 for row in rows)
        assert [row["confirmation/candidates"] for row in rows] == [4.0] * 7 + [2.0] * 9
        assert summary_["confirmation_episodes"] == 64
        assert summary_["episodes"] == 160 + 64 == rows[-1]["episodes"]

    def test_confirmations_have_other_seeds(self, repeating_run):
        """Measurements of the search are not repeated."""
        summary_, proposals = summary(repeating_run), read_proposal_lines(repeating_run)
        measured = {(tuple(p["vector"]), p["return"]) for p in proposals}
        assert not measured & {(tuple(row["vector"]), row["return"]) for row in summary_["confirmations"]}

    def test_confirmations_are_optional_in_plan(self, tmp_path):
        for n, episodes in ((4, "at most 224"), (0, "160")):
            config = compose(*REPEAT_NOTICE, f"search.confirm_candidates={n}")
            parts = build_parts(config, build_llm(config, None))
            rows = dict(plan(config, parts, build_loop(config, parts)))
            parts.close()
            assert rows["episodes"].startswith(f"{episodes}, of at most")
        run(*REPEAT_NOTICE, "search.confirm_candidates=0", f"output_root={tmp_path}")
        summary_ = summary(find_run_folder(tmp_path))
        assert summary_["confirmations"] == [] and summary_["confirmation_episodes"] == 0
        assert summary_["episodes"] == 160 and summary_["best"]["return"] == pytest.approx(summary_["best_return"])

    def test_single_candidate_has_no_confirmations(self, tmp_path):
        fixed = ("principal=fixed", f"principal.values={[0.1] * 10}", "search.iterations=3")
        run(*SMALL, *fixed, f"output_root={tmp_path}")
        assert summary(find_run_folder(tmp_path))["confirmations"] == []

    @pytest.mark.slow
    @pytest.mark.parametrize("finished", [0, 1, 9])
    def test_stop_between_confirmations_resumes_exactly(self, tmp_path, monkeypatch, repeating_run, finished):
        """Signals arrive before the confirmations and between them; pooled measurements are restored."""
        safe_point, stopped = Run.safe_point, []

        def interrupted(self, iteration, state):
            if iteration == 40 + finished and not stopped:
                stopped.append(iteration)
                signal.raise_signal(signal.SIGTERM)
            safe_point(self, iteration, state)

        monkeypatch.setattr(Run, "safe_point", interrupted)
        with pytest.raises(Stopped):
            run(*REPEAT_NOTICE, f"output_root={tmp_path}")
        run(*REPEAT_NOTICE, f"output_root={tmp_path}")
        folder = find_run_folder(tmp_path)
        assert stopped and summary(folder) == summary(repeating_run)
        assert load_comparable_metrics(folder) == load_comparable_metrics(repeating_run)

    def test_equal_proposals_in_iteration_are_pooled(self, tmp_path):
        fixed = ("principal=fixed", f"principal.values={[0.1] * 10}", "search.iterations=3", "search.candidates=2")
        for seeds, measurements in (("fresh", 3), ("common", 1)):
            run(*SMALL, *fixed, f"search.episode_seeds={seeds}", f"output_root={tmp_path / seeds}")
            best = summary(find_run_folder(tmp_path / seeds))["best"]
            assert (best["measurements"], best["episodes"]) == (measurements, 4 * measurements)
