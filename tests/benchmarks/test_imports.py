"""Programs outside the package import names that exist: few of them are run by other tests."""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for folder in ("benchmarks", "scripts", "examples") for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "llmrl":
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_imported_names_exist(path):
    for module, name in imports(path):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")  # a module of a package
            assert f"{module}.{name}" in sys.modules
