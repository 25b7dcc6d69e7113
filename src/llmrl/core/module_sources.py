"""Source files of the modules outside llmrl that a run uses, and a digest of them.

Modules are found without importing them. Covered are the modules that a config names, the packages around them, and
what these import, at any depth, from the same top-level package or the same folder; not what they import by a name
that is computed, nor data files.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from llmrl.core.installed import entry_points

_EXCLUDED = frozenset({"llmrl", "hydra_plugins", *sys.stdlib_module_names})
"""Top-level packages that are not user code."""
DIGEST_LENGTH = 12


@dataclass(frozen=True)
class ModuleSources:
    """Source files of modules.

    Attributes:
        files: content by path relative to the folder on `sys.path`, such as `my_package/parts.py`; without
            extension modules.
        digest: 12 hexadecimal digits that depend on the syntax trees of these files without docstrings, and on the
            versions of installed packages; empty without modules.
    """

    files: Mapping[str, bytes]
    digest: str


@dataclass(frozen=True)
class _Module:
    name: str
    spec: ModuleSpec
    content: bytes

    @property
    def file(self) -> Path:
        assert self.spec.origin is not None
        return Path(self.spec.origin)

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @property
    def root(self) -> Path:
        return _root(self.name, self.file)

    @property
    def path(self) -> str:
        """Path of the file relative to `root`."""
        base = self.name.replace(".", "/")
        return f"{base}/{self.file.name}" if self.file.stem == "__init__" else base + self.file.suffix

    def imports(self) -> Iterator[str]:
        """Yield dotted names that the module imports; the last part may be the name of an object."""
        package = self.name if self.spec.submodule_search_locations is not None else self.name.rpartition(".")[0]
        for level, name in _analyze(self.content, self.file.suffix)[1]:
            base = package.rsplit(".", level - 1)[0] if level else ""
            yield ".".join(filter(None, (base, name)))


_module_contents: dict[str, tuple[ModuleSpec, bytes]] = {}
"""Content of imported modules, cached when it is first read, because files may change after the import."""
_source_cache: dict[str, ModuleSources] = {}


def collect(names: Iterable[str]) -> ModuleSources:
    """Return the sources of modules and of what they import from the same package or folder.

    Args:
        names: dotted names of modules, classes or functions; unknown names, the standard library and llmrl are left
            out.
    """
    module_map: dict[str, _Module] = {}
    waiting = [module for name in names for module in _find(name)]
    while waiting:
        module = waiting.pop()
        if module.name not in module_map:
            module_map[module.name] = module
            waiting += [other for name in module.imports() for other in _find(name, module)]
    modules = sorted(module_map.values(), key=lambda module: module.name)
    entries = [(module.name, _analyze(module.content, module.file.suffix)[0]) for module in modules]
    entries += [(version, "") for module in modules for version in _versions(module.top, _is_site(module.root))]
    digest = hashlib.sha256(repr(sorted(set(entries))).encode()).hexdigest()[:DIGEST_LENGTH] if entries else ""
    sources = ModuleSources({m.path: m.content for m in modules if m.file.suffix == ".py"}, digest)
    _source_cache[digest] = sources
    return sources


def collected_files(digest: str) -> Mapping[str, bytes]:
    """Return the files with a digest that `collect` has returned in this process; nothing if it has not."""
    return _source_cache[digest].files if digest in _source_cache else {}


def module_content(name: str) -> bytes | None:
    """Return the content of a module's file, as it was imported in this process if it was; None if it is not found."""
    return next((module.content for module in _find(name) if module.name == name), None)


def _find(name: str, importer: _Module | None = None) -> Iterator[_Module]:
    """Yield the modules on the way to a dotted name, packages first; nothing if they are no sources of `importer`."""
    parts = name.split(".")
    path: list[str] | None = None
    if parts[0] in _EXCLUDED or not all(part.isidentifier() for part in parts):
        return
    for i in range(len(parts)):
        module = ".".join(parts[: i + 1])
        spec = _spec(module, path)
        if spec is None:
            return
        if spec.has_location and spec.origin is not None:
            if importer is not None and not _belongs(module, _root(module, Path(spec.origin)), importer):
                return
            yield _Module(module, spec, _content(module, spec))
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if path is None:
            return


def _root(name: str, file: Path) -> Path:
    """Return the folder that holds the top-level package of a module, or the module."""
    return file.parents[name.count(".") + (file.stem == "__init__")]


def _belongs(name: str, root: Path, importer: _Module) -> bool:
    """Return whether an imported module is in the package, or in the folder, of the module that imports it."""
    return name.partition(".")[0] == importer.top or (root == importer.root and not _is_site(root))


@functools.cache
def _is_site(root: Path) -> bool:
    """Return whether packages are installed in a folder: unrelated ones are then in the same folder."""
    return any(root.glob("*.dist-info"))


def _spec(name: str, path: list[str] | None) -> ModuleSpec | None:
    """Return the spec of a module in the folders `path` of its package, without importing either."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__spec__", None)
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except KeyError:  # a folder without __init__.py, whose package is not imported
            folders = [Path(entry, name.rpartition(".")[2]) for entry in path or ()]
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
        if spec is not None:
            return spec
    return None


def _content(name: str, spec: ModuleSpec) -> bytes:
    is_live = name in sys.modules
    if is_live and name in _module_contents and _module_contents[name][0] is spec:
        return _module_contents[name][1]
    read: Any = getattr(spec.loader, "get_data", None)
    content: bytes = Path(str(spec.origin)).read_bytes() if read is None else read(spec.origin)
    if is_live:
        _module_contents[name] = (spec, content)
    return content


@functools.lru_cache(maxsize=4096)
def _analyze(content: bytes, suffix: str) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Return a digest of a file, and each import in it: level (0: absolute) and dotted name."""
    tree = None
    if suffix == ".py":
        with suppress(SyntaxError, ValueError):  # the import reports them
            tree = ast.parse(content)
    if tree is None:
        return hashlib.sha256(content).hexdigest(), ()
    imports: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports += [(node.level, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names]
    return hashlib.sha256(repr(_structure(tree)).encode()).hexdigest(), tuple(imports)


def _structure(node: Any) -> Any:
    """Return a syntax tree as nested tuples, without docstrings and positions.

    Unlike `ast.dump`, the tuples do not depend on the version of Python, which adds optional fields.
    """
    if isinstance(node, list):
        return tuple(_structure(item) for item in node)
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    documentable = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, documentable) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    field_values = {name: value for name, value in fields.items() if value not in (None, []) and name != "kind"}
    return (type(node).__name__, *((name, _structure(value)) for name, value in field_values.items()))


def _versions(top: str, is_site: bool) -> list[str]:
    """Return name and version of the distributions of a top-level package."""
    declared = {entry.package for entry in entry_points() if entry.module.partition(".")[0] == top}
    return sorted(declared) if declared or not is_site else _site_versions(top)


@functools.cache  # reads the metadata of all packages, which takes seconds
def _site_versions(top: str) -> list[str]:
    from importlib.metadata import packages_distributions, version

    return sorted({f"{name} {version(name)}" for name in packages_distributions().get(top, ())})
