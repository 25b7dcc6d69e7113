"""`llmrl-train` as a user runs it: help, plans, errors (in this process), sweeps and third-party parts."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml

import commands
from experiments import find_run_folder
from in_process import run_in_process
from llmrl.cli.train import main
from llmrl.core.option_files import load_options
from llmrl.llms.call_log import read_calls
from llmrl.llms.scripted import ScriptedChat
from some import mark_long_except
from tiny_models import make_tiny_causal

THIRD_PARTY = Path(__file__).parents[1] / "third_party"
TINY = (
    "env=escape_room",
    "env.n_envs=4",
    "design.evaluations=1",
    "design.steps=2",
    "design.adapt_rounds=1",
    "design.validate_episodes=4",
)
TINY += ("design.references=0",)


def train(*overrides, cwd, **environment):
    """Run the console script's module; keys of hosted models are never inherited."""
    command = [sys.executable, "-m", "llmrl.cli.train", *overrides]
    env = {**environ_lacking_keys(), **environment}
    return commands.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def train_in_process(*overrides, cwd):
    """Run `train` in this process."""
    return run_in_process(main, "llmrl-train", *overrides, cwd=cwd, environment=environ_lacking_keys())


def environ_lacking_keys():
    return {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}


def test_shell_completion_knows_options(tmp_path):
    done = train("-sc", "query=bash", cwd=tmp_path, COMP_LINE="llmrl-train principal=", COMP_POINT="22")
    assert "principal=ucb" in done.stdout and "principal=llm" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("principal=ucbb",), "principal/ucb"),
        (("env=escape_room", "env.n_env=3"), "n_agents"),
        (("agent.ppo.clipp=3",), " mean clip?"),
        (("sede=1",), " mean seed?"),
        (("env=escape_room", "+env.color=red"), "'color'"),
        (("env=escape_room", "env.n_envs=many"), "env.n_envs='many'"),
        (("env=escape_room", "env.n_envs=0"), "env.n_envs=0"),
        (("env=escape_room", "principal=fixed", "principal.values=[9,0,0,0,0]"), "lever_0=9 "),
        (("env=escape_room", "principal=fixed", "principal.values=[1,2]"), " 5 numbers"),
        (("env=escape_room", "env.mechanism=false", "principal=ucb"), "=cleanup, cleanup_pixels, escape_room"),
        (("env=escape_room", "principal=llm", "llm=none"), "of llm="),
        (("env=escape_room", "principal=llm", "llm=gpt4o"), "OPENAI_API_KEY"),
        (("env=escape_room", "principal=llm", "llm=replay"), "llm.calls=<value>"),
        (("env=escape_room", "principal=llm", "llm=replay", "llm.calls=/nowhere"), "llm_calls.jsonl"),
        (("env=escape_room", "principal=llm", "llm=local_scorer_causal"), "CausalScorer"),
        (("env=escape_room", "principal=llm", "llm.cache=of"), "'readwrite'"),
        (("env=escape_room", "principal=llm", "llm.budget.calls=-1"), "llm.budget.calls=-1"),
        (("env=escape_room", "principal=llm", "llm.empty=0.6", "llm.refusal=0.6"), "at most 1,"),
        (
            ("env=escape_room", "principal=llm", "llm=openai_compatible", "llm.budget.usd=1"),
            "llm.budget.usd=1",
        ),
        (("env=escape_room", "principal=llm", "prompts=/nowhere"), "prompts=/nowhere"),
        (("env=escape_room", "hardware=gpu"), "hardware=cpu"),
        (("env=escape_room", "agent.init_from=/nowhere"), "/nowhere "),
        (("env=escape_room", "env._target_=os.getcwd"), "os.getcwd is"),
        (("env=simple_doorkey", "principal=ucb"), "=cleanup, cleanup_pixels, escape_room"),
        (("env=escape_room", "teacher=offline"), "env=escape_room"),
        (("env=simple_doorkey", "teacher=llm", "llm=none"), "chosen teacher"),
        (("env=simple_doorkey", "agent=teacher"), "teacher=oracle or teacher=llm"),
        (("env=simple_doorkey", "agent=student_mlp", "agent.critic=central"), "agent.critic=own"),
        (("env=simple_doorkey", "agent=symbolic_ppo"), "env=babyai_text"),
        (("env=simple_doorkey", "agent=bot"), "env=simple_doorkey"),
        (
            ("env=simple_doorkey", "teacher=offline", "teacher.schedule.floor=2"),
            "teacher.schedule",
        ),
    ],
)
def test_refusals(tmp_path, overrides, message):
    """Check that each message gives error and remedy without a traceback, and that the exit code is non-zero."""
    if "hardware=gpu" in overrides:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
    done = train_in_process(*overrides, cwd=tmp_path)
    assert done.returncode != 0
    text = " ".join((done.stdout + done.stderr).split())
    assert message in text, text
    assert "Traceback" not in text


def test_unwritable_output_folder(tmp_path):
    (tmp_path / "file").write_text("")
    done = train_in_process(*TINY, "principal=random", f"output_root={tmp_path}/file/outputs", cwd=tmp_path)
    assert done.returncode != 0 and str(tmp_path / "file") in done.stderr and "Traceback" not in done.stderr


