"""`llmrl.train`, `plan`, `sweep` and `evaluate`: the same runs as from the command line, in any program."""

import json
import logging
import os
import signal
import sys
import threading
import time

import hypothesis.strategies as st
import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import given

import commands
import llmrl
from experiments import comparable_metrics, run_experiment
from llmrl.core.errors import CheckpointError, ConfigError, LlmrlError
from llmrl.core.typed_values import typed, typed_choices

TINY = {
    "env.n_envs": 2,
    "design.steps": 2,
    "design.adapt_rounds": 1,
    "design.validate_episodes": 2,
    "design.references": 0,
    "design.confirm_steps": 0,
    "design.evaluations": 0,
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_run_lands_where_the_command_line_would_put_it(here, capsys):
    run = llmrl.train("env=escape_room", "principal=ucb", seed=3, **TINY)
    assert run.folder.is_relative_to(here / "outputs" / "escape_room") and run.folder.name == "s3"
    assert run.state == "finished" and not run.skipped
    assert run.result == json.loads((run.folder / "status.json").read_text())["result"]
    assert run.summary["principal_steps"] == 2
    assert capsys.readouterr().out == ""
    # The command line finds it finished.
    words = ["env=escape_room", "principal=ucb", "seed=3", *(f"{key}={value}" for key, value in TINY.items())]
    command = f"import sys; sys.argv[1:] = {words!r}; from llmrl.cli.train import main; main()"
    said = commands.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert "finished" in said and str(run.folder.name) in said
    assert json.loads((run.folder / "status.json").read_text())["attempt"] == 1
    again = llmrl.train("env=escape_room", "principal=ucb", seed=3, **TINY)
    assert again.skipped and again.result == run.result and again.folder == run.folder


def test_numbers_are_those_of_a_run_composed_by_hydra(here):
    from experiments import compose as composed

    one = llmrl.train("env=escape_room", "principal=ucb", name="one", **TINY)
    words = ["env=escape_room", "principal=ucb", "name=two", *(f"{key}={value}" for key, value in TINY.items())]
    run_experiment(composed(*words), words, quiet=True)
    (two,) = (here / "outputs" / "two").glob("*/s0")
    assert comparable_metrics(one.folder) == comparable_metrics(two)


def test_it_works_inside_of_another_hydra_program(here):
    """Hydra's global state is as it was."""
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        before = GlobalHydra.instance().hydra
        llmrl.plan("env=escape_room", "principal=ucb", **TINY)
        assert GlobalHydra.instance().hydra is before
        assert compose("train", ["env=maze"]).env.id == "llmrl/Maze-v0"
    assert not GlobalHydra.instance().is_initialized()


def test_a_plan_runs_nothing(here):
    plan = llmrl.plan("env=escape_room", "principal=ucb", **TINY)
    assert dict(plan)["loop"] == "DesignLoop" and "DesignLoop" in repr(plan)
    assert not (here / "outputs").exists()


@pytest.mark.parametrize(
    ("overrides", "options", "said"),
    [
        (["env=escape_roomm"], {}, "escape_room"),
        (["env=escape_room", "env.n_env=3"], {}, "n_envs"),
        (["env=escape_room"], {"seed": -1}, "seed=-1"),
        (["env=escape_room", "principal=cmaes", "env.mechanism=false"], {}, "mechanism"),
        (["env=escape_room"], {"dry_run": True}, r"llmrl\.plan"),
        (["env=escape_room"], {"env.n_envs": object()}, "object cannot be typed"),
    ],
)
def test_what_cannot_be_is_an_error_with_words_and_no_exit(here, overrides, options, said):
    with pytest.raises(ConfigError, match=said):
        llmrl.train(*overrides, **options)


def test_a_failed_run_raises_and_is_recorded(here):
    with pytest.raises(LlmrlError):
        llmrl.train("env=escape_room", "principal=llm", "llm.refusal=1", **{**TINY, "llm.max_invalid.after": 1})
    assert llmrl.load(here / "outputs").runs.state.tolist() == ["failed"]


@pytest.mark.slow
def test_an_interrupt_leaves_a_run_that_goes_on(here):
    """As Ctrl-C, or a notebook's stop button, sends it: while the run is under way."""
    arguments = {**TINY, "design.steps": 150, "name": "long"}

    def interrupt():
        while not any('"proposal"' in path.read_text() for path in here.rglob("metrics.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt, match="Repeat the same command"):
        llmrl.train("env=escape_room", "principal=ucb", **arguments)
    assert signal.getsignal(signal.SIGINT) is before
    results = llmrl.load(here / "outputs")
    assert results.runs.state.tolist() == ["stopped"]
    done = len(results.proposals)
    run = llmrl.train("env=escape_room", "principal=ucb", **arguments)
    assert run.state == "finished" and 0 < done < 150 == len(run.load().proposals)
    assert run.load().runs.attempts.tolist() == [2]


def test_a_run_in_a_thread_leaves_signals_alone(here):
    found = []
    thread = threading.Thread(target=lambda: found.append(llmrl.train("env=escape_room", "principal=ucb", **TINY)))
    thread.start()
    thread.join()
    assert found[0].state == "finished"


@pytest.mark.slow
def test_warnings_are_shown_once_and_logging_is_left_as_it_was(here):
    """In a process of its own: pytest sets up logging."""
    code = (
        "import llmrl, logging\n"
        f"options = {TINY!r}\n"
        "for seed in (0, 1): llmrl.train('env=escape_room', 'principal=ucb', seed=seed, **options)\n"
        "print(logging.getLogger().handlers, logging.getLogger('llmrl').level)"
    )
    done = commands.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 0\n"
    assert done.stderr.count("WARNING: about 0 proposals") == 2  # once a run


def test_who_has_set_up_logging_hears_nothing_twice(here, caplog):
    llmrl.train("env=escape_room", "principal=ucb", **TINY)
    assert len([record for record in caplog.records if "close to a random search" in record.message]) == 1
    assert all("_heard" not in repr(handler) for handler in logging.getLogger().handlers)


@pytest.mark.slow
def test_a_sweep_computes_what_is_missing_side_by_side(here):
    first = llmrl.train("env=escape_room", "principal=ucb", seed=0, **TINY)
    runs = llmrl.sweep("env=escape_room", principal=["ucb", "random"], seed=range(2), parallel=2, **TINY)
    assert [run.state for run in runs] == ["finished"] * 4 and [run.seed for run in runs] == [0, 1, 0, 1]
    assert [run.skipped for run in runs] == [True, False, False, False] and runs[0].folder == first.folder
    assert not runs.unfinished and repr(runs) == "SweepResult(4 finished)"
    table = runs.load().runs
    assert sorted(zip(table.principal, table.seed, strict=True)) == [
        ("random", 0), ("random", 1), ("ucb", 0), ("ucb", 1)
    ]  # fmt: skip
    assert {run.result for run in runs} == set(table.result)


@pytest.mark.slow
def test_a_sweep_of_runs_that_fail_says_so(here, caplog):
    options = {**TINY, "llm.max_invalid.after": 1, "llm.refusal": [1.0, 0.99]}
    runs = llmrl.sweep("env=escape_room", "principal=llm", **options)
    assert [run.state for run in runs.unfinished] == ["failed"] * 2
    assert all(run.error for run in runs)
    assert sum(record.levelno == logging.ERROR for record in caplog.records) >= 2


@pytest.mark.parametrize(
    ("overrides", "options", "said"),
    [
        (["env=escape_room", "principal=ucb,nobody"], {}, "nobody"),
        (["hydra/sweeper=optuna"], {}, "--multirun"),
        (["env=escape_room"], {"seed": []}, "nothing to sweep over"),
        (["env=escape_room", "seed=0,,1"], {}, "seed=0,,1"),
        (["env=escape_room"], {"parallel": 0}, "parallel"),
        (["env=escape_room"], {"agent.init_from": ["nowhere", "elsewhere"]}, "nowhere"),
    ],
)
def test_a_sweep_that_makes_no_sense_starts_nothing(here, overrides, options, said):
    with pytest.raises(ConfigError, match=said):
        llmrl.sweep(*overrides, **options)
    assert not list(here.rglob("status.json"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run to be evaluated."""
    return llmrl.train("env=escape_room", "principal=ucb", output_root=tmp_path_factory.mktemp("trained"), **TINY)


def test_an_evaluation_is_that_of_the_command_line(here, trained):
    from llmrl.cli.evaluate import evaluate, parser

    found = llmrl.evaluate(
        trained, episodes=4, mechanism=[0, 1, 0, 0, 0], context=1, seed=7, policy=["student", "random"]
    )
    assert found["out"] == str(trained.folder / "evaluation") and found["context"] == "lever_1_works"
    words = ["--episodes", "4", "--mechanism", "0,1,0,0,0", "--context", "1", "--seed", "7"]
    words += ["--policy", "student,random", "--out", str(here / "other")]
    other = evaluate(parser().parse_args([str(trained.folder), *words]))
    assert [player["per_episode"] for player in found["players"]] == [p["per_episode"] for p in other["players"]]
    assert set(trained.load().episodes.policy) == {"student", "random"}


def test_several_mechanisms_are_compared(here, trained):
    found = llmrl.evaluate(trained, episodes=2, mechanism=["none", [0, 1, 0, 0, 0]], adapt=False)
    assert [each["name"] for each in found["mechanisms"]] == ["none", "0,1,0,0,0"]


def test_an_evaluation_in_another_environment(here, trained):
    found = llmrl.evaluate(trained, episodes=2, env={"horizon": 3})
    assert set(found["per_episode"]["length"]) <= {1, 2, 3} and "evaluation_horizon_3" in found["out"]


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"episodes": 0}, ConfigError, "episodes=0"),
        ({"mode": "greedy"}, ConfigError, "stochastic, deterministic, both"),
        ({"policy": "nobody"}, ConfigError, "there are student"),
        ({"mechanism": "most"}, ConfigError, "give words"),
        ({"suite_options": {"episodes": 2}}, ConfigError, "need a suite"),
        ({"suite": "nothing"}, ConfigError, "babyai_text"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(trained, options, error, said):
    with pytest.raises(error, match=said):
        llmrl.evaluate(trained, **options)


def test_a_folder_without_a_run_is_refused(here):
    with pytest.raises(CheckpointError, match="not a run folder"):
        llmrl.evaluate(here)


texts = st.text(st.characters(codec="ascii", exclude_categories=["C"], exclude_characters="$"))
keys = st.from_regex(r"[a-z_]{1,5}", fullmatch=True)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


def unquoted(value):
    """What Hydra hands on: texts without the quotes that they were typed in."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [unquoted(each) for each in value]
    return {unquoted(key): unquoted(each) for key, each in value.items()} if isinstance(value, dict) else value


@given(plain)
def test_a_value_of_python_is_read_as_itself(value):
    (override,) = OverridesParser.create().parse_overrides([typed("key", value)])
    assert str(unquoted(override.value())) == str(value)
    assert not override.is_sweep_override()


@given(st.lists(plain, min_size=2, max_size=3))
def test_choices_are_swept_over_one_by_one(values):
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    overrides = OverridesParser.create().parse_overrides([typed_choices("key", values)])
    ((*runs,),) = BasicSweeper.split_arguments(overrides, None)
    assert len(runs) == len(values)
