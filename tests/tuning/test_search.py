"""`llmrl-train --multirun hydra/sweeper=optuna` as a user runs it. Real processes, real launchers, kill -9."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import commands
from in_process import run_in_process
from llmrl.cli.train import main
from llmrl.results.run_records import read_runs
from some import mark_long_except

TEST_FOLDER = Path(__file__).parent
THIRD_PARTY = TEST_FOLDER.parent / "third_party"
SKILL_OPTIONS = {
    "_target_": "skilled_agent.SkilledAgent",
    "skill": 0.5,
    "breaks_above": 2.0,
    "pause_s": 0.0,
    "note": "none",
}
SEARCH = ("--multirun", "hydra/sweeper=optuna")
GAME = ("env=signal_game", "agent=skilled", "trusted_modules=[signal_game,skilled_agent]", "learn.env_steps=1")


@pytest.fixture
def options_folder(tmp_path):
    """Return a folder of options besides the package's, with a space in its name."""
    for group, name in (("env", "signal_game"), ("agent", "skilled")):
        target = tmp_path / "my options" / group / f"{name}.yaml"
        target.parent.mkdir(parents=True)
        source = THIRD_PARTY / "conf" / group / f"{name}.yaml"
        target.write_text(yaml.safe_dump(SKILL_OPTIONS) if name == "skilled" else source.read_text())
    return tmp_path / "my options"


def start(*arguments, cwd, folder=None):
    environment = dict(os.environ)
    options = [] if folder is None else ["--config-dir", str(folder)]
    return commands.Popen(
        [sys.executable, "-m", "llmrl.cli.train", *options, *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def search(*arguments, cwd, folder=None):
    """(exit code, all that was printed)."""
    process = start(*SEARCH, *arguments, cwd=cwd, folder=folder)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def trials(root, name="signal_game"):
    return list(csv.DictReader((root / "outputs" / name / "search" / "trials.csv").open()))


@pytest.mark.slow
def test_search_returns_best_command(tmp_path, options_folder):
    arguments = (*GAME, "seed=0,1", "agent.skill=interval(0,1)", "agent.note='a b','x=[1,2]'", "env.horizon=range(8,9)")
    options = ("hydra.sweeper.trials=3", "hydra.sweeper.parallel_trials=2", "hydra.sweeper.aggregate=min")
    code, output = search(*arguments, *options, cwd=tmp_path, folder=options_folder)
    assert code == 0, output
    rows = trials(tmp_path)
    assert [row["state"] for row in rows] == ["finished"] * 3
    runs = read_runs(tmp_path / "outputs")
    assert len(runs) == 6 and {run.state for run in runs} == {"finished"}
    for row in rows:
        trial_runs = [run for run in runs if run.overrides["agent.skill"] == row["agent.skill"]]
        results = {run.seed: run.result for run in trial_runs}
        assert float(row["min"]) == min(results.values()) == min(float(row["seed=0"]), float(row["seed=1"]))
        assert results[1] == float(row["seed=1"])
        for run in trial_runs:
            config = yaml.safe_load((run.folder / "config.yaml").read_text())
            assert config["agent"]["note"] == {"'a b'": "a b", "'x=[1,2]'": "x=[1,2]"}[row["agent.note"]]
            assert config["agent"]["skill"] == float(row["agent.skill"])
    best = yaml.safe_load((tmp_path / "outputs/signal_game/search/best.yaml").read_text())
    assert best["min"] == max(float(row["min"]) for row in rows)
    # The command that is printed and kept finds the very runs: nothing is left to do.
    assert f": {best['command']}\n" in output
    words = shlex.split(best["command"])
    assert words[0] == "llmrl-train" and "--config-dir" in words
    second_search = start(*words[1:], cwd=tmp_path)
    assert second_search.communicate(timeout=100) and second_search.returncode == 0
    assert [run.attempt for run in read_runs(tmp_path / "outputs")] == [1] * 6
    code, output = search(*arguments, "agent.pause_s=1", *options, cwd=tmp_path, folder=options_folder)
    assert code == 1 and re.search("agent.pause_s .* 1\\b", output)


@pytest.mark.long
@pytest.mark.slow
def test_pruned_trial_skips_remaining_seeds(tmp_path, options_folder):
    arguments = (
        *GAME,
        "seed=0,1",
        "agent.skill=interval(0,1)",
        "hydra.sweeper.trials=6",
        "hydra.sweeper.sampler=random",
    )
    options = ("hydra.sweeper.pruner=median", "hydra.sweeper.pruner_startup_trials=1")
    code, output = search(*arguments, *options, cwd=tmp_path, folder=options_folder)
    assert code == 0, output
    states = [row["state"] for row in trials(tmp_path)]
    n_pruned = states.count("pruned")
    assert 0 < n_pruned < 6 and states.count("finished") == 6 - n_pruned
    assert len(read_runs(tmp_path / "outputs")) == 12 - n_pruned
    assert all(row["seed=0"] and not row["seed=1"] for row in trials(tmp_path) if row["state"] == "pruned")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "llmrl"])
