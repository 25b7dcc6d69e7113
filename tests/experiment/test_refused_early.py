"""Errors that are found before a run folder is created, and their messages."""

import json
import sys
from contextlib import nullcontext

import pytest

import commands
from experiments import compose
from llmrl.cli.llm import main
from llmrl.core.errors import ConfigError, LlmrlError
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import build_parts

ROOM = ("env=escape_room", "principal=llm")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("seed=-1",), "seed=-1"),
        (("seed=abc",), "seed='abc'"),
        (("env=taxi", "agent=llm_player", "play.episodes=0"), "play.episodes=0"),
        (("env=escape_room", "env.n_envs=many"), "env.n_envs='many'"),
        ((*ROOM, "llm=gpt4o"), "OPENAI_API_KEY"),
        ((*ROOM, "llm=local_chat", "llm.model=/nope"), "/nope"),
        ((*ROOM, "llm=openai_compatible", "llm.base_url=http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1"),
    ],
)
def test_check_precedes_start(tmp_path, monkeypatch, overrides, message):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    overrides = (*overrides, f"output_root={tmp_path / 'outputs'}")
    with pytest.raises(LlmrlError) as error:
        Experiment(compose(*overrides), overrides).check()
    assert message in str(error.value) and not list(tmp_path.rglob("s[0-9]*"))


def test_plan_needs_no_key(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    overrides = (*ROOM, "llm=gpt4o", f"output_root={tmp_path}", "dry_run=true")
    Experiment(compose(*overrides), overrides).check()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [(("seed=-1", "llm.model=/nope"), "seed=-1"), (("llm.model=/nope",), "/nope")],
)
def test_check_precedes_training(tmp_path, overrides, message):
    pytest.importorskip("trl")
    overrides = (*overrides, f"output_root={tmp_path}")
    with pytest.raises(LlmrlError, match=message):
        Experiment(compose(*overrides, primary="finetune"), overrides).check()


