"""The study: what it tries, how it goes on after a crash, what it refuses. Real Optuna, real SQLite."""

import csv
import itertools
import json
import os
import statistics
import subprocess
import sys

import optuna
import pytest
import yaml

import commands
from full_disk import no_file_larger_than
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.tuning.space import CategoricalChoice, NumericRange
from llmrl.tuning.study import AGGREGATES, STUDY_NAME, Study, TuningSettings

SPACE = {
    "agent.rate": NumericRange(1e-5, 1e-1, log=True),
    "agent.epochs": NumericRange(1, 8, integer=True),
    "principal": CategoricalChoice(("ucb", "egreedy")),
}
FIXED = ["env=escape_room", "hardware=cpu"]


def settings(**changes):
    usual = {
        "study": "search",
        "folder": None,
        "trials": 12,
        "parallel_trials": 3,
        "direction": "maximize",
        "aggregate": "mean",
        "sampler": "tpe",
        "sampler_seed": 0,
        "pruner": "none",
        "pruner_startup_trials": 2,
        "max_failures": 3,
    }
    return TuningSettings(**{**usual, **changes})


def opened(folder, space=SPACE, seeds=("0", "1"), fixed=FIXED, **changes):
    return Study(folder, settings(**changes), space, seeds, fixed)


def score(trial, seed):
    """Best at rate=1e-3 and principal=ucb."""
    import math

    values = dict(override.split("=") for override in trial.overrides)
    distance = abs(math.log10(float(values["agent.rate"])) + 3)
    return -distance - (values["principal"] != "ucb") + 0.01 * int(seed)


def search(folder, stop_after=None, **changes):
    """Search to the end, or die after so many steps (an asked batch, a told trial) without any good-bye."""
    steps = itertools.count(1)
    with opened(folder, **changes) as study:
        while batch := study.next_batch():
            if next(steps) == stop_after:
                return None
            for trial in batch:
                study.tell(trial, [score(trial, seed) for seed in study.seeds])
                if next(steps) == stop_after:
                    return None
        study.write("llmrl-train again")
        return study.trials()


@pytest.mark.slow
def test_samplers_of_different_seeds_do_not_share_trials(tmp_path):
    """NumPy divides 2**32 + 7 into the words 7 and 1."""
    small = search(tmp_path / "small", sampler="random", sampler_seed=7)
    large = search(tmp_path / "large", sampler="random", sampler_seed=2**32 + 7)
    assert not {trial.overrides[0] for trial in small} & {trial.overrides[0] for trial in large}


def search_with_pruning(folder, stop_after=None, **changes):
    """Search seed by seed; die after so many results if asked to."""
    steps = itertools.count(1)
    with opened(folder, seeds=("0", "1", "2"), pruner="median", parallel_trials=1, **changes) as study:
        while batch := study.next_batch():
            [trial] = batch
            results = []
            for seed in study.seeds:
                results.append(score(trial, seed))
                if next(steps) == stop_after:
                    return None
                if len(results) == len(study.seeds):
                    study.tell(trial, results)
                elif study.prune(trial, results) is not None:
                    break
        return study.trials()


def test_trials_below_the_median_are_pruned_after_their_first_seed(tmp_path):
    trials = search_with_pruning(tmp_path, sampler="random")
    assert len(trials) == 12 and {trial.state for trial in trials} == {"finished", "pruned"}
    assert {len(trial.results) for trial in trials if trial.state == "pruned"} == {1}
    finished = []
    for i, trial in enumerate(trials):
        first = score(trial, 0)
        unpromising = len(finished) >= 2 and first < statistics.median(finished)
        assert (trial.state == "pruned") == unpromising, i
        assert (trial.value is None) == unpromising
        finished += [] if unpromising else [first]
    with opened(tmp_path, seeds=("0", "1", "2"), pruner="median", parallel_trials=1, sampler="random") as study:
        assert [trial.state for trial in study.ranking()] == ["finished"] * len(finished)


def test_a_pruned_search_broken_off_anywhere_ends_like_another(tmp_path):
    whole = search_with_pruning(tmp_path / "whole")
    for stop_after in (1, 2, 8, 15):
        folder = tmp_path / str(stop_after)
        assert search_with_pruning(folder, stop_after) is None
        assert search_with_pruning(folder) == whole


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_broken_off_anywhere_tries_what_it_would_have_tried(tmp_path, sampler):
    whole = search(tmp_path / "whole", sampler=sampler)
    assert len(whole) == 12 and len({tuple(trial.overrides) for trial in whole}) == 12
    for stop_after in (1, 2, 6, 15):
        folder = tmp_path / str(stop_after)
        assert search(folder, stop_after, sampler=sampler) is None
        assert search(folder, sampler=sampler) == whole
    assert search(tmp_path / "other", sampler=sampler, sampler_seed=1)[0].overrides != whole[0].overrides


