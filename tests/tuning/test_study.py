"""Studies of hyperparameters with Optuna and SQLite: trials, resuming after crashes and invalid options."""

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
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import commands
from full_disk import limit_file_size
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.tuning.study import AGGREGATE_FUNCTIONS, STUDY_FILE_NAME, Study, TuningSettings
from some import mark_long_except

SPACE = {
    "agent.rate": FloatDistribution(1e-5, 1e-1, log=True),
    "agent.epochs": IntDistribution(1, 8),
    "principal": CategoricalDistribution(("ucb", "egreedy")),
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


def open_study(folder, space=SPACE, seeds=("0", "1"), fixed=FIXED, **changes):
    return Study(folder, settings(**changes), space, seeds, fixed)


def score(trial, seed):
    """Best at rate=1e-3 and principal=ucb."""
    import math

    values = dict(override.split("=") for override in trial.overrides)
    distance = abs(math.log10(float(values["agent.rate"])) + 3)
    return -distance - (values["principal"] != "ucb") + 0.01 * int(seed)


def search(folder, stop_after=None, **changes):
    """Search to the end, or exit the process after `stop_after` steps (asks and tells)."""
    steps = itertools.count(1)
    with open_study(folder, **changes) as study:
        while batch := study.next_batch():
            if next(steps) == stop_after:
                return None
            for trial in batch:
                study.tell(trial, [score(trial, seed) for seed in study.seeds])
                if next(steps) == stop_after:
                    return None
        study.write("llmrl-train again")
        return study.list_trials()


@pytest.mark.slow
def test_sampler_seeds_differ(tmp_path):
    """NumPy divides 2**32 + 7 into the words 7 and 1."""
    small = search(tmp_path / "small", sampler="random", sampler_seed=7, trials=4)
    large = search(tmp_path / "large", sampler="random", sampler_seed=2**32 + 7, trials=4)
    assert not {trial.overrides[0] for trial in small} & {trial.overrides[0] for trial in large}


def search_with_pruning(folder, stop_after=None, **changes):
    """Search seed by seed; exit the process after `stop_after` results if it is given."""
    steps = itertools.count(1)
    with open_study(folder, seeds=("0", "1", "2"), pruner="median", parallel_trials=1, **changes) as study:
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
        return study.list_trials()


def test_trials_below_median_are_pruned(tmp_path):
    trials = search_with_pruning(tmp_path, sampler="random")
    assert len(trials) == 12 and {trial.state for trial in trials} == {"finished", "pruned"}
    assert {len(trial.results) for trial in trials if trial.state == "pruned"} == {1}
    completed_trials = []
    for i, trial in enumerate(trials):
        first = score(trial, 0)
        unpromising = len(completed_trials) >= 2 and first < statistics.median(completed_trials)
        assert (trial.state == "pruned") == unpromising, i
        assert (trial.value is None) == unpromising
        completed_trials += [] if unpromising else [first]
    with open_study(tmp_path, seeds=("0", "1", "2"), pruner="median", parallel_trials=1, sampler="random") as study:
        assert [trial.state for trial in study.rank_trials()] == ["finished"] * len(completed_trials)


@pytest.mark.parametrize("stops", mark_long_except([(2, 15)], [(2, 15), (1, 8)]))
def test_pruned_search_resumes_exactly(tmp_path, stops):
    reference = search_with_pruning(tmp_path / "whole")
    for stop_after in stops:
        folder = tmp_path / str(stop_after)
        assert search_with_pruning(folder, stop_after) is None
        assert search_with_pruning(folder) == reference


@pytest.mark.parametrize(
    ("sampler", "stops"),
    [
        ("tpe", (2, 6)),
        pytest.param("tpe", (1, 15), marks=pytest.mark.long),
        pytest.param("random", (1, 2, 6, 15), marks=pytest.mark.long),
    ],
)
def test_search_resumes_exactly(tmp_path, sampler, stops):
    reference = search(tmp_path / "whole", sampler=sampler)
    assert len(reference) == 12 and len({tuple(trial.overrides) for trial in reference}) == 12
    for stop_after in stops:
        folder = tmp_path / str(stop_after)
        assert search(folder, stop_after, sampler=sampler) is None
        assert search(folder, sampler=sampler) == reference
    assert search(tmp_path / "other", sampler=sampler, sampler_seed=1)[0].overrides != reference[0].overrides


@pytest.mark.long
@pytest.mark.slow
def test_partial_trial_is_discarded(tmp_path):
    reference = search(tmp_path / "whole")
    search(tmp_path / "torn", stop_after=5)
    with open_study(tmp_path / "torn") as study:
        study._study.ask({"agent.rate": SPACE["agent.rate"]})
    assert [trial.overrides for trial in search(tmp_path / "torn")] == [trial.overrides for trial in reference]


@pytest.mark.long
@pytest.mark.slow
def test_tpe_beats_random_search(tmp_path):
    late = {}
    for sampler in ("tpe", "random"):
        trials = search(tmp_path / sampler, sampler=sampler, trials=40, parallel_trials=1)
        late[sampler] = sum(trial.value for trial in trials[20:]) / 20
    assert late["tpe"] > late["random"] + 0.3


@pytest.mark.slow
def test_trial_count_can_be_extended(tmp_path):
    first = search(tmp_path, trials=4)
    assert [trial.state for trial in first] == ["finished"] * 4
    assert search(tmp_path, trials=4) == first
    assert search(tmp_path, trials=7)[:4] == first
    assert len(search(tmp_path, trials=7)) == 7
    with open_study(tmp_path, trials=2) as study:
        assert study.next_batch() == []


def test_pending_trials_precede_new_trials(tmp_path):
    with open_study(tmp_path) as study:
        pending = study.next_batch()
        study.tell(pending[1], [0.0, 0.0])
    with open_study(tmp_path, parallel_trials=1) as study:
        for trial in (pending[0], pending[2]):
            assert study.next_batch() == [trial]
            study.tell(trial, [0.0, 0.0])
        assert [trial.number for trial in study.next_batch()] == [3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("aggregate", "value"), [("mean", 21.8), ("median", 3.0), ("iqm", 8 / 3), ("min", 1.0), ("max", 100.0)]
)
def test_aggregates(tmp_path, aggregate, value):
    assert aggregate in AGGREGATE_FUNCTIONS
    with open_study(tmp_path, seeds=("0", "1", "2", "3", "4"), aggregate=aggregate) as study:
        record = study.tell(study.next_batch()[0], [100.0, 1.0, 3.0, 2.0, 3.0])
    assert record.value == pytest.approx(value)


def test_failing_seed_fails_trial(tmp_path):
    with open_study(tmp_path, trials=2, parallel_trials=1) as study:
        bad = study.tell(study.next_batch()[0], [1.0, "ValueError: no"])
        assert (bad.state, bad.value) == ("failed", None)
        for _ in range(2):
            good = study.next_batch()[0]
            assert good.overrides != bad.overrides
            study.tell(good, [1.0, 2.0])
        assert study.next_batch() == []
        assert [trial.state for trial in study.list_trials()] == ["failed", "finished", "finished"]
        assert study.list_trials()[0].results == {"0": 1.0, "1": "ValueError: no"}
        assert [trial.number for trial in study.rank_trials()] == [1, 2]


def test_best_respects_direction(tmp_path):
    for direction, best in (("maximize", 3.0), ("minimize", -1.0)):
        with open_study(tmp_path / direction, direction=direction) as study:
            for trial, value in zip(study.next_batch(), (2.0, 3.0, -1.0), strict=True):
                study.tell(trial, [value, value])
            assert study.rank_trials()[0].value == best


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
def test_importances_identify_relevant_parameters(tmp_path):
    search(tmp_path, trials=30, sampler="random")
    with open_study(tmp_path, trials=30, sampler="random") as study:
        shares = study.compute_importances()
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["agent.rate"] == max(shares.values())
    with open_study(tmp_path / "few") as study:
        assert study.compute_importances() == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"seeds": ("0", "1", "2")}, "mean .*0, 1 .*mean .*0, 1, 2", marks=pytest.mark.long),
        pytest.param({"direction": "minimize"}, " minimize .*0, 1", marks=pytest.mark.long),
        ({"aggregate": "iqm"}, "mean .* iqm "),
        pytest.param({"fixed": ["env=cleanup"]}, "env .*escape_room .*cleanup", marks=pytest.mark.long),
        ({"fixed": [*FIXED, "env.n_envs=9"]}, "env.n_envs .* 9"),
        ({"space": {**SPACE, "agent.epochs": IntDistribution(1, 9)}}, "agent.epochs .*whole numbers"),
        ({"space": {"principal": SPACE["principal"]}}, "agent.rate .*1e-05 to 0.1, log"),
        ({"space": {**SPACE, "principal": CategoricalDistribution(("ucb",))}}, "ucb, egreedy .* ucb"),
    ],
)
def test_name_conflict_raises(tmp_path, changes, message):
    open_study(tmp_path).__exit__(None, None, None)
    with pytest.raises(ConfigError, match=rf"{message}.*hydra\.sweeper\.study=<name>"):
        open_study(tmp_path, **changes)
    with open_study(tmp_path, study="another", **changes) as study:  # a name of its own works, even in the same folder
        assert study.next_batch()


