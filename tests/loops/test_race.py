"""Pooled estimates, and what is measured again before a best vector is named."""

import json
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import comparable_metrics, compose, only_run_folder, run
from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.pooling import PooledEstimates
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.experiment.plan import plan
from llmrl.loops.race import Race
from llmrl.run.proposals import read_proposals
from llmrl.run.run import Run
from llmrl.run.signals import Stopped

SMALL = ("env=cartpole", "agent=linear", "env.horizon=60", "search.episodes=4", "search.evaluate_episodes=10")
AGAIN = (
    "search.stop_at=null",
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
    def test_an_estimate_is_that_of_all_episodes_together(self, measured):
        pool, episodes = PooledEstimates(), {}
        for vector, values in measured:
            error = standard_error_of_mean(np.array(values))
            pool.add([vector, 0.5], float(np.mean(values)), error, len(values), len(values))
            episodes.setdefault(vector, []).append(values)
        for vector, own in episodes.items():
            found, together = pool.of([vector, 0.5]), np.concatenate(own)
            assert found.value == pytest.approx(together.mean(), abs=1e-9)
            assert (found.episodes, found.measurements) == (len(together), len(own))
            if len(together) > 1:
                assert found.standard_error == pytest.approx(standard_error_of_mean(together), abs=1e-6)
            else:
                assert found.standard_error is None
        best = pool.best()
        assert best is pool.ranked()[0]
        assert best.value == max(pool.of([vector, 0.5]).value for vector in episodes)

    def test_a_lucky_measurement_is_not_the_best(self):
        pool = PooledEstimates()
        for vector, value in ((0, 122.0), (1, 145.0), (0, 152.2), (0, 148.6)):
            pool.add([vector], value, 1.0, 20, 20)
        assert pool.best().vector == (1.0,) and pool.of([0]).value == pytest.approx(140.933, abs=1e-3)

    def test_few_episodes_are_not_the_best_until_there_are_more(self):
        pool = PooledEstimates(fewest=20)
        pool.add([1.0], 500.0, None, 1, 1)
        assert pool.best() is None and pool.ranked() == []
        pool.add([2.0], 30.0, 2.0, 20, 20)
        assert pool.best().vector == (2.0,)
        pool.add([1.0], 100.0, 2.0, 20, 20)
        assert pool.best().vector == (1.0,) and pool.best().value == pytest.approx(2500 / 21)

    def test_the_same_draw_counts_once_and_contexts_are_apart(self):
        pool = PooledEstimates()
        for _ in range(3):
            pool.add([1.0], 5.0, 1.0, 4, 4, context="a", draw="step 1")
        pool.add([1.0], 9.0, 1.0, 4, 4, context="b", draw="step 2")
        assert pool.of([1.0], "a").episodes == 4 and pool.of([1.0], "b").value == 9 and pool.contexts == ["a", "b"]

    def test_one_society_tells_its_error_until_there_are_two(self):
        """Episodes of one society are no independent measurements of its proposal."""
        pool = PooledEstimates()
        pool.add([0.0], 10.0, 0.1, 1, 8)
        assert pool.of([0.0]).standard_error == 0.1
        pool.add([0.0], 14.0, 0.1, 1, 8)
        assert pool.of([0.0]).standard_error == pytest.approx(2.0) and pool.of([0.0]).episodes == 16


class TestRules:
    def test_the_clearly_worse_are_dropped_and_the_close_are_not(self):
        rng = np.random.default_rng(0)
        race = Race(np.arange(4.0)[:, None], rounds=3)
        shared = rng.normal(0, 50, 20)  # luck that all have in common
        race.tell([shared + rng.normal(mean, 1, 20) for mean in (0.0, 10.0, 9.9, 5.0)])
        assert race.left == [1, 2] and not race.over
        for _ in range(2):
            race.tell([rng.normal(mean, 1, 20) for mean in (10.1, 10.0)])
        assert race.over and race.leader == 1 and race.round == 3
        assert [row["measured"] for row in race.rows("return")] == [20, 60, 60, 20]

    def test_nothing_is_dropped_on_two_numbers(self):
        race = Race(np.arange(2.0)[:, None], rounds=5)
        race.tell([np.array([0.0, 0.0]), np.array([9.0, 9.0])])
        assert race.left == [0, 1]
        race.tell([np.array([0.0]), np.array([9.0])])
        assert race.left == [1] and race.over

    def test_one_contestant_is_not_raced_and_the_first_of_equals_wins(self):
        assert Race(np.zeros((1, 2)), 3).over and Race(np.zeros((1, 2)), 3).rows("return") == []
        race = Race(np.arange(3.0)[:, None], rounds=1)
        race.tell([np.full(5, 2.0)] * 3)
        assert race.over and race.leader == 0 and race.left == [0, 1, 2]

    def test_a_copy_from_its_state_goes_on_alike(self):
        rng = np.random.default_rng(1)
        race = Race(rng.normal(size=(3, 2)), 4)
        race.tell(list(rng.normal(size=(3, 6))))
        copy = Race.from_state(json.loads(json.dumps(race.state_dict(), default=np.ndarray.tolist)), 4)
        values = list(rng.normal(size=(len(race.left), 6)))
        race.tell(values)
        copy.tell(values)
        assert copy.rows("x") == race.rows("x") and copy.leader == race.leader and copy.left == race.left

    def test_the_fresh_mean_has_no_luck_in_it(self):
        """Fifty equal vectors: the best of the search looks two standard errors better than it is. The winner's fresh
        mean is the highest of five, and what is measured after that is what it is worth."""
        rng, flattered, raced, after = np.random.default_rng(0), [], [], []
        for _ in range(300):
            pool = PooledEstimates()
            for i in range(50):
                values = rng.normal(0, 1, 20)
                pool.add([i], values.mean(), standard_error_of_mean(values), 20, 20)
            race = Race(np.array([each.vector for each in pool.ranked()[:5]]), 3)
            while not race.over:
                race.tell(list(rng.normal(0, 1, (len(race.left), 20))))
            flattered.append(pool.best().value)
            raced.append(np.mean(race.values[race.leader]))
            after.append(rng.normal(0, 1, 100).mean())
        error = 1 / 20**0.5
        assert np.mean(flattered) > 2 * error and np.mean(raced) < 0.8 * error < 0.5 * np.mean(flattered)
        assert np.mean(after) == pytest.approx(0, abs=0.02)


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    root = tmp_path_factory.mktemp("again")
    run(*AGAIN, f"output_root={root}")
    return only_run_folder(root)


def pooled(proposals):
    episodes = {}
    for p in proposals:
        episodes.setdefault(tuple(p["vector"]), []).extend(p["returns"])
    return episodes


class TestSearch:
    def test_measurements_of_a_vector_are_one_estimate(self, again):
        """In summaries and in the curve of the best so far; the luckiest measurement is not it."""
        proposals, found = read_proposals(again), summary(again)
        episodes = pooled(proposals)
        assert max(len(own) for own in episodes.values()) > 8, "something is tried again"
        assert found["best_return"] == pytest.approx(max(np.mean(own) for own in episodes.values()))
        assert found["highest_return"] == max(p["return"] for p in proposals) > found["best_return"]
        curve = [row["search/best_return"] for row in comparable_metrics(again) if "search/best_return" in row]
        until = [pooled(proposals[: i + 1]) for i in range(40)]
        assert curve == pytest.approx([max(np.mean(own) for own in each.values()) for each in until])
        own = episodes[tuple(found["best"]["vector"])]
        assert found["best"]["return"] == pytest.approx(np.mean(own)) and found["best"]["episodes"] == len(own)
        assert found["best"]["measurements"] == len(own) // 4
        assert found["best"]["standard_error"] == pytest.approx(standard_error_of_mean(np.array(own)))

    def test_the_winner_is_named_by_fresh_episodes(self, again):
        found, episodes = summary(again), pooled(read_proposals(again))
        first = sorted(episodes, key=lambda vector: -np.mean(episodes[vector]))[:5]
        assert {tuple(row["vector"]) for row in found["race"]} == set(first)
        winner = max((row for row in found["race"] if row["left"]), key=lambda row: row["return"])
        assert winner["vector"] == found["best"]["vector"] and winner["standard_error"] > 0
        # Seeds are of the race alone: what was measured in the search is not among its numbers.
        assert all(row["return"] != pytest.approx(np.mean(episodes[tuple(row["vector"])])) for row in found["race"])
        raced = comparable_metrics(again, "race")
        assert 1 <= len(raced) <= 3 and all(row["iterations"] == 40 for row in raced)
        assert raced[-1]["race/return"] == pytest.approx(winner["return"])
        assert found["race_episodes"] == sum(row["measured"] for row in found["race"]) <= 5 * 3 * 4
        assert found["episodes"] == 160 + found["race_episodes"] == raced[-1]["episodes"]

    def test_it_is_in_the_plan_and_can_be_left_out(self, tmp_path):
        raced = (5, "of the best 5, at most 3 x 4 episodes each on fresh seeds", "at most 220")
        for race, told, episodes in (raced, (0, "none: the best proposal is named by what the search measured", "160")):
            config = compose(*AGAIN, f"search.race={race}")
            parts = build_parts(config, build_llm(config, None))
            rows = dict(plan(config, parts, build_loop(config, parts)))
            parts.close()
            assert rows["  race"] == told and rows["episodes"].startswith(f"{episodes}, of at most")
        run(*AGAIN, "search.race=0", f"output_root={tmp_path}")
        found = summary(only_run_folder(tmp_path))
        assert found["race"] == [] and found["race_episodes"] == 0 and found["episodes"] == 160
        assert found["best"]["return"] == pytest.approx(found["best_return"])

    @pytest.mark.slow
    @pytest.mark.parametrize("rounds", [0, 1, 2])
    def test_stopped_within_the_race_it_goes_on_alike(self, tmp_path, monkeypatch, again, rounds):
        """Signals come before the race and after its rounds; everything that was pooled is known again."""
        safe_point, stopped = Run.safe_point, []

        def interrupted(self, iteration, state):
            if iteration == 40 + rounds and not stopped:
                stopped.append(iteration)
                signal.raise_signal(signal.SIGTERM)
            safe_point(self, iteration, state)

        monkeypatch.setattr(Run, "safe_point", interrupted)
        with pytest.raises(Stopped):
            run(*AGAIN, f"output_root={tmp_path}")
        run(*AGAIN, f"output_root={tmp_path}")
        folder = only_run_folder(tmp_path)
        assert stopped and summary(folder) == summary(again)
        assert comparable_metrics(folder) == comparable_metrics(again)

    def test_equal_proposals_of_an_iteration_are_one_measurement(self, tmp_path):
        fixed = ("principal=fixed", f"principal.values={[0.1] * 10}", "search.iterations=3", "search.candidates=2")
        for seeds, measurements in (("fresh", 3), ("common", 1)):
            run(*SMALL, *fixed, f"search.episode_seeds={seeds}", f"output_root={tmp_path / seeds}")
            best = summary(only_run_folder(tmp_path / seeds))["best"]
            assert (best["measurements"], best["episodes"]) == (measurements, 4 * measurements)