@pytest.mark.slow
def test_a_trial_that_was_only_half_drawn_is_no_trial(tmp_path):
    whole = search(tmp_path / "whole")
    search(tmp_path / "torn", stop_after=5)
    with opened(tmp_path / "torn") as study:
        study._study.ask({"agent.rate": SPACE["agent.rate"].distribution()})
    assert [trial.overrides for trial in search(tmp_path / "torn")] == [trial.overrides for trial in whole]


@pytest.mark.slow
def test_tpe_finds_what_random_search_does_not_look_for(tmp_path):
    late = {}
    for sampler in ("tpe", "random"):
        trials = search(tmp_path / sampler, sampler=sampler, trials=40, parallel_trials=1)
        late[sampler] = sum(trial.value for trial in trials[20:]) / 20
    assert late["tpe"] > late["random"] + 0.3


@pytest.mark.slow
def test_finished_trials_count_and_more_may_be_asked_for(tmp_path):
    first = search(tmp_path, trials=4)
    assert [trial.state for trial in first] == ["finished"] * 4
    assert search(tmp_path, trials=4) == first
    assert search(tmp_path, trials=7)[:4] == first
    assert len(search(tmp_path, trials=7)) == 7
    with opened(tmp_path, trials=2) as study:
        assert study.next_batch() == []


def test_what_was_left_is_finished_before_anything_new(tmp_path):
    with opened(tmp_path) as study:
        left = study.next_batch()
        study.tell(left[1], [0.0, 0.0])
    with opened(tmp_path, parallel_trials=1) as study:
        for trial in (left[0], left[2]):
            assert study.next_batch() == [trial]
            study.tell(trial, [0.0, 0.0])
        assert [trial.number for trial in study.next_batch()] == [3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("aggregate", "value"), [("mean", 21.8), ("median", 3.0), ("iqm", 8 / 3), ("min", 1.0), ("max", 100.0)]
)
def test_aggregates(tmp_path, aggregate, value):
    assert aggregate in AGGREGATES
    with opened(tmp_path, seeds=("0", "1", "2", "3", "4"), aggregate=aggregate) as study:
        told = study.tell(study.next_batch()[0], [100.0, 1.0, 3.0, 2.0, 3.0])
    assert told.value == pytest.approx(value)


def test_a_trial_with_a_failed_seed_is_failed_and_another_is_tried(tmp_path):
    with opened(tmp_path, trials=2, parallel_trials=1) as study:
        bad = study.tell(study.next_batch()[0], [1.0, "ValueError: no"])
        assert (bad.state, bad.value) == ("failed", None)
        for _ in range(2):
            good = study.next_batch()[0]
            assert good.overrides != bad.overrides
            study.tell(good, [1.0, 2.0])
        assert study.next_batch() == []
        assert [trial.state for trial in study.trials()] == ["failed", "finished", "finished"]
        assert study.trials()[0].results == {"0": 1.0, "1": "ValueError: no"}
        assert [trial.number for trial in study.ranking()] == [1, 2]


def test_the_best_is_the_best_in_the_direction_asked_for(tmp_path):
    for direction, best in (("maximize", 3.0), ("minimize", -1.0)):
        with opened(tmp_path / direction, direction=direction) as study:
            for trial, value in zip(study.next_batch(), (2.0, 3.0, -1.0), strict=True):
                study.tell(trial, [value, value])
            assert study.ranking()[0].value == best


def test_files_for_people(tmp_path):
    trials = search(tmp_path, trials=5, seeds=("0", "7"))
    rows = list(csv.DictReader((tmp_path / "trials.csv").open()))
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3", "4"]
    for row, trial in zip(rows, trials, strict=True):
        assert [f"{key}={row[key]}" for key in SPACE] == trial.overrides
        assert float(row["mean"]) == trial.value
        assert float(row["seed=7"]) == trial.results["7"]
    best = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert best["mean"] == max(trial.value for trial in trials)
    assert best["overrides"] == trials[best["trial"]].overrides
    assert best["command"] == "llmrl-train again"