def test_search_sigkill_repeats_no_trial(tmp_path, options_folder, launcher):
    arguments = (*GAME, "seed=0,1", "agent.skill=interval(0,1)", f"hydra/launcher={launcher}", "agent.pause_s=0.5")
    options = ("hydra.sweeper.trials=6", "hydra.sweeper.parallel_trials=2")
    killed_search, reference = tmp_path / "killed", tmp_path / "whole"
    killed_search.mkdir(), reference.mkdir()
    process = start(*SEARCH, *arguments, *options, cwd=killed_search, folder=options_folder)

    def list_finished():
        records = read_runs(killed_search / "outputs") if (killed_search / "outputs").exists() else []
        return [run for run in records if run.state == "finished"]

    while len(list_finished()) < 5 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished_runs = {run.folder: run for run in list_finished()}
    assert 5 <= len(finished_runs) < 12
    code, output = search(*arguments, *options, cwd=killed_search, folder=options_folder)
    assert code == 0, output
    after = {run.folder: run for run in read_runs(killed_search / "outputs")}
    assert len(after) == 12 and {run.state for run in after.values()} == {"finished"}
    for folder, run in finished_runs.items():
        assert (after[folder].attempt, after[folder].updated) == (1, run.updated)
    # A third time there is nothing left to do, and an uninterrupted search has tried the same.
    code, output = search(*arguments, *options, cwd=killed_search, folder=options_folder)
    assert code == 0 and {run.folder: run for run in read_runs(killed_search / "outputs")} == after
    code, output = search(*arguments, *options, cwd=reference, folder=options_folder)
    assert code == 0 and trials(reference) == trials(killed_search)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("launcher", mark_long_except(["llmrl"], ["basic", "llmrl"]))
def test_failing_trials_end_search(tmp_path, options_folder, launcher):
    arguments = (*GAME, "seed=0,1", "agent.skill=interval(0,1)", f"hydra/launcher={launcher}")
    breaks = ("agent.breaks_above=0.6", "hydra.sweeper.trials=2", "hydra.sweeper.max_failures=9")
    code, output = search(*arguments, *breaks, "hydra.sweeper.study=some", cwd=tmp_path, folder=options_folder)
    assert code == 0, output
    rows = list(csv.DictReader((tmp_path / "outputs/signal_game/some/trials.csv").open()))
    assert [float(row["agent.skill"]) <= 0.6 for row in rows] == [row["state"] == "finished" for row in rows]
    assert sum(row["state"] == "finished" for row in rows) == 2 and len(rows) > 2
    assert "Failed trials" in output
    failed = next(row for row in rows if row["state"] == "failed")
    assert "too much" in failed["seed=0"] and failed["mean"] == ""
    breaks = ("agent.breaks_above=-1", "hydra.sweeper.max_failures=2", "name=all")
    code, output = search(*arguments, *breaks, cwd=tmp_path, folder=options_folder)
    assert code == 1 and re.search("2 trials .* seed 0: ", output)
    assert [row["state"] for row in trials(tmp_path, "all")] == ["failed", "failed"]
    tracebacks = list((tmp_path / "outputs" / "all").rglob("traceback.txt"))
    assert len(tracebacks) == 4 and all("ZeroDivisionError" in path.read_text() for path in tracebacks)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["basic", "llmrl"])
