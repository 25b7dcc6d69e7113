"""Errors in option files and unresolvable overrides are reported in one line with their location."""

import sys

import pytest
from hydra.core.global_hydra import GlobalHydra

from llmrl.cli import train
from llmrl.config import option_file_checks
from llmrl.config.option_file_checks import check_option_file
from llmrl.core.errors import ConfigError
from llmrl.experiment.composition import composed, plain

GLOBAL = b"# @package _global_\n"
BOMB = b"k0: &k0 [x]\n" + b"".join(
    b"k%d: &k%d [%s]\n" % (i, i, b", ".join([b"*k%d" % (i - 1)] * 10)) for i in range(1, 9)
)
INVALID = {
    "a tab": (b"design:\n\tsteps: 3\n", 3, 1),
    "two colons": (b"a: b: c\n", 2, 5),
    "an unclosed bracket": (b"design:\n  steps: [1, 2\nname: x\n", 4, 5),
    "a duplicate key": (b"seed: 1\nname: a\nseed: 2\n", 4, 1),
    "a NUL": (b"name: a\0b\n", 2, 8),
    "not UTF-8": (b"name: \xe9\n", 2, 7),
    "a Python object": (b"name: !!python/object/apply:os.system ['true']\n", 2, 7),
    "an alias of itself": (b"prompts: &a\n  x: *a\n", 2, 10),
    "two aliases of itself": (b"prompts: &a [*a, *a]\n", 2, 10),
    "an exponential number of aliases": (BOMB, 7, 5),
    "deep nesting": (b"a: " + b"[" * 3000 + b"]" * 3000, 1, 1),
    "a list": (b"- a\n- b\n", 2, 1),
    "an open interpolation": (b"seed: 1\nname: ${nope\n", 3, 7),
}
UNRESOLVED = {
    "a key that does not exist": (b"seed: 1\nname: ${nope}\n", 3, 7),
    "itself": (b"seed: ${seed}\n", 2, 7),
    "a field of a part": (b"env:\n  n_envs: ${nope}\n", 3, 11),
}


def option(folder, content):
    file = folder / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_bytes(GLOBAL + content)
    return file


@pytest.mark.parametrize("name", INVALID)
def test_invalid_file_gives_line(name, tmp_path):
    content, line, column = INVALID[name]
    file = option(tmp_path, content)
    with pytest.raises(ConfigError) as error, composed("train", ["experiment=mine"], [tmp_path]):
        pass
    assert str(error.value).startswith(f"{file}, line {line}, column {column}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", UNRESOLVED)
def test_unresolvable_interpolation_names_file(name, tmp_path):
    content, line, column = UNRESOLVED[name]
    file = option(tmp_path, content)
    with pytest.raises(ConfigError) as error:
        plain("train", "experiment=mine", "env=escape_room", "agent=random", config_dir=str(tmp_path))
    assert str(error.value).startswith(f"{file}, line {line}, column {column}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        (["seed=${seed}"], "seed=${seed}"),
        (["name=${nope}"], "name=${nope}"),
        (["seed=1", "name=${nope:1}"], "name=${nope:1}"),
        (["env=escape_room", "env.n_envs=${nope}"], "env.n_envs=${nope}"),
        (["env=null"], "env=null"),
        (["agent=random", "env=cartpole,null"], "env=cartpole,null"),
    ],
)
def test_reports_unresolvable_override(words, blamed, tmp_path):
    with pytest.raises(ConfigError) as error:
        plain("train", *words)
    assert str(error.value).startswith(f"{blamed}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["an alias of itself", "a tab"])
def test_command_prints_no_traceback(name, tmp_path, monkeypatch, capfd):
    file = option(tmp_path, INVALID[name][0])
    monkeypatch.setattr(sys, "argv", ["llmrl-train", "--config-dir", str(tmp_path), "experiment=mine"])
    GlobalHydra.instance().clear()
    with pytest.raises(SystemExit) as stop:
        train.main()
    stderr_text = capfd.readouterr().err
    assert stop.value.code == 1 and str(file) in stderr_text and "Traceback" not in stderr_text


def test_aliases_and_comments_are_accepted(tmp_path):
    check_option_file(option(tmp_path, b"a: &a [1, 2]\nb: [*a, *a]\nc: ${a}\n"))
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    check_option_file(tmp_path / "empty.yaml")


def test_changed_file_is_rechecked(tmp_path, monkeypatch):
    monkeypatch.setattr(option_file_checks, "MAX_NODES", 1000)
    file = option(tmp_path, b"a: 1\n")
    check_option_file(file)
    file.write_bytes(GLOBAL + b"a: [" + b"1, " * 1001 + b"]\n")
    with pytest.raises(ConfigError):
        check_option_file(file)