@pytest.mark.slow
def test_importances_name_what_matters(tmp_path):
    search(tmp_path, trials=30, sampler="random")
    with opened(tmp_path, trials=30, sampler="random") as study:
        shares = study.importances()
        figure = study.draw_importances()
    assert figure == study.folder / "importances.png" and figure.read_bytes().startswith(b"\x89PNG")
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["agent.rate"] == max(shares.values())
    with opened(tmp_path / "few") as study:
        assert study.importances() == {} and study.draw_importances() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ("0", "1", "2")}, "the objective was maximize the mean over seeds 0, 1 and is maximize the mean"),
        ({"direction": "minimize"}, "is minimize the mean over seeds 0, 1"),
        ({"aggregate": "iqm"}, "is maximize the iqm"),
        ({"fixed": ["env=cleanup"]}, "env was escape_room and is cleanup"),
        ({"fixed": [*FIXED, "env.n_envs=9"]}, "env.n_envs was not given and is 9"),
        (
            {"space": {**SPACE, "agent.epochs": NumericRange(1, 9, integer=True)}},
            "agent.epochs was searched, whole numbers",
        ),
        ({"space": {"principal": SPACE["principal"]}}, "agent.rate was searched, numbers from 1e-05 to 0.1, log scale"),
        (
            {"space": {**SPACE, "principal": CategoricalChoice(("ucb",))}},
            "one of ucb, egreedy and is searched, one of ucb",
        ),
    ],
)
def test_another_search_is_refused_under_the_same_name(tmp_path, changes, message):
    opened(tmp_path).__exit__(None, None, None)
    with pytest.raises(ConfigError) as refusal:
        opened(tmp_path, **changes)
    assert message in str(refusal.value) and "hydra.sweeper.study=<name>" in str(refusal.value)
    with opened(tmp_path, study="another", **changes) as study:  # a name of its own works, even in the same folder
        assert study.next_batch()


def test_what_cannot_change_results_may_change(tmp_path):
    search(tmp_path, trials=3)
    fixed = ["hardware=gpu", "env=escape_room", "llm.cache=off"]
    with opened(tmp_path, fixed=fixed, trials=5, parallel_trials=2, sampler="random", sampler_seed=3) as study:
        assert len(study.next_batch()) == 2


@pytest.mark.slow
def test_a_study_is_held_by_one_process(tmp_path):
    holder = commands.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path), json.dumps(settings().__dict__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"in use by process {holder.pid}"):
            opened(tmp_path)
    finally:
        holder.kill()  # not a word of good-bye, and the study is free at once
        holder.communicate()
    opened(tmp_path).__exit__(None, None, None)
    opened(tmp_path).__exit__(None, None, None)


_HOLD = """
import json, sys
from pathlib import Path
from llmrl.tuning.space import CategoricalChoice, NumericRange
from llmrl.tuning.study import Study, TuningSettings
space = {
    "agent.rate": NumericRange(1e-5, 1e-1, log=True),
    "agent.epochs": NumericRange(1, 8, integer=True),
    "principal": CategoricalChoice(("ucb", "egreedy")),
}
study = Study(Path(sys.argv[1]), TuningSettings(**json.loads(sys.argv[2])), space, ["0", "1"], ["env=escape_room"])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_damaged_database_is_named_and_left_alone(tmp_path):
    (tmp_path / "study.db").write_bytes(b"not a database" * 100)
    with pytest.raises(RunFolderError, match=r"study.db cannot be used as a study \(.*not a database"):
        opened(tmp_path)
    assert (tmp_path / "study.db").read_bytes().startswith(b"not a database")
    assert not (tmp_path / "owner.json").exists()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="output_root"):
        opened(tmp_path / "file" / "study")


def test_optuna_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'llmrl\[tuning\]'"):
        opened(tmp_path)


def test_the_database_is_one_that_optuna_reads(tmp_path):
    search(tmp_path, trials=3)
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert len(study.trials) == 3 and study.direction.name == "MAXIMIZE"


def test_a_study_without_room_says_so_and_goes_on_with_room(tmp_path):
    with opened(tmp_path) as study:
        trial, *others = study.next_batch()
        room = (tmp_path / STUDY_NAME).stat().st_size
        with no_file_larger_than(room), pytest.raises(RunFolderError, match=r"MB are free in .*hydra\.sweeper\.folder"):
            for _ in range(200):
                study.tell(trial, ["x" * 20_000, 0.5])
        told = study.tell(trial, [1.0, 0.5])
    assert told.state == "finished" and len(others) == 2
    with opened(tmp_path) as again:
        assert [each.state for each in again.trials()] == ["finished", "running", "running"]