def test_command_leaves_no_folder(tmp_path):
    done = commands.run(
        [sys.executable, "-m", "llmrl.cli.train", "env=escape_room", "seed=abc"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and "llmrl-train: seed='abc'" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


FLAGS = ("rerun", "resume", "dry_run", "private")
OPTIONS = [
    *((key, value) for key in FLAGS for value in ("no", "off", "maybe", 1, None)),
    *(("checkpoint_seconds", value) for value in ("nan", "inf", "soon", -1)),
    *(("name", 5), ("output_root", None), ("trusted_modules", 5)),
    *(("prompts", 5), ("observers", "5"), ("design", 5)),
]


@pytest.mark.parametrize(("key", "value"), OPTIONS)
def test_run_options_are_validated(key, value):
    literal = json.dumps(value) if value is None else value
    with pytest.raises(ConfigError, match=key):
        Experiment.compose("env=escape_room", f"{key}={literal}")


@pytest.mark.parametrize("value", ["false", "no"])
def test_completed_run_is_not_rerun(tmp_path, value):
    tiny = ("env=escape_room", "env.n_envs=4", "learn.env_steps=8", "learn.evaluate_episodes=1", "loggers=jsonl")
    first = Experiment.compose(*tiny, f"output_root={tmp_path}")
    first.run()
    with nullcontext() if value == "false" else pytest.raises(ConfigError, match="rerun='no'"):
        assert Experiment.compose(*tiny, f"output_root={tmp_path}", f"rerun={value}").run().finished
    assert not list(tmp_path.rglob("backup_*")) and first.folder.is_dir()


REJECTED = (
    ("env.n_agents=1", "principal=ucb"),
    ("env.fixed_context=7", "principal=ucb"),
    ("env.observe=[]",),
    ("design.candidates=3", "principal=ucb"),
    ("hardware.device=tpu",),
    ("agent.init_from=nowhere",),
)


@pytest.mark.parametrize("overrides", REJECTED)
def test_rejected_run_leaves_nothing(tmp_path, overrides):
    experiment = Experiment.compose("env=escape_room", *overrides, f"output_root={tmp_path / 'outputs'}")
    with pytest.raises(ConfigError):
        experiment.check()
        experiment.run()
    assert not list(tmp_path.iterdir())


def test_rejected_run_keeps_foreign_folders(tmp_path):
    (tmp_path / "escape_room").mkdir()
    experiment = Experiment.compose("env=escape_room", "env.n_agents=1", f"output_root={tmp_path}")
    with pytest.raises(ConfigError):
        experiment.run()
    assert [path.name for path in tmp_path.rglob("*")] == ["escape_room"]
    experiment.folder.mkdir(parents=True)
    (experiment.folder / "notes.txt").write_text("of an earlier attempt")
    with pytest.raises(ConfigError):
        experiment.run()
    assert (experiment.folder / "notes.txt").is_file() and (experiment.folder / "status.json").is_file()


def test_multiple_errors_are_joined():
    wrong = ("env.n_envs=0", "agent.ppo.clip=-1", "hardware.threads=0")
    with pytest.raises(ConfigError) as error:
        Experiment.compose("env=escape_room", *wrong).check()
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == list(wrong)


@pytest.mark.parametrize("option", ["local_chat", "local_scorer_seq2seq", "local_scorer_causal"])
def test_missing_model_needs_no_environment(capsys, option):
    with pytest.raises(SystemExit):
        main(["check", f"llm={option}", "llm.model=/nope"])
    assert "/nope" in capsys.readouterr().err


def test_missing_mechanism_lists_alternatives():
    with pytest.raises(ConfigError, match=r"cartpole.*env=cleanup.*agent=linear.*principal=none"):
        build_parts(compose("env=cartpole", "env.n_envs=1", "principal=cmaes"), None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env=taxii"], "'env/taxii'.* mean taxi"),
        (["principal=hill_climbing"], "vote.*--config-dir"),
        (["agent=foo"], "bc, bot, cleanup_society, drrn"),
        (["experiment=zero_shot/fisherry"], " mean zero_shot/fishery"),
        (["experiment=goto_red_bal"], " mean grounding/goto_red_ball"),
        (["experiment=xyz"], " citizens/harvest, "),
        (["treatment=prop"], " mean props"),
        (["env=escape_room", "env.n_env=3"], "env .*'n_env'.* mean n_envs"),
        (["nane=x"], "'nane'.* mean name"),
        (["agent=ppo", "agent.ppo.gama=1"], r"agent\.ppo .*'gama'.* mean gamma"),
        (["agent=llm_player", "llm=scripted", "llm/learn=grpo"], "llm/learn=grpo.*local_chat, small_chat"),
        (["agent=llm_player", "llm/learn=grpo"], "llm/learn=grpo.*local_chat"),
        (["agent=llm_player", "llm=small_chat", "llm/learn=grp"], "grpo"),
    ],
)
def test_mistyped_name_gives_valid_names(overrides, message):
    with pytest.raises(ConfigError, match=message) as error:
        Experiment.compose(*overrides)
    text = str(error.value)
    assert "\n" not in text and "/parts/" not in text and "numbers" not in text


TWO = ("env=escape_room", "env.n_agents=2", "env.min_agents_per_lever=1", "env.n_envs=4")
LEARNING_OPTIONS = ("principal=none", "learn.rollout_steps=8", "learn.env_steps=100")
PRINCIPAL_OPTIONS = ("principal=ucb", "design.candidates=1", "env.horizon=10")
MIXED_OPTIONS = (*LEARNING_OPTIONS, "agent=mixed")


def freeze_options(*widths):
    members = ",".join(f"{{count:1,agent:ppo,freeze:core,features:{n}}}" for n in widths)
    return f"agent.members=[{members}]"


def full_minibatches(size):
    return ("agent.ppo.drop_last=true", f"agent.ppo.minibatch_size={size}")


def member_with_full_minibatches(size):
    return f"agent.members=[{{count:2,agent:ppo,ppo:{{drop_last:true,minibatch_size:{size}}}}}]"


@pytest.mark.parametrize(
    ("accepted", "rejected_options"),
    [
        ((*MIXED_OPTIONS, freeze_options(8, 8)), (*MIXED_OPTIONS, freeze_options(8, 16))),
        ((*LEARNING_OPTIONS, *full_minibatches(64)), (*LEARNING_OPTIONS, *full_minibatches(65))),
        (
            (*LEARNING_OPTIONS, "agent.share_parameters=false", *full_minibatches(32)),
            (*LEARNING_OPTIONS, "agent.share_parameters=false", *full_minibatches(33)),
        ),
        ((*PRINCIPAL_OPTIONS, *full_minibatches(80)), (*PRINCIPAL_OPTIONS, *full_minibatches(81))),
        ((*MIXED_OPTIONS, member_with_full_minibatches(64)), (*MIXED_OPTIONS, member_with_full_minibatches(65))),
    ],
)
def test_plan_rejects_short_rollouts(tmp_path, accepted, rejected_options):
    """Reject them in the plan instead of after the first rollout."""
    common = (*TWO, f"output_root={tmp_path}", "dry_run=true")
    assert Experiment(compose(*common, *accepted), accepted).plan()
    with pytest.raises(ConfigError):
        Experiment(compose(*common, *rejected_options), rejected_options).plan()
