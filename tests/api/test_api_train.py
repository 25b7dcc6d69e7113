"""`llmrl.train`, `plan`, `sweep` and `evaluate`: the runs of the command line, from any program."""

import json
import logging
import os
import signal
import sys
import threading
import time
from http import HTTPStatus

import hypothesis.strategies as st
import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import given

import commands
import llmrl
from experiments import load_comparable_metrics, run_experiment
from llmrl.core.errors import CheckpointError, ConfigError, LlmrlError
from llmrl.core.override_text import format_override

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
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_run_folder_matches_command_line(workdir, capsys):
    run = llmrl.train("env=escape_room", "principal=ucb", seed=3, **TINY)
    assert run.folder.is_relative_to(workdir / "outputs" / "escape_room") and run.folder.name == "s3"
    assert run.state == "finished" and not run.skipped
    assert run.result == json.loads((run.folder / "status.json").read_text())["result"]
    assert run.summary["principal_steps"] == 2
    assert capsys.readouterr().out == ""
    # The command line finds it finished.
    words = ["env=escape_room", "principal=ucb", "seed=3", *(f"{key}={value}" for key, value in TINY.items())]
    command = f"import sys; sys.argv[1:] = {words!r}; from llmrl.cli.train import main; main()"
    output = commands.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert "finished" in output and str(run.folder.name) in output
    assert json.loads((run.folder / "status.json").read_text())["attempt"] == 1
    second_run = llmrl.train("env=escape_room", "principal=ucb", seed=3, **TINY)
    assert second_run.skipped and second_run.result == run.result and second_run.folder == run.folder


def test_metrics_match_hydra_run(workdir):
    from experiments import compose as composed

    single = llmrl.train("env=escape_room", "principal=ucb", name="one", **TINY)
    words = ["env=escape_room", "principal=ucb", "name=two", *(f"{key}={value}" for key, value in TINY.items())]
    run_experiment(composed(*words), words)
    (two,) = (workdir / "outputs" / "two").glob("*/s0")
    assert load_comparable_metrics(single.folder) == load_comparable_metrics(two)


def test_train_works_inside_hydra_program(workdir):
    """Check that Hydra's global state is unchanged."""
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        initial = GlobalHydra.instance().hydra
        llmrl.plan("env=escape_room", "principal=ucb", **TINY)
        assert GlobalHydra.instance().hydra is initial
        assert compose("train", ["env=maze"]).env.id == "llmrl/Maze-v0"
    assert not GlobalHydra.instance().is_initialized()


def test_plan_starts_no_run(workdir):
    plan = llmrl.plan("env=escape_room", "principal=ucb", **TINY)
    assert dict(plan)["loop"] == "DesignLoop" and "DesignLoop" in repr(plan)
    assert not (workdir / "outputs").exists()


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        (["env=escape_roomm"], {}, "escape_room"),
        (["env=escape_room", "env.n_env=3"], {}, "n_envs"),
        (["env=escape_room"], {"seed": -1}, "seed=-1"),
        (["env=escape_room", "principal=cmaes", "env.mechanism=false"], {}, "mechanism"),
        (["env=escape_room"], {"dry_run": True}, r"llmrl\.plan"),
        (["env=escape_room"], {"env.n_envs": object()}, r"env\.n_envs.*override"),
    ],
)
def test_invalid_arguments_raise_errors(workdir, overrides, options, message):
    with pytest.raises(ConfigError, match=message):
        llmrl.train(*overrides, **options)


def test_failed_run_raises_and_is_recorded(workdir):
    with pytest.raises(LlmrlError):
        llmrl.train("env=escape_room", "principal=llm", "llm.refusal=1", **{**TINY, "llm.max_invalid.min_replies": 1})
    assert llmrl.load(workdir / "outputs").runs.state.tolist() == ["failed"]


@pytest.mark.slow
def test_interrupt_keeps_resumable_run(workdir):
    """Send the signal of Ctrl-C or a notebook's stop button during the run."""
    arguments = {**TINY, "design.steps": 60, "name": "long"}

    def interrupt():
        while not any('"proposal"' in path.read_text() for path in workdir.rglob("metrics.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    initial = signal.getsignal(signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        llmrl.train("env=escape_room", "principal=ucb", **arguments)
    assert signal.getsignal(signal.SIGINT) is initial
    results = llmrl.load(workdir / "outputs")
    assert results.runs.state.tolist() == ["stopped"]
    done = len(results.proposals)
    run = llmrl.train("env=escape_room", "principal=ucb", **arguments)
    assert run.state == "finished" and 0 < done < 60 == len(run.load().proposals)
    assert run.load().runs.attempts.tolist() == [2]


def test_thread_run_leaves_signal_handlers(workdir):
    handlers = []
    thread = threading.Thread(target=lambda: handlers.append(llmrl.train("env=escape_room", "principal=ucb", **TINY)))
    thread.start()
    thread.join()
    assert handlers[0].state == "finished"


@pytest.mark.slow
def test_warnings_are_shown_once(workdir):
    """Use a separate process, because pytest configures logging."""
    code = (
        "import llmrl, logging\n"
        f"options = {TINY!r}\n"
        "for seed in (0, 1): llmrl.train('env=escape_room', 'principal=ucb', seed=seed, **options)\n"
        "print(logging.getLogger().handlers, logging.getLogger('llmrl').level)"
    )
    done = commands.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] 0\n"
    assert done.stderr.count("WARNING: about 0 ") == 2  # once a run


def test_configured_logging_has_no_duplicates(workdir, caplog):
    llmrl.train("env=escape_room", "principal=ucb", **TINY)
    assert len([record for record in caplog.records if " arms" in record.message]) == 1
    assert all("_heard" not in repr(handler) for handler in logging.getLogger().handlers)


@pytest.mark.slow
def test_sweep_runs_missing_jobs_in_parallel(workdir):
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
def test_sweep_reports_failed_runs(workdir, caplog):
    options = {**TINY, "llm.max_invalid.min_replies": 1, "llm.refusal": [1.0, 0.99]}
    runs = llmrl.sweep("env=escape_room", "principal=llm", **options)
    assert [run.state for run in runs.unfinished] == ["failed"] * 2
    assert all(run.error for run in runs)
    assert sum(record.levelno == logging.ERROR for record in caplog.records) >= 2


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        (["env=escape_room", "principal=ucb,nobody"], {}, "nobody"),
        (["hydra/sweeper=optuna"], {}, "--multirun"),
        (["env=escape_room"], {"seed": []}, "^seed .*empty"),
        (["env=escape_room", "seed=0,,1"], {}, "seed=0,,1"),
        (["env=escape_room"], {"parallel": 0}, "parallel"),
        (["env=escape_room"], {"agent.init_from": ["nowhere", "elsewhere"]}, "nowhere"),
    ],
)
def test_invalid_sweep_starts_no_runs(workdir, overrides, options, message):
    with pytest.raises(ConfigError, match=message):
        llmrl.sweep(*overrides, **options)
    assert not list(workdir.rglob("status.json"))


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """Train a run to evaluate."""
    return llmrl.train("env=escape_room", "principal=ucb", output_root=tmp_path_factory.mktemp("trained"), **TINY)