def test_interrupted_trial_is_not_failure(tmp_path, options_folder, launcher):
    arguments = (*GAME, "seed=0,1", "agent.skill=interval(0,1)", f"hydra/launcher={launcher}", "hydra.sweeper.trials=2")
    slow = ("agent.pause_s=0.3", "learn.env_steps=128")
    process = start(*SEARCH, *arguments, *slow, cwd=tmp_path, folder=options_folder)
    while process.poll() is None:
        if list(tmp_path.rglob("owner.json")) and any(r.state == "running" for r in read_runs(tmp_path / "outputs")):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=100)
    assert process.returncode != 0, output
    code, output = search(*arguments, *slow, cwd=tmp_path, folder=options_folder)
    assert code == 0, output
    assert [(row["trial"], row["state"]) for row in trials(tmp_path)] == [("0", "finished"), ("1", "finished")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("seed=0,1",), "than seed"),
        (("design.steps=1,2", "hydra.sweeper.aggregate=mode"), "hydra.sweeper.aggregate='mode': "),
        (("design.steps=1,2", "hydra.sweeper.trials=0"), "hydra.sweeper.trials=0: "),
        (("design.steps=1,2", "hydra.sweeper.trails=9"), "trails"),
        (("design.stepz=range(1,3)",), " mean steps?"),
        (("principal=ucb,thomson",), "thomson"),
        (("principal=ucb,thompson", "principal.coefficient=interval(0,1)"), "'coefficient'"),
        (("env=escape_room,cleanup",), "name=<name>"),
    ],
)
def test_invalid_searches_raise_early(tmp_path, arguments, message):
    words = (*SEARCH, "env=escape_room", "principal=ucb", *arguments)
    done = run_in_process(main, "llmrl-train", *words, cwd=tmp_path, environment=dict(os.environ))
    assert done.returncode == 1 and message in done.stdout + done.stderr, done.stdout + done.stderr
    assert not list(tmp_path.rglob("status.json"))


@pytest.mark.slow
def test_space_from_file(tmp_path, options_folder):
    preset = options_folder / "experiment" / "mine.yaml"
    preset.parent.mkdir()
    space = {"agent.skill": "interval(0.2,0.3)", "agent.note": "a,b"}
    preset.write_text("# @package _global_\n" + json.dumps({"hydra": {"sweeper": {"params": space, "trials": 2}}}))
    code, output = search(*GAME, "experiment=mine", "agent.note=c,d", cwd=tmp_path, folder=options_folder)
    assert code == 0, output
    rows = trials(tmp_path)
    assert len(rows) == 2 and {row["agent.note"] for row in rows} <= {"c", "d"}
    assert all(0.2 <= float(row["agent.skill"]) <= 0.3 for row in rows)


def test_optuna_loads_lazily(tmp_path):
    """Hydra imports every plugin whatever the command: the sweeper's module must cost nothing."""
    command = ["llmrl-train", "--cfg", "job", "hydra/sweeper=optuna"]
    script = f"import sys; sys.argv = {command!r}; from llmrl.cli.train import main; main(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert done.returncode == 0 and "hydra_plugins.llmrl_optuna.sweeper" in loaded
    assert not {"optuna", "sqlalchemy", "torch", "llmrl.tuning", "hydra_plugins.llmrl_optuna._grammar"} & {*loaded}
