"""Classes that a config may name. Components of the name and the origin of the object decide."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmrl.conf
from llmrl.config.permissions import check_command_lines, find_command_line_keys, with_permissions
from llmrl.core.errors import ConfigError
from llmrl.core.installed import entry_points
from llmrl.core.trust import NAMED_TARGETS, PART_PACKAGES, Trust

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
    """Create a package `mine` with a module `mine.parts`, and a package `mine_too` with the same prefix."""
    for name in ("mine", "mine_too"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "parts.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry_points.cache_clear()
    yield tmp_path
    entry_points.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] in ("mine", "mine_too")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["Part", "Part.Inner", "Part.made", "make"])
def test_local_classes_and_functions_are_resolved(package, name):
    for modules in (("mine",), ("mine.parts",)):
        assert callable(Trust(modules).locate(f"mine.parts.{name}", "agent._target_"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("json.loads", "defined in json"),
        ("json.decoder.JSONDecoder", "defined in json"),
        ("JSONDecoder", "json.decoder"),
        ("Path", "defined in pathlib"),
        ("loads", "defined in json"),
        ("half", "is an object"),
        ("part", "is an object"),
        ("Nobody", "there is no such name"),
        ("Part.__init__", "not the dotted name"),
    ],
)
def test_transitive_imports_are_not_allowed(package, name, reason):
    with pytest.raises(ConfigError, match=reason):
        Trust(("mine",)).locate(f"mine.parts.{name}", "agent._target_")


def test_missing_package_names_remedy():
    trust = Trust(("no_such_package",))
    for locate in (lambda: trust.locate("no_such_package.Part", "x"), lambda: trust.load("no_such_package.a", "x")):
        with pytest.raises(ConfigError, match=r"'no_such_package'; .*PYTHONPATH"):
            locate()


def test_check_precedes_import(package):
    for modules, target in (
        ((), "mine.parts.Part"),
        (("mine",), "mine_too.parts.Part"),
        (("mine.parts",), "mine.Part"),
    ):
        with pytest.raises(ConfigError, match="trusted modules"):
            Trust(modules).locate(target, "x")
    assert not {"mine", "mine_too"} & set(sys.modules)
    with pytest.raises(ConfigError, match=r"trusted_modules=\[mine_too\].*mine_too"):
        Trust(("mine",)).load("mine_too.parts", "env.id=mine_too.parts:X-v0")


@given(st.sampled_from(PART_PACKAGES), st.text("abz_.09", min_size=1, max_size=8))
def test_names_are_compared_by_component(package, suffix):
    assert Trust().is_trusted(package) and Trust().is_trusted(f"{package}.x")
    assert Trust().is_trusted(package + suffix) == suffix.startswith(".")


def test_targets_in_options_are_detected():
    files = [path.read_text() for path in Path(llmrl.conf.__path__[0]).rglob("*.yaml")]
    targets = {name for text in files for name in re.findall(r"^[^#\n]*_target_: *(llmrl\.[\w.]+)", text, re.MULTILINE)}
    assert len(targets) > 60
    for name in {*NAMED_TARGETS, *targets}:
        assert callable(Trust().locate(name, "x")), name


def test_no_target_writes_to_given_path():
    for name in ("llmrl.llms.call_log.CallLog", "llmrl.llms.cache.Cache", "llmrl.run.metrics.MetricLog"):
        with pytest.raises(ConfigError, match="no parts"):
            Trust().locate(name, "agent._target_")


@pytest.mark.parametrize("name", ["", ".", "mine.", "*", "mine parts", "../mine", 3, "__main__"])
def test_module_names_are_valid(name):
    with pytest.raises(ConfigError, match="trusted_modules"):
        Trust((name,))


def test_installed_entry_points_are_allowed(package, monkeypatch):
    meta = package / "mine-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[llmrl.parts]\nany = mine.parts:Part\n")
    assert Trust().is_trusted("mine.parts") and not Trust().is_trusted("mine") and "mine" not in sys.modules
    entry_points.cache_clear()
    monkeypatch.chdir(package)
    assert not Trust().is_trusted("mine.parts")


def test_composed_config_has_its_permissions():
    config = {"trusted_modules": ["a"], "agent": {"_target_": "b.c.D"}, "env": {"id": "e:X-v0", "text": "f.G"}}
    assert with_permissions(config)["trusted_modules"] == ["a", "b", "e"]
    harmless = {"trusted_modules": [], "agent": {"_target_": "llmrl.run.files.write_atomic"}, "env": {"id": "os:X"}}
    assert with_permissions(harmless)["trusted_modules"] == []
    for wrong in ("a", {"a": "b"}, [1]):
        with pytest.raises(ConfigError, match="list of"):
            with_permissions({"trusted_modules": wrong})


def test_job_command_lines_need_permission():
    slurm = {"setup": ["module load cuda"], "srun_args": ["--cpu-bind=none"], "python": None, "extra": None}
    slurm["_target_"] = "llmrl.sweeps.backends.slurm_submission.Slurm"
    config = {"trusted_modules": [], "hardware": {"backend": slurm}}
    assert find_command_line_keys(config["hardware"], []) == ["hardware.backend.setup"]
    with pytest.raises(ConfigError, match="command lines"):
        check_command_lines(config)
    composed = with_permissions(config)
    assert composed["trusted_modules"] == ["shell"]
    check_command_lines(composed)
    reasons = {"llmrl.llms.retry.Retry": "not a backend", "nobody.Knows": "outside the trusted modules"}
    for target, reason in reasons.items():
        with pytest.raises(ConfigError, match=reason):
            find_command_line_keys({"backend": {"_target_": target, "setup": ["x"]}}, [])