def test_evaluation_matches_command_line(workdir, trained_run):
    from llmrl.cli.evaluate import build_parser, evaluate

    evaluation_results = llmrl.evaluate(
        trained_run, episodes=4, mechanism=[0, 1, 0, 0, 0], context=1, seed=7, policy=["student", "random"]
    )
    assert (
        evaluation_results["out"] == str(trained_run.folder / "evaluation")
        and evaluation_results["context"] == "lever_1_works"
    )
    words = ["--episodes", "4", "--mechanism", "0,1,0,0,0", "--context", "1", "--seed", "7"]
    words += ["--policy", "student,random", "--out", str(workdir / "other")]
    evaluation = evaluate(build_parser().parse_args([str(trained_run.folder), *words]))
    assert [player["per_episode"] for player in evaluation_results["players"]] == [
        p["per_episode"] for p in evaluation["players"]
    ]
    assert set(trained_run.load().episodes.policy) == {"student", "random"}


def test_compares_mechanisms(workdir, trained_run):
    evaluation_results = llmrl.evaluate(trained_run, episodes=2, mechanism=["none", [0, 1, 0, 0, 0]], adapt=False)
    assert [mechanism["name"] for mechanism in evaluation_results["mechanisms"]] == ["none", "0,1,0,0,0"]


def test_evaluation_with_env_overrides(workdir, trained_run):
    evaluation_results = llmrl.evaluate(trained_run, episodes=2, env={"horizon": 3})
    assert (
        set(evaluation_results["per_episode"]["length"]) <= {1, 2, 3}
        and "evaluation_horizon_3" in evaluation_results["out"]
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"episodes": 0}, ConfigError, "episodes=0"),
        ({"mode": "greedy"}, ConfigError, "stochastic, deterministic, both"),
        ({"policy": "nobody"}, ConfigError, "use student"),
        ({"mechanism": "most"}, ConfigError, "mechanism most"),
        ({"suite_options": {"episodes": 2}}, ConfigError, "suite_options"),
        ({"suite": "nothing"}, ConfigError, "babyai_text"),
    ],
)
def test_rejects_invalid_evaluation(trained_run, options, error, message):
    with pytest.raises(error, match=message):
        llmrl.evaluate(trained_run, **options)


def test_folder_must_contain_run(workdir):
    with pytest.raises(CheckpointError, match="run folder"):
        llmrl.evaluate(workdir)


texts = st.text(st.characters(codec="ascii", exclude_categories=["C"], exclude_characters="$"))
keys = st.from_regex(r"[a-z_]{1,5}", fullmatch=True)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


def unquoted(value):
    """Return the texts of Hydra without the quotes of the command line."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [unquoted(text) for text in value]
    return {unquoted(key): unquoted(text) for key, text in value.items()} if isinstance(value, dict) else value


@given(plain)
def test_python_values_are_preserved(value):
    (override,) = OverridesParser.create().parse_overrides([format_override("key", value)])
    assert str(unquoted(override.value())) == str(value)
    assert not override.is_sweep_override()


@pytest.mark.parametrize("value", [{1: 2, -3: {"a/b.c-d": None}}, "a\\\n", HTTPStatus.OK])
def test_unusual_values_are_preserved(value):
    override = OverridesParser.create().parse_override(format_override("key", value))
    assert unquoted(override.value()) == value


@pytest.mark.parametrize("name", ["", "true", "two words", "1", 1.5, None])
def test_mapping_keys_that_need_quotes_are_rejected(name):
    with pytest.raises(ConfigError, match=f"key: {name!r}"):
        format_override("key", {"inner": {name: 1}})


@given(st.lists(plain, min_size=2, max_size=3))
def test_choices_are_swept(values):
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    overrides = OverridesParser.create().parse_overrides([format_override("key", *values)])
    ((*runs,),) = BasicSweeper.split_arguments(overrides, None)
    assert len(runs) == len(values)