def test_irrelevant_settings_may_change(tmp_path):
    search(tmp_path, trials=3)
    fixed = ["hardware=gpu", "env=escape_room", "llm.cache=off"]
    with open_study(tmp_path, fixed=fixed, trials=5, parallel_trials=2, sampler="random", sampler_seed=3) as study:
        assert len(study.next_batch()) == 2


@pytest.mark.slow
def test_study_is_locked_by_process(tmp_path):
    holder = commands.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path), json.dumps(settings().__dict__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"process {holder.pid}"):
            open_study(tmp_path)
    finally:
        holder.kill()  # not a word of good-bye, and the study is free at once
        holder.communicate()
    open_study(tmp_path).__exit__(None, None, None)
    open_study(tmp_path).__exit__(None, None, None)


_HOLD = """
import json, sys
from pathlib import Path
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from llmrl.tuning.study import Study, TuningSettings
space = {
    "agent.rate": FloatDistribution(1e-5, 1e-1, log=True),
    "agent.epochs": IntDistribution(1, 8),
    "principal": CategoricalDistribution(("ucb", "egreedy")),
}
study = Study(Path(sys.argv[1]), TuningSettings(**json.loads(sys.argv[2])), space, ["0", "1"], ["env=escape_room"])
print("held", flush=True)
sys.stdin.read()
"""


