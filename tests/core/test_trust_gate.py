"""Which code a config may name: by whole components, by the home of what is found, and by whose word."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmrl.conf
from llmrl.config.trust_options import only_typed, shell_keys, trusted_by
from llmrl.core import trust as gate
from llmrl.core.errors import ConfigError
from llmrl.core.installed import entry_points
from llmrl.core.trust import NAMED, PACKAGES, Trust

PACKAGE = """
import json
from json import JSONDecoder
from functools import partial
from pathlib import Path

class Part:
    class Inner:
        pass
    @classmethod
    def made(cls):
        return cls()

def make():
    return Part()

loads, half, part = json.loads, partial(make), Part()
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `mine` with a module `mine.parts`, and one `mine_too` whose name only begins so."""
    for name in ("mine", "mine_too"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "parts.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    entry_points.cache_clear()
    yield tmp_path
    entry_points.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] in ("mine", "mine_too")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["Part", "Part.Inner", "Part.made", "make"])
def test_own_classes_and_functions_are_found(package, name):
    for modules in (("mine",), ("mine.parts",)):
        assert callable(Trust(modules).locate(f"mine.parts.{name}", "agent._target_"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("json.loads", "json is a module"),
        ("json.decoder.JSONDecoder", "json is a module"),
        ("JSONDecoder", "at home in json.decoder"),
        ("Path", "at home in pathlib"),
        ("loads", "at home in json"),
        ("half", "is an object"),
        ("part", "is an object"),
        ("part.made", "is an object"),
        ("Nobody", "there is no such name"),
        ("Part.__init__", "no dotted name"),
    ],
)
def test_what_a_trusted_module_has_imported_is_not_named_through_it(package, name, why):
    with pytest.raises(ConfigError, match=why):
        Trust(("mine",)).locate(f"mine.parts.{name}", "agent._target_")


def test_nothing_is_imported_before_it_is_judged(package):
    for modules, target in (
        ((), "mine.parts.Part"),
        (("mine",), "mine_too.parts.Part"),
        (("mine.parts",), "mine.Part"),
    ):
        with pytest.raises(ConfigError, match="outside the trusted modules"):
            Trust(modules).locate(target, "x")
    assert not {"mine", "mine_too"} & set(sys.modules)
    with pytest.raises(ConfigError, match=r"trusted_modules=\[mine_too\]' \(--trust mine_too where a run is read\)"):
        Trust(("mine",)).load("mine_too.parts", "env.id=mine_too.parts:X-v0")


@given(st.sampled_from(PACKAGES), st.text("abz_.09", min_size=1, max_size=8))
def test_names_are_compared_by_whole_components(package, more):
    assert Trust().covers(package) and Trust().covers(f"{package}.x")
    assert Trust().covers(package + more) == more.startswith(".")


def test_what_options_name_is_found():
    files = [path.read_text() for path in Path(llmrl.conf.__path__[0]).rglob("*.yaml")]
    named = {name for text in files for name in re.findall(r"^[^#\n]*_target_: *(llmrl\.[\w.]+)", text, re.MULTILINE)}
    assert len(named) > 60
    for name in {*NAMED, *named}:
        assert callable(Trust().locate(name, "x")), name


def test_of_llmrl_no_class_is_named_that_writes_where_it_is_told():
    for name in ("llmrl.llms.call_log.CallLog", "llmrl.llms.cache.Cache", "llmrl.run.metrics.MetricLog"):
        with pytest.raises(ConfigError, match="holds no parts"):
            Trust().locate(name, "agent._target_")


@pytest.mark.parametrize("name", ["", ".", "mine.", "*", "mine parts", "../mine", 3, "__main__"])
def test_names_of_modules_are_names(name):
    with pytest.raises(ConfigError, match="no name of a module"):
        Trust((name,))


def test_the_users_own_file(package):
    path = gate.user_file()
    assert path.is_relative_to(package / "config")
    path.parent.mkdir(parents=True)
    path.write_text("# what I work on\nmine  # with its parts\n\n")
    assert Trust().locate("mine.parts.Part", "x").__name__ == "Part" and not Trust().covers("mine_too")
    path.write_text("llmrl\n")
    assert not Trust().covers("llmrl.cli.sweep") and not Trust().covers("mine")
    path.write_text("mine\nnot a name\n")
    with pytest.raises(ConfigError, match="'not a name' is no name of a module"):
        Trust().covers("mine")


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_file_that_others_may_write_says_nothing(package, what, mode):
    path = gate.user_file()
    path.parent.mkdir(parents=True)
    path.write_text("mine\n")
    loose = path if what == "file" else path.parent
    loose.chmod(loose.stat().st_mode | mode)
    with pytest.raises(ConfigError, match="others may write it"):
        Trust().covers("mine")


def test_installed_entry_points_are_trusted_and_the_working_directory_is_not_installed(package, monkeypatch):
    meta = package / "mine-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[llmrl.parts]\nany = mine.parts:Part\n")
    assert Trust().covers("mine.parts") and not Trust().covers("mine") and "mine" not in sys.modules
    entry_points.cache_clear()
    monkeypatch.chdir(package)
    assert not Trust().covers("mine.parts")


def test_the_command_line_alone_trusts():
    assert trusted_by(["seed=1", "trusted_modules=[a,b.c]"]) == ["a", "b.c"]
    assert trusted_by(["trusted_modules=[a]", "++trusted_modules=['b']"]) == ["b"]
    assert only_typed({"trusted_modules": ["a"]}, ["trusted_modules=[a]"]) == {"trusted_modules": ["a"]}
    for found, typed in ((["a"], []), (["a", "b"], ["trusted_modules=[a]"]), (["b"], ["trusted_modules=[a]"])):
        with pytest.raises(ConfigError, match="for whoever types the command"):
            only_typed({"trusted_modules": found}, typed)
    for wrong in ("trusted_modules=a", "trusted_modules={a: b}", "trusted_modules=[1]", "trusted_modules=[a],[b]"):
        with pytest.raises(ConfigError, match="give a list of modules"):
            trusted_by([wrong])


def test_command_lines_of_jobs_are_typed_or_trusted():
    slurm = {"setup": ["module load cuda"], "srun_args": ["--cpu-bind=none"], "python": None, "extra": None}
    slurm["_target_"] = "llmrl.sweeps.backends.slurm_submission.Slurm"
    config = {"trusted_modules": [], "hardware": {"backend": slurm}}
    assert shell_keys(config["hardware"], []) == ["hardware.backend.setup"]
    assert only_typed(config, ["hardware.backend.partition=x"])["trusted_modules"] == []
    assert only_typed(config, ["hardware.backend.setup=[module load cuda]"])["trusted_modules"] == ["shell"]
    with pytest.raises(ConfigError, match="command lines that jobs would run"):
        Trust().check_shell(["hardware.backend.setup"])
    Trust(("shell",)).check_shell(["hardware.backend.setup"])
    Trust().check_shell([])
    for target, why in (("llmrl.llms.retry.Retry", "no backend"), ("nobody.Knows", "outside the trusted modules")):
        with pytest.raises(ConfigError, match=why):
            shell_keys({"backend": {"_target_": target, "setup": ["x"]}}, [])


def test_the_default_folder_is_in_the_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert gate.user_file() == tmp_path / ".config" / "llmrl" / "trusted" and os.getuid() >= 0
