"""Malicious configs and run folders: none of their code is imported, called or written."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from experiments import find_run_folder, run
from llmrl.cli import evaluate, sweep
from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_option
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
    """Return a file that exists once foreign code has run.

    The modules `evil`, `evil.parts` and `llmrl_evil` can be imported.
    """
    code, touched = tmp_path / "code", tmp_path / "touched"
    (code / "evil").mkdir(parents=True)
    for file in ("evil/__init__.py", "evil/parts.py", "llmrl_evil.py"):
        (code / file).write_text(CODE.format(marker=str(touched)))
    monkeypatch.syspath_prepend(str(code))
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
    "llmrl.display.results.json.loads",
    "llmrl.cli.sweep.Path",
    "llmrl.run.files.write_atomic",
    "llmrl.run.artifacts.move_to_backup",
    "llmrl.sweeps.jobs.write_log_header",
    "llmrl.envs.gym.env_factory.importlib.import_module",
    "llmrl.envs.gym.evaluator.main",
    "llmrl.llms.local.small.make_small_model",
    "llmrl.envs.substrate.install.install",
    "llmrl.agents.ppo_agent.PPOAgent.__init__.__globals__",
    "llmrl_evil.Part",
    "evil.Part",
    "evil.parts.boom",
    ["evil.Part"],
)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_target(target, marker):
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
@pytest.mark.parametrize(("env", "key"), [("gymnasium", "id"), ("babyai_text", "level")])
def test_importing_id(env, key, id, marker, monkeypatch):
    monkeypatch.delitem(sys.modules, "webbrowser", raising=False)  # some libraries import it by themselves
    node = {**load_option("env", env), key: id, "n_envs": 1}
    with pytest.raises(ConfigError, match=r"trusted|no environment"):
        Builder({"seeds": Seeds(0)}).build(node, "env")
    assert not marker.exists() and "webbrowser" not in sys.modules


def test_nested_id_in_arguments(marker):
    for id in ("GymV21Environment-v0", "GymV26Environment-v0"):
        node = {**load_option("env", "gymnasium"), "id": id, "kwargs": {"env_id": "evil:X-v0"}}
        with pytest.raises(ConfigError, match="an argument"):
            Builder({"seeds": Seeds(0)}).build(node, "env")
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        *("evil.Words", "evil.parts.Words", "evil.boom", "builtins.exec", "builtins.str", "posixpath.os.system"),
        *("llmrl_evil.Words", "llmrl.envs.gym.env_factory.importlib.import_module", "evil..Words", "..evil.Words"),
    ],
)
def test_importing_text(text, marker):
    node = {**load_option("env", "gymnasium"), "id": "CartPole-v1", "n_envs": 1, "text": text}
    with pytest.raises(ConfigError, match=r"env\.text"):
        Builder({"seeds": Seeds(0)}).build(node, "env")
    assert not marker.exists()


@pytest.fixture(scope="module")
def completed_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    run("env=escape_room", "agent=random", "env.n_envs=2", "play.episodes=2", f"output_root={root}")
    return find_run_folder(root)


PART = {"_target_": "evil.Part"}
WORDY = {**load_option("env", "gymnasium"), "id": "CartPole-v1", "n_envs": 1, "text": "evil.Words"}
FOLDERS = {
    "a part": {"agent": PART},
    "that trusts itself": {"agent": PART, "trusted_modules": ["evil"]},
    "a game": {"env": {**WORDY, "text": None, "id": "evil:Tower-v0"}},
    "words": {"env": WORDY},
    "a teacher inside a part": {
        "teacher": {"_target_": "llmrl.teachers.teacher_factory.oracle_teacher", "domain": PART}
    },
    "a part of llmrl that is none": {"agent": {"_target_": "llmrl.run.artifacts.move_to_backup", "folder": "/"}},
    "torch's door": {"agent": {"_target_": "torch.optim.adam.torch.hub.load", "source": "local"}},
}


def hostile(completed_run: Path, root: Path, changes: dict) -> Path:
    """Copy a real run and change its config."""
    folder = root / "runs" / "theirs" / "run-12345678" / "s0"
    shutil.copytree(completed_run, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, **changes}))
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_evaluation_of_run_folder(name, completed_run, marker, tmp_path, capsys):
    folder = hostile(completed_run, tmp_path, FOLDERS[name])
    with pytest.raises(SystemExit) as stop:
        evaluate.main([str(folder), "--episodes", "2"])
    stderr_text = capsys.readouterr().err
    assert stop.value.code == 1 and not marker.exists()
    assert ("evil" not in str(FOLDERS[name])) or "--trust evil" in stderr_text, stderr_text


@pytest.mark.parametrize("words", [(), ("suite=babyai_text", "--policy", "random")])
def test_results_are_not_written_through_links(words, completed_run, tmp_path, capsys):
    folder, outside_folder = hostile(completed_run, tmp_path, {}), tmp_path / "precious"
    outside_folder.mkdir()
    (outside_folder / "results.json").write_text("years of work")
    (folder / "evaluation").symlink_to(outside_folder)
    with pytest.raises(SystemExit):
        evaluate.main([str(folder), *words, "--episodes", "2"])
    assert "symbolic link" in capsys.readouterr().err
    assert [file.read_text() for file in outside_folder.iterdir()] == ["years of work"]


def test_explicit_trust_allows_run(completed_run, marker, tmp_path, capsys):
    folder = hostile(completed_run, tmp_path, FOLDERS["a part"])
    with pytest.raises((AttributeError, TypeError, ConfigError)):  # it is no agent
        evaluate.evaluate(evaluate.build_parser().parse_args([str(folder), "--episodes", "2", "--trust", "evil"]))
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
def test_retry_of_run_folder(changes, completed_run, marker, tmp_path, capsys):
    if not {"agent", "method"} & set(changes):
        config = yaml.safe_load((completed_run / "config.yaml").read_text())
        slurm = {"_target_": "llmrl.sweeps.backends.slurm_submission.Slurm", **changes}
        changes = {"hardware": {**config["hardware"], "backend": slurm}}
    changes = {key: value for key, value in changes.items() if key != "method"}
    folder = hostile(completed_run, tmp_path, changes)
    status = folder / "status.json"
    status.write_text(status.read_text().replace('"finished"', '"failed"'))
    with pytest.raises(SystemExit) as stop:
        sweep.main(["retry", str(tmp_path / "runs")])
    stderr_text = capsys.readouterr().err
    assert stop.value.code == 1 and not marker.exists() and not (tmp_path / "touched").exists()
    assert any(part in stderr_text for part in ("your rights", "one line")), stderr_text


def test_saved_config_grants_no_trust(tmp_path):
    run("env=escape_room", "agent=random", "env.n_envs=2", "play.episodes=2", f"output_root={tmp_path}",
        "trusted_modules=[my_package]")  # fmt: skip
    assert "trusted_modules" not in (find_run_folder(tmp_path) / "config.yaml").read_text()
