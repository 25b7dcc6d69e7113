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
from llmrl.loops.race import Race
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


class TestRules:
    def test_only_clearly_worse_are_dropped(self):
        rng = np.random.default_rng(0)
        race = Race(np.arange(4.0)[:, None], max_rounds=3)
        shared = rng.normal(0, 50, 20)  # luck that all have in common
        race.tell([shared + rng.normal(mean, 1, 20) for mean in (0.0, 10.0, 9.9, 5.0)])
        assert race.remaining == [1, 2] and not race.is_finished
        for _ in range(2):
            race.tell([rng.normal(mean, 1, 20) for mean in (10.1, 10.0)])
        assert race.is_finished and race.leader == 1 and race.round == 3
        assert [row["measured"] for row in race.summarize_contestants()] == [20, 60, 60, 20]

    def test_two_numbers_drop_no_contestant(self):
        race = Race(np.arange(2.0)[:, None], max_rounds=5)
        race.tell([np.array([0.0, 0.0]), np.array([9.0, 9.0])])
        assert race.remaining == [0, 1]
        race.tell([np.array([0.0]), np.array([9.0])])
        assert race.remaining == [1] and race.is_finished

    def test_single_contestant_skips_race(self):
        assert Race(np.zeros((1, 2)), 3).is_finished and Race(np.zeros((1, 2)), 3).summarize_contestants() == []
        race = Race(np.arange(3.0)[:, None], max_rounds=1)
        race.tell([np.full(5, 2.0)] * 3)
        assert race.is_finished and race.leader == 0 and race.remaining == [0, 1, 2]

    def test_state_round_trip(self):
        rng = np.random.default_rng(1)
        race = Race(rng.normal(size=(3, 2)), 4)
        race.tell(list(rng.normal(size=(3, 6))))
        state = json.loads(json.dumps(race.state_dict(), default=np.ndarray.tolist))
        copy = Race(state["vectors"], 4)
        copy.load_state_dict(state | {"vectors": copy.vectors})
        values = list(rng.normal(size=(len(race.remaining), 6)))
        race.tell(values)
        copy.tell(values)
        assert (
            copy.summarize_contestants() == race.summarize_contestants()
            and copy.leader == race.leader
            and copy.remaining == race.remaining
        )

    def test_fresh_mean_is_unbiased(self):
        """The mean of measurements after the race is unbiased.

        Of fifty equal vectors the best of the search looks two standard errors better than it is, and the winner's mean
        in the race is the highest of five.
        """
        rng, flattered, race_means, after = np.random.default_rng(0), [], [], []
        for _ in range(300):
            pool = PooledEstimates()
            for i in range(50):
                values = rng.normal(0, 1, 20)
                pool.add([i], values.mean(), standard_error_of_mean(values), 20, 20)
            race = Race(np.array([estimate.vector for estimate in pool.ranked()[:5]]), 3)
            while not race.is_finished:
                race.tell(list(rng.normal(0, 1, (len(race.remaining), 20))))
            flattered.append(pool.best().value)
            race_means.append(np.mean(race.values[race.leader]))
            after.append(rng.normal(0, 1, 100).mean())
        error = 1 / 20**0.5
        assert np.mean(flattered) > 2 * error and np.mean(race_means) < 0.8 * error < 0.5 * np.mean(flattered)
        assert np.mean(after) == pytest.approx(0, abs=0.02)


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
        best_values = episodes[tuple(summary_["best"]["vector"])]
        assert summary_["best"]["return"] == pytest.approx(np.mean(best_values)) and summary_["best"][
            "episodes"
        ] == len(best_values)
        assert summary_["best"]["measurements"] == len(best_values) // 4
        assert summary_["best"]["standard_error"] == pytest.approx(standard_error_of_mean(np.array(best_values)))

    def test_fresh_episodes_decide_winner(self, repeating_run):
        summary_, episodes = summary(repeating_run), pooled(read_proposal_lines(repeating_run))
        first = sorted(episodes, key=lambda vector: -np.mean(episodes[vector]))[:5]
        assert {tuple(row["vector"]) for row in summary_["race"]} == set(first)
        winner = max((row for row in summary_["race"] if row["remaining"]), key=lambda row: row["return"])
        assert winner["vector"] == summary_["best"]["vector"] and winner["standard_error"] > 0
        # Seeds are of the race alone: what was measured in the search is not among its numbers.
        assert all(row["return"] != pytest.approx(np.mean(episodes[tuple(row["vector"])])) for row in summary_["race"])
        race_rows = load_comparable_metrics(repeating_run, "race")
        assert 1 <= len(race_rows) <= 3 and all(row["iterations"] == 40 for row in race_rows)
        assert race_rows[-1]["race/return"] == pytest.approx(winner["return"])
        assert summary_["race_episodes"] == sum(row["measured"] for row in summary_["race"]) <= 5 * 3 * 4
        assert summary_["episodes"] == 160 + summary_["race_episodes"] == race_rows[-1]["episodes"]

    def test_race_is_optional_in_plan(self, tmp_path):
        race_plan = (5, "of the best 5, at most 3 x 4 episodes each on fresh seeds", "at most 220")
        for race, description, episodes in (
            race_plan,
            (0, "none: the search's measurements decide", "160"),
        ):
            config = compose(*REPEAT_NOTICE, f"search.race={race}")
            parts = build_parts(config, build_llm(config, None))
            rows = dict(plan(config, parts, build_loop(config, parts)))
            parts.close()
            assert rows["  race"] == description and rows["episodes"].startswith(f"{episodes}, of at most")
        run(*REPEAT_NOTICE, "search.race=0", f"output_root={tmp_path}")
        summary_ = summary(find_run_folder(tmp_path))
        assert summary_["race"] == [] and summary_["race_episodes"] == 0 and summary_["episodes"] == 160
        assert summary_["best"]["return"] == pytest.approx(summary_["best_return"])

    @pytest.mark.slow
    @pytest.mark.parametrize("rounds", [0, 1, 2])
    def test_stop_in_race_resumes_exactly(self, tmp_path, monkeypatch, repeating_run, rounds):
        """Signals arrive before the race and after its rounds; pooled measurements are restored."""
        safe_point, stopped = Run.safe_point, []

        def interrupted(self, iteration, state):
            if iteration == 40 + rounds and not stopped:
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