def test_corrupt_database_is_preserved(tmp_path):
    (tmp_path / "study.db").write_bytes(b"not a database" * 100)
    with pytest.raises(RunFolderError, match=r"study.db"):
        open_study(tmp_path)
    assert (tmp_path / "study.db").read_bytes().startswith(b"not a database")
    assert not (tmp_path / "owner.json").exists()


def test_unwritable_location(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="output_root"):
        open_study(tmp_path / "file" / "study")


def test_optuna_requires_explicit_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"'llmrl\[tuning\]'"):
        open_study(tmp_path)


def test_database_is_readable_by_optuna(tmp_path):
    search(tmp_path, trials=3)
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert len(study.trials) == 3 and study.direction.name == "MAXIMIZE"


def test_full_disk_study_resumes(tmp_path):
    with open_study(tmp_path) as study:
        trial, *remaining = study.next_batch()
        room = (tmp_path / STUDY_FILE_NAME).stat().st_size
        with limit_file_size(room), pytest.raises(RunFolderError, match=r"hydra\.sweeper\.folder"):
            for _ in range(200):
                study.tell(trial, ["x" * 20_000, 0.5])
        record = study.tell(trial, [1.0, 0.5])
    assert record.state == "finished" and len(remaining) == 2
    with open_study(tmp_path) as reopened:
        assert [trial.state for trial in reopened.list_trials()] == ["finished", "running", "running"]
