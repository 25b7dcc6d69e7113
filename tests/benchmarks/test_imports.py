"""Programs outside the package use names and arguments that exist: few of them are run by other tests."""

import ast
import importlib
import inspect
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


def calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield module, name and call of each imported function or class that is called by its name.

    Exceptions are left out, because they have no signature.
    """
    tree = ast.parse(path.read_text())
    origins: dict[str, set[tuple[str | None, str]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                origins.setdefault(alias.asname or alias.name, set()).add((node.module, alias.name))
    modules = {
        name: module
        for module, name in imports(path)
        if origins.get(name) == {(module, name)} and not name.endswith("Error")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in modules:
            yield modules[node.func.id], node.func.id, node


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_arguments_exist(path):
    for module, name, call in calls(path):
        is_unpacked = any(isinstance(argument, ast.Starred) for argument in call.args) or None in {
            keyword.arg for keyword in call.keywords
        }
        signature = inspect.signature(getattr(importlib.import_module(module), name))
        bind = signature.bind_partial if is_unpacked else signature.bind
        positional = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
        bind(*positional, **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None})
