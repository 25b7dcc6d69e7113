"""Sources of user modules: included files, and changes that affect their digest."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrl.core.installed import entry_points
from llmrl.core.module_sources import collect, module_content

FILES = {
    "field_lab/__init__.py": "",
    "field_lab/parts.py": "from . import rates\nfrom .deep.tables import TABLE\nimport shared_rules, numpy, json\n",
    "field_lab/rates.py": "RATE = 2\n",
    "field_lab/deep/__init__.py": "",
    "field_lab/deep/tables.py": "def table():\n    import field_lab.late, field_lab.bare.rules\nTABLE = 1\n",
    "field_lab/bare/rules.py": "RULE = 1\n",
    "field_lab/late.py": '"""About it."""\nclass Late:\n    """More."""\n    def f(self):\n        return 1\n',
    "field_lab/unused.py": "UNUSED = 1\n",
    "shared_rules.py": "LIMIT = 3\n",
    "unrelated.py": "raise RuntimeError\n",
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a folder on the path with a package and modules."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("field_lab", "shared_rules")]:
        del sys.modules[name]


def edit(path: Path, text: str) -> None:
    path.write_text(text)
    importlib.invalidate_caches()


def digest() -> str:
    return collect(["field_lab.parts.Coins"]).digest


def test_sources_include_package_imports(lab: Path) -> None:
    files = collect(["field_lab.parts.Coins"]).files
    assert set(files) == set(FILES) - {"field_lab/unused.py", "unrelated.py"}
    assert all(files[path] == FILES[path].encode() for path in files)
    assert not any(name.startswith("field_lab") for name in sys.modules), "nothing has been imported"


@pytest.mark.parametrize(
    "path", ["field_lab/parts.py", "field_lab/late.py", "shared_rules.py", "field_lab/__init__.py"]
)
def test_code_changes_digest(lab: Path, path: str) -> None:
    initial = digest()
    edit(lab / path, FILES[path] + "MORE = 1\n")
    assert digest() != initial
    edit(lab / path, FILES[path])
    assert digest() == initial


@pytest.mark.parametrize(
    ("text", "is_equal"),
    [
        ('"""Other."""\nclass Late:\n    # a comment\n    def f(self):\n        return (1)\n', True),
        ('class Late:\n    def f(self):\n        """Even more."""\n\n        return 1\n', True),
        ("class Late:\n    def f(self):\n        return 1.0\n", False),
        ("class Late:\n    def f(self):\n        return True\n", False),
        ("class Late:\n    def f(self):\n        return\n", False),
        ("class Late:\n    def f(self):\n        return None\n", False),
        ("class Late:\n    def f(self):\n        return (1,)\n", False),
        ("class Late:\n    def f(self, *a):\n        return 1\n", False),
        ("class Late:\n    def f(self):\n        'no docstring' + ''\n        return 1\n", False),
        ("class Late:\n    def f(self):\n        return = 1\n", False),
    ],
)
def test_comments_keep_digest(lab: Path, text: str, is_equal: bool) -> None:
    initial = digest()
    edit(lab / "field_lab" / "late.py", text)
    assert (digest() == initial) == is_equal


def test_module_constants_change_digest(lab: Path) -> None:
    texts = [
        "x = 1",
        "x = 1.0",
        "x = True",
        "x = None",
        "x = '1'",
        "x = b'1'",
        "x = ()",
        "x = []",
        "x: int = 1",
        "x = y",
    ]
    names = set()
    for text in texts:
        edit(lab / "shared_rules.py", text)
        names.add(digest())
    assert len(names) == len(texts)


def test_digest_uses_imported_version(lab: Path) -> None:
    """Check that an edit after the import does not count, because the process uses the imported code."""
    importlib.import_module("field_lab.rates")
    initial = digest()
    edit(lab / "field_lab" / "rates.py", "RATE = 4\n")
    assert digest() == initial and module_content("field_lab.rates") == b"RATE = 2\n"
    importlib.reload(sys.modules["field_lab.rates"])
    assert digest() != initial and module_content("field_lab.rates") == b"RATE = 4\n"


def test_installed_package_is_hashed_with_version(lab: Path) -> None:
    def install(version: str) -> None:
        metadata = lab / "field_lab-1.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: field-lab\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text("[llmrl.parts]\nprincipal.mine = field_lab.parts:Mine\n")
        entry_points.cache_clear()

    install("1.0")
    first = collect(["field_lab.parts.Mine"])
    assert "shared_rules.py" not in first.files and "field_lab/rates.py" in first.files
    install("1.1")
    second = collect(["field_lab.parts.Mine"])
    assert second.files == first.files and second.digest != first.digest
    entry_points.cache_clear()


@pytest.mark.parametrize(
    "name", ["llmrl.agents.ppo_agent.PPOAgent", "collections.Counter", "no_such_package.Part", "", "a..b"]
)
def test_standard_library_has_no_sources(name: str) -> None:
    sources = collect([name])
    assert sources.files == {} and sources.digest == ""
