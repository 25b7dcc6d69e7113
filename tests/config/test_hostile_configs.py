"""Configs and run folders whose author wants to run code: none of it is imported, called or written."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from experiments import only_run_folder, run
from llmrl.cli import evaluate, sweep, train
from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds

CODE = """
from pathlib import Path
Path({marker!r}).touch()

class Part:
    loop = "play"
    learns = False
    def __init__(self, *args, **kwargs):
        Path({marker!r}).touch()

class Words(Part):
    pass

def boom(*args, **kwargs):
    Path({marker!r}).touch()
"""


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """A file that is there as soon as code of a stranger has run; the modules `evil`, `evil.parts` and `llmrl_evil`
    can be imported."""
    code, touched = tmp_path / "code", tmp_path / "touched"
    (code / "evil").mkdir(parents=True)
    for file in ("evil/__init__.py", "evil/parts.py", "llmrl_evil.py"):
        (code / file).write_text(CODE.format(marker=str(touched)))
    monkeypatch.syspath_prepend(str(code))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    yield touched
    for name in [name for name in sys.modules if name.split(".")[0] in ("evil", "llmrl_evil")]:
        del sys.modules[name]


TARGETS = (
    "torch.optim.adam.torch.hub.load",
    "torch.optim.adam.torch.load",
    "torch.optim.Optimizer.add_param_group",
    "llmrl.agents.ppo_agent.torch.hub.load",
    "llmrl.agents.sb3_agent.copy.deepcopy",
    "llmrl.agents.sb3_agent.contextmanager",
    "llmrl.display.run_summary.json.loads",
    "llmrl.cli.sweep.Path",
    "llmrl.run.files.write_atomic",
    "llmrl.run.artifacts.set_aside",
    "llmrl.sweeps.jobs.write_log_header",
    "llmrl.envs.gym.gymnasium_games.importlib.import_module",
    "llmrl.envs.gym.workers.main",
    "llmrl.llms.local.small.make_small_model",
    "llmrl.envs.melting_pot.install.install",
    "llmrl.agents.ppo_agent.PPOAgent.__init__.__globals__",
    "llmrl_evil.Part",
    "evil.Part",
    "evil.parts.boom",
    ["evil.Part"],
)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_target(target, marker):
    with pytest.raises(ConfigError, match=r"agent\._target_"):
        Builder().locate(target, "agent")
    assert not marker.exists()


@pytest.mark.parametrize(
    "id",
    [
        "evil:Tower-v0",
        "evil.parts:CartPole-v1",
        "llmrl_evil:llmrl/Maze-v0",
        "evil:MiniGrid-Empty-5x5-v0",
        "evil:evil.parts:CartPole-v1",
        ":CartPole-v1",
        "llmrl.cli.train:CartPole-v1",
        "webbrowser:CartPole-v1",
    ],
)
@pytest.mark.parametrize("kind", ["gym.vec_env.GymnasiumEnv.id", "babyai.vec_env.BabyAIEnv.level"])
def test_an_id_that_imports(kind, id, marker, monkeypatch):
    monkeypatch.delitem(sys.modules, "webbrowser", raising=False)  # some libraries import it by themselves
    module, _, key = kind.rpartition(".")
    node = {"_target_": f"llmrl.envs.{module}", key: id, "n_envs": 1}
    with pytest.raises(ConfigError, match=r"is outside the trusted modules|knows no environment"):
        Builder({"seeds": Seeds(0)}).build(node, "env")
    assert not marker.exists() and "webbrowser" not in sys.modules


def test_an_id_whose_arguments_name_another(marker):
    for id in ("GymV21Environment-v0", "GymV26Environment-v0"):
        node = {"_target_": "llmrl.envs.gym.vec_env.GymnasiumEnv", "id": id, "kwargs": {"env_id": "evil:X-v0"}}
        with pytest.raises(ConfigError, match="makes whatever an argument names"):
            Builder({"seeds": Seeds(0)}).build(node, "env")
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        *("evil.Words", "evil.parts.Words", "evil.boom", "builtins.exec", "builtins.str", "posixpath.os.system"),
        *("llmrl_evil.Words", "llmrl.envs.gym.gymnasium_games.importlib.import_module", "evil..Words", "..evil.Words"),
    ],
)
def test_a_text_that_imports(text, marker):
    node = {"_target_": "llmrl.envs.gym.vec_env.GymnasiumEnv", "id": "CartPole-v1", "n_envs": 1, "text": text}
    with pytest.raises(ConfigError, match=r"env\.text"):
        Builder({"seeds": Seeds(0)}).build(node, "env")
    assert not marker.exists()


CALLBACK = {"x": {"_target_": "evil.boom"}}
OPTIONS = {
    "trusts itself": {"trusted_modules": ["evil"], "agent": {"_target_": "evil.Part"}},
    "trusts everything": {"trusted_modules": ["evil", "torch", "llmrl"]},
    "a callback": {"hydra": {"callbacks": CALLBACK}},
    "a callback elsewhere": {"hydra": {"callbacks": {"x": "${prompts}"}}, "prompts": {"_target_": "evil.boom"}},
    "typed for you": {
        "hydra": {"overrides": {"task": ["trusted_modules=[evil]"]}},
        "trusted_modules": ["evil"],
        "agent": {"_target_": "evil.Part"},
    },
    "a logger": {"hydra": {"hydra_logging": {"formatters": {"simple": {"()": "evil.boom"}}}}},
    "a log handler": {"hydra": {"job_logging": {"handlers": {"x": {"class": "evil.Part"}}}}},
    "logs into a start-up file": {
        "hydra": {
            "job_logging": {"handlers": {"x": {"class": "logging.FileHandler", "filename": "touched"}}},
        }
    },
    "a library to preload": {"hydra": {"job": {"env_set": {"PYTHONPATH": "/tmp/evil"}}}},
    "a folder of a run": {"hydra": {"run": {"dir": "touched"}}},
    "a folder for Hydra's files": {"hydra": {"output_subdir": "touched"}},
    "a folder of the sweeper's launches": {"hydra": {"sweep": {"dir": "touched"}}},
    "a folder of the sweeper's runs": {"hydra": {"sweep": {"subdir": "../touched"}}},
    "a part of the sweeper": {"hydra": {"sweeper": {"params": {"_target_": "evil.boom"}}}},
    "overrides of the sweeper": {"hydra": {"sweeper": {"params": {"trusted_modules": "[evil]"}}}},
    "shell lines by the sweeper": {"hydra": {"sweeper": {"params": {"hardware.backend.setup": "[touch touched]"}}}},
}


def commanded(monkeypatch, *words):
    """The exit code of `llmrl-train <words>` in this process."""
    monkeypatch.setattr(sys, "argv", ["llmrl-train", *words])
    GlobalHydra.instance().clear()
    before = dict(os.environ)
    try:
        train.main()
    except SystemExit as stop:
        return stop.code
    finally:
        changed = {k: v for k, v in os.environ.items() if before.get(k) != v}
        os.environ.clear()
        os.environ.update(before)
        assert "PYTHONPATH" not in changed
    return 0


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_file(name, marker, tmp_path, monkeypatch, capfd):
    file = tmp_path / "conf" / "experiment" / "nice.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\n" + yaml.safe_dump(OPTIONS[name]))
    several = ["--multirun"] if "sweeper" in name else []
    words = [*several, "--config-dir", str(tmp_path / "conf"), "experiment=nice", "env=escape_room", "principal=none"]
    more = ["seed=0,1"] if several else ["agent=random"]
    code = commanded(monkeypatch, *words, "play.episodes=1", "env.n_envs=1", "dry_run=true", *more)
    assert code == 1, capfd.readouterr()
    assert not marker.exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    run("env=escape_room", "agent=random", "env.n_envs=2", "play.episodes=2", f"output_root={root}")
    return only_run_folder(root)


PART = {"_target_": "evil.Part"}
WORDY = {"_target_": "llmrl.envs.gym.vec_env.GymnasiumEnv", "id": "CartPole-v1", "n_envs": 1, "text": "evil.Words"}
FOLDERS = {
    "a part": {"agent": PART},
    "that trusts itself": {"agent": PART, "trusted_modules": ["evil"]},
    "a game": {"env": {**WORDY, "text": None, "id": "evil:Tower-v0"}},
    "words": {"env": WORDY},
    "a teacher inside a part": {
        "teacher": {"_target_": "llmrl.teachers.teacher_factory.oracle_teacher", "domain": PART}
    },
    "a part of llmrl that is none": {"agent": {"_target_": "llmrl.run.artifacts.set_aside", "folder": "/"}},
    "torch's door": {"agent": {"_target_": "torch.optim.adam.torch.hub.load", "source": "local"}},
}


def hostile(finished: Path, root: Path, changes: dict) -> Path:
    """A copy of a real run, whose config somebody has changed."""
    folder = root / "runs" / "theirs" / "run-12345678" / "s0"
    shutil.copytree(finished, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, **changes}))
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_a_run_folder_that_is_evaluated(name, finished, marker, tmp_path, capsys):
    folder = hostile(finished, tmp_path, FOLDERS[name])
    with pytest.raises(SystemExit) as stop:
        evaluate.main([str(folder), "--episodes", "2"])
    said = capsys.readouterr().err
    assert stop.value.code == 1 and not marker.exists()
    assert ("evil" not in str(FOLDERS[name])) or "--trust evil" in said, said


@pytest.mark.parametrize("words", [(), ("suite=babyai_text", "--policy", "random")])
def test_results_are_not_written_behind_a_link(words, finished, tmp_path, capsys):
    folder, precious = hostile(finished, tmp_path, {}), tmp_path / "precious"
    precious.mkdir()
    (precious / "results.json").write_text("years of work")
    (folder / "evaluation").symlink_to(precious)
    with pytest.raises(SystemExit):
        evaluate.main([str(folder), *words, "--episodes", "2"])
    assert "is a link" in capsys.readouterr().err
    assert [file.read_text() for file in precious.iterdir()] == ["years of work"]


def test_who_trusts_it_may_run_it(finished, marker, tmp_path, capsys):
    folder = hostile(finished, tmp_path, FOLDERS["a part"])
    with pytest.raises((AttributeError, TypeError, ConfigError)):  # it is no agent
        evaluate.evaluate(evaluate.parser().parse_args([str(folder), "--episodes", "2", "--trust", "evil"]))
    assert marker.exists()


@pytest.mark.parametrize(
    "changes",
    [
        FOLDERS["a part"],
        {**FOLDERS["that trusts itself"], "method": None},
        {"setup": ["touch touched"]},
        {"python": "touch touched; python"},
        {"srun_args": ["--task-prolog=./evil.sh"]},
        {"extra": {"export": "LD_PRELOAD=/tmp/evil.so"}},
        {"partition": "gpu\ntouch touched #"},
        {"extra": {"x\ntouch touched\n#": 1}},
    ],
    ids=str,
)
def test_a_run_folder_that_is_retried(changes, finished, marker, tmp_path, capsys):
    if not {"agent", "method"} & set(changes):
        config = yaml.safe_load((finished / "config.yaml").read_text())
        slurm = {"_target_": "llmrl.sweeps.backends.slurm_submission.Slurm", **changes}
        changes = {"hardware": {**config["hardware"], "backend": slurm}}
    changes = {key: value for key, value in changes.items() if key != "method"}
    folder = hostile(finished, tmp_path, changes)
    status = folder / "status.json"
    status.write_text(status.read_text().replace('"finished"', '"failed"'))
    with pytest.raises(SystemExit) as stop:
        sweep.main(["retry", str(tmp_path / "runs")])
    said = capsys.readouterr().err
    assert stop.value.code == 1 and not marker.exists() and not (tmp_path / "touched").exists()
    assert "your rights" in said or "on one line" in said or "one line of text" in said, said


def test_a_saved_config_vouches_for_nobody(tmp_path):
    run("env=escape_room", "agent=random", "env.n_envs=2", "play.episodes=2", f"output_root={tmp_path}",
        "trusted_modules=[my_package]")  # fmt: skip
    assert "trusted_modules" not in (only_run_folder(tmp_path) / "config.yaml").read_text()
