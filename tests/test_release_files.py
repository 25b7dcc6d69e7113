"""What stands beside the code for those who cite, package, report or contribute is whole and true."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import llmrl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["authors"] and citation["title"].startswith("llmrl")
    assert citation["version"] == llmrl.__version__ and citation["license"] == PROJECT["license"]
    assert f"## {llmrl.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_continuous_integration_runs_the_one_script_on_every_python():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    job = workflow["jobs"]["test"]
    assert any(step.get("run") == "bash .ci/run" for step in job["steps"])
    supported = SpecifierSet(PROJECT["requires-python"])
    every = [f"3.{minor}" for minor in range(8, 20) if f"3.{minor}" in supported]
    assert job["strategy"]["matrix"]["python"] == every


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_issue_forms_have_what_forms_need(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    ids = [part["id"] for part in form["body"]]
    assert len(set(ids)) == len(ids) and all(part["attributes"]["label"] for part in form["body"])


def test_copyleft_requirements_are_named():
    """Those that everybody gets; extras for development are left out."""
    notice = (ROOT / "NOTICE").read_text()
    seen, open_ = set(), [Requirement(each).name for each in PROJECT["dependencies"]]
    while open_:
        name = open_.pop()
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # not of this platform
        if name in seen:
            continue
        seen.add(name)
        needed = [Requirement(each) for each in found.requires or []]
        open_ += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
        # Some packages have the licences of all that they bundle there; theirs comes first.
        told = [(found.metadata.get(key) or "")[:80] for key in ("License-Expression", "License")]
        told += [line for line in found.metadata.get_all("Classifier") or [] if line.startswith("License")]
        if re.search(r"\b[AL]?GPL|General Public", " ".join(told)):
            assert name in notice, name
    assert len(seen) > 20


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_pages_name_files_that_are_there(name):
    text = (ROOT / name).read_text()
    named = re.findall(r"`((?:src|conf|docs|tests|scripts|benchmarks|core)/[\w/.*-]*)`|\]\((\w[\w/.-]*\.md)\)", text)
    for code, link in named:
        path = code or link
        assert (ROOT / path).exists() or (ROOT / "src" / "llmrl" / path).exists(), path


def read_pins(name):
    """Return the versions that a file of requirements names, by normalized name of the package."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in lines}


def test_the_lock_has_the_pinned_versions_and_every_direct_dependency():
    """After a change of pyproject.toml or constraints.txt: scripts/lock.sh."""
    lock, pins = read_pins("requirements.lock"), read_pins("constraints.txt")
    shared = lock.keys() & pins.keys()
    assert len(shared) > 200 and not {name: lock[name] for name in shared if lock[name] != pins[name]}
    extras = PROJECT["optional-dependencies"]
    direct = [*PROJECT["dependencies"], *(each for name in extras.keys() - {"gpu", "inspect"} for each in extras[name])]
    for each in map(Requirement, direct):
        name = canonicalize_name(each.name)
        assert name in lock and each.specifier.contains(lock[name]), each


def test_the_lock_has_hashes_and_no_addresses():
    text = (ROOT / "requirements.lock").read_text()
    requirements = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(requirements) > 250 and all("--hash=sha256:" in each for each in requirements)
    assert not re.search(r"https?://|file:|^--", text, re.MULTILINE)
