"""Digest of user modules: the files that it covers, and the changes that affect it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from llmrl.config import input_digests
from llmrl.config.input_digests import compute_module_digest
from llmrl.core.installed import entry_points

FILES = {"field_lab/__init__.py": "", "field_lab/deep/rates.py": "RATE = 2\n", "shared_rules.py": "LIMIT = 3\n"}


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a package and a module into `tmp_path`, and return the digest of a name as in a new process."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    def compute(name: str) -> str:
        input_digests._read_package_sources.cache_clear()
        entry_points.cache_clear()
        importlib.invalidate_caches()
        return compute_module_digest([name])

    return compute


@pytest.mark.parametrize(
    ("path", "name"),
    [("field_lab/deep/rates.py", "field_lab.parts.Coins"), ("shared_rules.py", "shared_rules")],
)
def test_code_changes_digest(tmp_path: Path, digest: Callable[[str], str], path: str, name: str) -> None:
    initial = digest(name)
    (tmp_path / path).write_text(f"# a comment\n{FILES[path]}\n")
    assert digest(name) == initial != ""
    (tmp_path / path).write_text(f"{FILES[path]}MORE = 1\n")
    assert compute_module_digest([name]) == initial, "this process has imported the earlier code"
    assert digest(name) != initial
    (tmp_path / path).write_text("RATE = = 2\n")
    assert digest(name) != initial


def test_installed_package_is_identified_by_version(tmp_path: Path, digest: Callable[[str], str]) -> None:
    results = []
    for version in ("1.0", "1.0", "1.1"):
        metadata = tmp_path / "field_lab-1.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: field-lab\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text("[llmrl.parts]\nprincipal.mine = field_lab.parts:Mine\n")
        results.append(digest("field_lab.parts.Mine"))
    entry_points.cache_clear()
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("name", ["llmrl.agents.ppo_agent.PPOAgent", "collections.Counter", "no_such_package.Part", ""])
def test_only_user_code_counts(name: str) -> None:
    assert compute_module_digest([name]) == ""
