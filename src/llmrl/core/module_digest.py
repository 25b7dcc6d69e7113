"""Digest of the user's code that a run uses, so that runs of different code are different runs."""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from llmrl.core.installed import entry_points

_EXCLUDED = frozenset({"llmrl", "hydra_plugins", *sys.stdlib_module_names})
"""Top-level packages that are not user code."""


def module_digest(names: Iterable[str]) -> str:
    """Return 12 hexadecimal digits for the packages, and the modules without a package, that hold named code.

    They depend on all Python files of a package but not on comments and layout, and on the version of an installed
    package. Empty without such code. Nothing is imported.

    Args:
        names: dotted names of modules, classes or functions; unknown names, the standard library and llmrl are left
            out.
    """
    packages = sorted({name.partition(".")[0] for name in names} - _EXCLUDED - {""})
    entries = [entry for package in packages for entry in _entries(package)]
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:12] if entries else ""


@functools.cache  # as imported: later edits of a file do not change the code of this process
def _entries(package: str) -> tuple[str, ...]:
    """Return the code of the files of a package, or the version if it is installed."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module that was made without a file
        spec = None
    if spec is None:
        return ()
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    if not folders and spec.origin is not None and spec.has_location:
        files = [Path(spec.origin)]
    sites = [folder.parent for folder in folders] or [file.parent for file in files]
    if any(next(site.glob("*.dist-info"), None) for site in sites):
        return _versions(package)
    return tuple(f"{file.name} {_code(file.read_bytes())}" for file in files)


def _code(content: bytes) -> str:
    """Return the content of a Python file without comments and layout; unchanged if it is not valid."""
    with suppress(SyntaxError, ValueError):  # the import reports them
        return ast.unparse(ast.parse(content))
    return repr(content)


def _versions(package: str) -> tuple[str, ...]:
    """Return name and version of the distributions of an installed top-level package."""
    from importlib.metadata import packages_distributions, version  # reads the metadata of all packages

    if declared := {entry.package for entry in entry_points() if entry.module.partition(".")[0] == package}:
        return tuple(sorted(declared))
    return tuple(sorted({f"{name} {version(name)}" for name in packages_distributions().get(package, ())}))
