"""Trials: sampling, storage and loading, and examples built from them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.finetuning.trials import (
    CHUNK_SIZE,
    ParameterTrial,
    TrialSeries,
    draw_vectors,
    find_search_runs,
    get_task_identity,
    load_or_play_trials,
    locate_trials,
    make_examples,
    read_search_run,
    split_series,
)
from shipped import build_dataset


def space(*bounds, decimals=None):
    return ParameterSpace("p", tuple(Parameter(f"x{i}", low, b, "", "", decimals) for i, (low, b) in enumerate(bounds)))


PLANE = space((-1.0, 1.0), (0.0, 10.0))


class SumEvaluator:
    """Evaluator that returns the sum of the parameters plus a small term of the seed and counts episodes."""

    def __init__(self):
        self.played = 0

    def __call__(self, vectors, seeds):
        self.played += len(vectors) * len(seeds)
        return vectors.sum(1)[:, None] + 1e-12 * seeds[None, :]


def numbers(series):
    return [(trial.vector.tolist(), trial.returns.tolist()) for trial in series.trials]


def test_rounding_is_uniform():
    vectors = draw_vectors(space((0, 3), decimals=0), Seeds(0), range(4000))
    counts = np.bincount(vectors[:, 0].astype(int), minlength=4)
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(750)
    tenths = draw_vectors(space((-0.2, 0.2), decimals=1), Seeds(1), range(500))
    assert {round(x, 10) for x in tenths[:, 0]} == {-0.2, -0.1, 0.0, 0.1, 0.2}
    assert not np.signbit(tenths[tenths == 0]).any()


def test_custom_bounds_may_exceed_policy_bounds():
    vectors = draw_vectors(PLANE, Seeds(0), range(300), (-20.0, 20.0))
    assert vectors.min() < -15 and vectors.max() > 15
    assert np.array_equal(draw_vectors(PLANE, Seeds(0), [7])[0], draw_vectors(PLANE, Seeds(0), range(9))[7])


def test_kill_loses_only_last_chunk(tmp_path):
    """After a kill before the second chunk, a resume and an extension, each trial is played once."""
    plays, folder = SumEvaluator(), tmp_path / "trials"

    def stop_after(done):
        if done >= CHUNK_SIZE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_or_play_trials(plays, PLANE, Seeds(0), CHUNK_SIZE + 10, 3, folder, on_progress=stop_after)
    assert plays.played == 3 * CHUNK_SIZE
    trials = load_or_play_trials(plays, PLANE, Seeds(0), CHUNK_SIZE + 10, 3, folder)
    assert plays.played == 2 * 3 * CHUNK_SIZE and len(trials.trials) == CHUNK_SIZE + 10 and not trials.is_search
    extended = load_or_play_trials(plays, PLANE, Seeds(0), 2 * CHUNK_SIZE + 1, 3, folder)
    assert plays.played == 3 * 3 * CHUNK_SIZE and numbers(extended)[: CHUNK_SIZE + 10] == numbers(trials)
    anew = load_or_play_trials(SumEvaluator(), PLANE, Seeds(0), CHUNK_SIZE + 10, 3, tmp_path / "other")
    assert numbers(anew) == numbers(trials)
    assert (
        numbers(load_or_play_trials(SumEvaluator(), PLANE, Seeds(1), 10, 3, tmp_path / "seed")) != numbers(trials)[:10]
    )


def test_corrupt_chunk_is_regenerated(tmp_path):
    trials = load_or_play_trials(SumEvaluator(), PLANE, Seeds(0), 10, 3, tmp_path)
    (chunk,) = tmp_path.iterdir()
    for content in (chunk.read_text()[:50], "[]", json.dumps([{"vector": [1.0]}])):
        chunk.write_text(content)
        plays = SumEvaluator()
        assert numbers(load_or_play_trials(plays, PLANE, Seeds(0), 10, 3, tmp_path)) == numbers(trials) and plays.played


def test_trial_cache_key_covers_settings(tmp_path):
    base = {"task": {"env.id": "A-v0"}, "episodes": 20}
    folder = locate_trials(tmp_path, base)
    assert folder == locate_trials(tmp_path, {"episodes": 20, "task": {"env.id": "A-v0"}})
    assert folder != locate_trials(tmp_path, {**base, "episodes": 21})


def search_run(root, task="A-v0", lines=((1.0, 2.0), (3.0, 4.0)), seed=0):
    folder = root / "search" / f"s{seed}"
    folder.mkdir(parents=True)
    config = {"env": {"id": task, "n_envs": 3}, "agent": {"bound": 6}, "search": {"episodes": 2}, "seed": seed}
    (folder / "config.yaml").write_text(json.dumps(config))
    text = [
        {"iteration": i, "candidate": 0, "vector": [x, y], "return": x, "returns": [x, x + 1]}
        for i, (x, y) in enumerate(lines)
    ]
    (folder / "proposals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in text))
    return folder


RUN_FUNCTION = get_task_identity({"env": {"id": "A-v0", "n_envs": 8}, "agent": {"bound": 6}}, with_seed=False)


def test_search_run_reads_complete_lines_in_order(tmp_path):
    folder = search_run(tmp_path)
    with (folder / "proposals.jsonl").open("a") as file:
        file.write('{"iteration": 2, "vec')
    series = read_search_run(folder, PLANE, RUN_FUNCTION)
    assert series.is_search and series.episodes == 2
    assert numbers(series) == [([1.0, 2.0], [1.0, 2.0]), ([3.0, 4.0], [3.0, 4.0])]
    assert [trial.value for trial in series.trials] == [1.5, 3.5]


def test_dataset_for_different_task_raises(tmp_path):
    with pytest.raises(ConfigError, match=r"\(env\.id=B-v0 .*A-v0\)"):
        read_search_run(search_run(tmp_path / "b", "B-v0"), PLANE, RUN_FUNCTION)
    three = space((0, 1), (0, 1), (0, 1))
    with pytest.raises(ConfigError, match=r"line 1 .* 3 numbers"):
        read_search_run(search_run(tmp_path / "c"), three, RUN_FUNCTION)
    with pytest.raises(ConfigError, match=r"\(seed=1 .*0\)"):  # directions drawn from the seed
        read_search_run(search_run(tmp_path / "d", seed=1), PLANE, {**RUN_FUNCTION, "seed": 0})
    assert read_search_run(tmp_path / "d" / "search" / "s1", PLANE, RUN_FUNCTION).trials


def test_folders_with_no_proposals_raise(tmp_path):
    with pytest.raises(ConfigError, match="folder"):
        read_search_run(tmp_path, PLANE, RUN_FUNCTION)
    with pytest.raises(ConfigError, match=r"proposals\.jsonl"):
        find_search_runs([str(tmp_path)])
    with pytest.raises(ConfigError, match="proposals"):
        read_search_run(search_run(tmp_path, lines=()), PLANE, RUN_FUNCTION)
    (tmp_path / "search" / "s0" / "proposals.jsonl").write_text('{"vector": [1, 2]}\n')
    with pytest.raises(ConfigError, match=r"1.*KeyError.*'returns'"):
        read_search_run(tmp_path / "search" / "s0", PLANE, RUN_FUNCTION)


def test_run_discovery_skips_duplicates(tmp_path):
    runs = [search_run(tmp_path / name) for name in ("a", "b")]
    old = runs[0] / "backup_1"
    old.mkdir()
    (old / "proposals.jsonl").write_text("")
    assert find_search_runs([str(tmp_path), str(runs[1])]) == sorted(runs)


def make_series(n, is_search, start=0.0):
    rng = np.random.default_rng(int(start))
    return TrialSeries(
        tuple(ParameterTrial(rng.normal(size=2), np.array([start + rng.normal()])) for _ in range(n)), is_search
    )


@given(n=st.integers(2, 40), share=st.floats(0.01, 0.99), runs=st.integers(1, 4), seed=st.integers(0, 5))
def test_holdout_is_excluded_from_training(n, share, runs, seed):
    all_series = [make_series(n, is_search=True, start=i) for i in range(runs)] + [
        make_series(n, is_search=False, start=9)
    ]
    train, held_out = split_series(all_series, share, Seeds(seed))
    sets = [{id(trial) for series in part for trial in series.trials} for part in (train, held_out)]
    assert not sets[0] & sets[1] and len(sets[0] | sets[1]) == n * (runs + 1)
    assert all(sets)
    if runs > 1:  # whole runs
        assert {len(series.trials) for part in (train, held_out) for series in part if series.is_search} == {n}


@given(runs=st.integers(1, 3), values=st.integers(3, 6), seed=st.integers(0, 20))
def test_equal_parameters_share_split(runs, values, seed):
    """Integer parameters, which are repeated within and across series."""
    rng = np.random.default_rng(seed)

    def make_series_list(is_search):
        vectors = rng.integers(0, values, (20, 1)).astype(float)
        return TrialSeries(tuple(ParameterTrial(vector, rng.normal(size=1)) for vector in vectors), is_search)

    train, held_out = split_series(
        [*(make_series_list(True) for _ in range(runs)), make_series_list(False)], 0.3, Seeds(seed)
    )
    sides = [{trial.vector[0] for series in part for trial in series.trials} for part in (train, held_out)]
    assert sides[1] and not sides[0] & sides[1]


def test_targets_are_valid_unseen_parameters():
    """Repeated, non-grid and out-of-bounds parameters are shown but never used as targets."""
    vectors = [0.0, 0.0, 0.25, 9.0, 1.0]
    all_series = [
        TrialSeries(tuple(ParameterTrial(np.array([x]), np.array([float(i)])) for i, x in enumerate(vectors)), False)
    ]
    space_ = space((-5.0, 5.0), decimals=1)

    def proposable(vector):
        return np.array_equal(space_.round_values(vector), vector)

    examples = make_examples(all_series, 60, 1, 1, Seeds(0), "here", proposable)
    pairs = {(e.trials[0].value, None if e.target is None else e.target.vector[0]) for e in examples}
    assert {(value, target) for value, target in pairs if value < 4} >= {(2.0, 1.0), (3.0, 1.0)}
    assert {target for value, target in pairs if value == 0.0} == {1.0}, "not 0 again, which had a lucky trial"
    assert (4.0, None) in pairs and {target for _, target in pairs} == {1.0, None}


def test_search_histories_precede_better_targets():
    all_series = [make_series(30, is_search=True), make_series(50, is_search=False, start=1)]
    place = {id(trial): i for i, trial in enumerate(all_series[0].trials)}
    pool = [trial.value for series in all_series for trial in series.trials]
    latest = set()
    examples = make_examples(all_series, 300, 2, 5, Seeds(0), "here")
    for example in examples:
        assert 2 <= len(example.trials) <= 5 and len({id(trial) for trial in example.trials}) == len(example.trials)
        if id(example.trials[0]) in place:
            order = [place[id(trial)] for trial in example.trials]
            assert order == sorted(order)
            latest.add(order[-1])
        if example.target is None:
            assert example.best_value == max(pool)
        else:
            assert example.target.value > example.best_value
    assert {len(example.trials) for example in examples} == {2, 3, 4, 5}
    assert min(latest) < 8 and max(latest) > 25
    repeated = make_examples(all_series, 100, 2, 5, Seeds(0), "here")
    assert [e.trials for e in repeated] == [e.trials for e in examples[:100]]
    assert [e.target for e in repeated] == [e.target for e in examples[:100]]


def test_lucky_trial_is_not_target():
    """The value of repeated parameters is the mean over all their trials."""
    outcomes = [(0.0, 5.0), (1.0, 9.0), (1.0, 1.0), (1.0, 2.0), (2.0, 6.0)]
    trials = tuple(ParameterTrial(np.array([x, 0.0]), np.array([value, value])) for x, value in outcomes)
    examples = make_examples([TrialSeries(trials, False)], 80, 1, 1, Seeds(0), "here")
    pairs = {(e.trials[0].value, None if e.target is None else e.target.vector[0]) for e in examples}
    assert pairs == {(5.0, 2.0), (9.0, None), (6.0, None), *((x, y) for x in (1.0, 2.0) for y in (0.0, 2.0))}


def test_prompts_state_search_episodes():
    def prompt_counts(*episodes, trials=0):
        return build_dataset(trials=trials, runs=["x"])._get_episodes_per_proposal(
            [TrialSeries((), True, n) for n in episodes]
        )

    assert prompt_counts(5, 5) == 5 and prompt_counts(20, trials=8) == 20
    with pytest.raises(ConfigError, match=r"5 and 6; .*search\.episodes"):
        prompt_counts(5, 6)
    with pytest.raises(ConfigError, match=r"5 and 20; .*dataset\.episodes=20"):
        prompt_counts(5, trials=8)


def test_small_dataset_raises():
    with pytest.raises(ConfigError, match=r"dataset\.examples=5 .* 4 held out"):
        make_examples([make_series(4, is_search=False)], 1, 1, 5, Seeds(0), "held out")
