"""Files for citation, packaging, bug reports and contributions are complete and correct."""

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


def test_citation_matches_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and citation["authors"] and citation["title"].startswith("llmrl")
    assert citation["version"] == llmrl.__version__ and citation["license"] == PROJECT["license"]
    assert f"## {llmrl.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_ci_runs_script_on_all_pythons():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    job = workflow["jobs"]["test"]
    assert any(step.get("run") == "bash .ci/run" for step in job["steps"])
    supported = SpecifierSet(PROJECT["requires-python"])
    versions = [f"3.{minor}" for minor in range(8, 20) if f"3.{minor}" in supported]
    assert job["strategy"]["matrix"]["python"] == versions


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_issue_forms_have_required_fields(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    ids = [part["id"] for part in form["body"]]
    assert len(set(ids)) == len(ids) and all(part["attributes"]["label"] for part in form["body"])


def test_copyleft_requirements_are_in_notice():
    """Those that everybody gets; extras for development are left out."""
    notice = (ROOT / "NOTICE").read_text()
    visited, open_ = set(), [Requirement(dependency).name for dependency in PROJECT["dependencies"]]
    while open_:
        name = open_.pop()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # not of this platform
        if name in visited:
            continue
        visited.add(name)
        requirements = [Requirement(requirement) for requirement in distribution.requires or []]
        open_ += [
            requirement.name
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
        # Some packages have the licenses of all that they bundle there; theirs comes first.
        licenses = [(distribution.metadata.get(key) or "")[:80] for key in ("License-Expression", "License")]
        licenses += [line for line in distribution.metadata.get_all("Classifier") or [] if line.startswith("License")]
        if re.search(r"\b[AL]?GPL|General Public", " ".join(licenses)):
            assert name in notice, name
    assert len(visited) > 20


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_page_files_exist(name):
    text = (ROOT / name).read_text()
    paths = re.findall(r"`((?:src|conf|docs|tests|scripts|benchmarks|core)/[\w/.*-]*)`|\]\((\w[\w/.-]*\.md)\)", text)
    for code, link in paths:
        path = code or link
        assert (ROOT / path).exists() or (ROOT / "src" / "llmrl" / path).exists(), path


def read_pins(name):
    """Return the versions that a file of requirements names, by normalized name of the package."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in lines}


def test_lock_pins_direct_dependencies():
    """After a change of pyproject.toml or constraints.txt: scripts/lock.sh."""
    lock, pins = read_pins("requirements.lock"), read_pins("constraints.txt")
    shared = lock.keys() & pins.keys()
    assert len(shared) > 200 and not {name: lock[name] for name in shared if lock[name] != pins[name]}
    extras = PROJECT["optional-dependencies"]
    direct = [
        *PROJECT["dependencies"],
        *(dependency for name in extras.keys() - {"gpu"} for dependency in extras[name]),
    ]
    for requirement in map(Requirement, direct):
        name = canonicalize_name(requirement.name)
        assert name in lock and requirement.specifier.contains(lock[name]), requirement


def test_lock_has_hashes_no_urls():
    text = (ROOT / "requirements.lock").read_text()
    requirements = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(requirements) > 250 and all("--hash=sha256:" in block for block in requirements)
    assert not re.search(r"https?://|file:|^--", text, re.MULTILINE)
