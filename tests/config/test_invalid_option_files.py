"""Errors in option files and overrides that cannot be resolved are reported in one line, with the place."""

import sys

import pytest
from hydra.core.global_hydra import GlobalHydra

from llmrl.cli import train
from llmrl.core.errors import ConfigError
from llmrl.experiment.composition import compose_config, compose_plain

INVALID = {
    "a tab": b"design:\n\tsteps: 3\n",
    "two colons": b"a: b: c\n",
    "an unclosed bracket": b"design:\n  steps: [1, 2\nname: x\n",
    "a duplicate key": b"seed: 1\nname: a\nseed: 2\n",
    "a Python object": b"name: !!python/object/apply:os.system ['true']\n",
}


def write_option(folder, content):
    file = folder / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_bytes(b"# @package _global_\n" + content)
    return file


@pytest.mark.parametrize("name", INVALID)
def test_invalid_file_is_named(name, tmp_path):
    file = write_option(tmp_path, INVALID[name])
    with pytest.raises(ConfigError) as error, compose_config("train", ["experiment=mine"], [tmp_path]):
        pass
    assert f'"{file}", line ' in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        (["seed=${seed}"], "seed=${seed}"),
        (["name=${nope}"], "name=${nope}"),
        (["seed=1", "name=${nope:1}"], "name=${nope:1}"),
        (["env=escape_room", "env.n_envs=${nope}"], "env.n_envs=${nope}"),
    ],
)
def test_reports_unresolvable_override(words, blamed):
    with pytest.raises(ConfigError) as error:
        compose_plain("train", *words)
    assert str(error.value).startswith(f"{blamed}: ")
    assert "\n" not in str(error.value)


def test_command_prints_no_traceback(tmp_path, monkeypatch, capfd):
    file = write_option(tmp_path, INVALID["a tab"])
    monkeypatch.setattr(sys, "argv", ["llmrl-train", "--config-dir", str(tmp_path), "experiment=mine"])
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as stop:
        train.main()
    stderr_text = capfd.readouterr().err
    assert stop.value.code == 1 and str(file) in stderr_text and "Traceback" not in stderr_text