def test_dry_run_writes_no_files(tmp_path):
    done = train(*TINY, "principal=ucb", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for part in (
        "4 games x 5 agents",
        "[4, 5, 28] float32",
        "incentives",
        "trainable:",
        "UCB",
        "environment steps",
        "environment steps",
    ):
        assert part in done.stdout, part
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_sweep_of_principals_and_seeds(tmp_path):
    """Run a command like that of the README.

    It gives four folders with readable names in TensorBoard, and a second call does nothing.
    """
    command = ("--multirun", "principal=ucb,llm", "seed=0,1", *TINY)
    done = train(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folders = sorted(path.parent for path in (tmp_path / "outputs").rglob("summary.json"))
    assert len(folders) == 4
    names = {re.search("principal_([a-z]+)", folder.parent.name)[1] for folder in folders}
    assert names == {"ucb", "llm"} and {f.name for f in folders} == {"s0", "s1"}
    for folder in folders:
        status = json.loads((folder / "status.json").read_text())
        assert status["state"] == "finished" and list(folder.glob("events.out.tfevents*"))
        assert ("llm_scripted" in folder.parent.name) == ("principal_llm" in folder.parent.name)
        assert (status["llm"] == ScriptedChat.label) == ("principal_llm" in folder.parent.name)
    second_call = train(*command, cwd=tmp_path)
    assert second_call.returncode == 0 and second_call.stdout.count("nothing to do") == 4


@pytest.mark.slow
def test_third_party_parts_with_config_dir(tmp_path):
    config_dir = ("--config-dir", str(THIRD_PARTY / "conf"), "env=signal_game")
    done = train(*config_dir, "principal=halving", "agent=echo", "design.steps=3", "name=done", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((find_run_folder(tmp_path / "outputs" / "done") / "summary.json").read_text())
    assert [row["mechanism"]["zero"] for row in summary["history"]] == [2.0, 1.0, 0.5]
    assert summary["online_performance"] == summary["recommendation"] == 8.0  # the echo agent names every signal
    teacher_run = train(*config_dir, "teacher=always_zero", "learn.env_steps=256", "name=taught", cwd=tmp_path)
    assert teacher_run.returncode == 0, teacher_run.stderr
    rows = (find_run_folder(tmp_path / "outputs" / "taught") / "metrics.jsonl").read_text()
    assert "teacher/loss" in rows
    wrong = train_in_process(*config_dir, "teacher=always_zero", "agent=random", "name=wrong", cwd=tmp_path)
    assert wrong.returncode != 0 and "agent=ppo" in wrong.stderr


@pytest.mark.slow
def test_part_requests_scores(tmp_path):
    """Provide a local scorer; reject chat-only models before anything is loaded or reached."""
    config_dir = ("--config-dir", str(THIRD_PARTY / "conf"), "env=signal_game", "trusted_modules=[signal_game]")
    reader = (*config_dir, "agent=reader", "play.episodes=1")
    for model in ("gpt4o", "scripted", "local_chat"):
        done = train_in_process(*reader, f"llm={model}", "name=refused", cwd=tmp_path)
        text = " ".join(done.stderr.split())
        assert done.returncode == 1 and "scores texts" in text, text
        assert "llm=local_scorer_causal, local_scorer_seq2seq" in text
    missing_model_error = train_in_process(*reader, "llm=none", "name=refused", cwd=tmp_path)
    assert "=local_scorer_causal, local_scorer_seq2seq" in " ".join(missing_model_error.stderr.split())
    combined_error = train_in_process(*reader, "principal=llm", "name=refused", cwd=tmp_path)
    assert "llm= chooses" in " ".join(combined_error.stderr.split())
    folder = make_tiny_causal(tmp_path / "model")
    done = train(*reader, "llm=local_scorer_causal", f"llm.model={folder}", "name=done", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = find_run_folder(tmp_path / "outputs" / "done")
    assert str(folder) in json.loads((run / "status.json").read_text())["llm"]
    command = [sys.executable, "-c", "from llmrl.cli.evaluate import main; main()", str(run), "--episodes", "4"]
    stranger = commands.run(command, cwd=tmp_path, timeout=300, capture_output=True, text=True)
    assert stranger.returncode == 1 and "--trust signal_game" in stranger.stderr
    assert commands.run([*command, "--trust", "signal_game"], cwd=tmp_path, timeout=300).returncode == 0


@pytest.mark.slow
def test_generic_prompt_supports_third_party_environment(tmp_path):
    config_dir = ("--config-dir", str(THIRD_PARTY / "conf"), "env=signal_game", "trusted_modules=[signal_game]")
    done = train(*config_dir, "principal=llm", "design.steps=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = [str(c) for c in read_calls(find_run_folder(tmp_path / "outputs" / "signal_game") / "llm_calls.jsonl")]
    assert len(calls) == 3 and "paid for naming 0" in calls[0]
    references = list((tmp_path / "outputs" / "signal_game_references").rglob("summary.json"))
    assert len(references) == 2 and not list((tmp_path / "outputs").glob("*_references/*/*/llm_calls.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("first", mark_long_except([0], range(5)))
def test_options_build_or_report_missing_parts(tmp_path, first):
    """Compose each option of each group; build those that need no engine, key or server in other tests."""
    from experiments import compose

    for group in ("env", "agent", "principal", "teacher", "llm", "hardware"):
        for name in sorted(load_options(group))[first::5]:
            unset = [key for key, value in load_options(group)[name].items() if value == "???"]
            config = compose(f"{group}={name}", *(f"{group}.{key}=given" for key in unset))
            assert set(config[group]) == set(yaml.safe_load(yaml.safe_dump(config[group])))
