"""Copies of the user's modules: `sources/` of a run folder, and the imports of jobs."""

from __future__ import annotations

import errno
import shutil
import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import create_folder, read_bytes
from llmrl.core.module_sources import collected_files, module_content
from llmrl.run.files import write_bytes

FOLDER = "sources"
KEY = "sources_digest"
"""Key of a config: digest of the modules outside llmrl that its parts come from; absent without such modules."""


def sources_of(config: Mapping[str, Any]) -> Mapping[str, bytes]:
    """Return the files with the digest in a config that was composed in this process; nothing without a digest.

    Keys are paths relative to the folder on `sys.path`.
    """
    return collected_files(config.get(KEY, ""))


def save_sources(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` to `sources/` in the run folder `folder`, unless that exists.

    Several launchers and the run may do this at the same time.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    if not files or (folder / FOLDER).exists():
        return
    partial = folder / f".{FOLDER}-{uuid.uuid4().hex[:8]}"
    try:
        for path, content in files.items():
            create_folder((partial / path).parent, folder)
            write_bytes(partial / path, content, folder)
        partial.rename(folder / FOLDER)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another process was faster
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def changed_sources(folder: Path) -> list[str]:
    """Return the files in `sources/` of a run folder whose modules are different or missing now, as relative paths.

    Raises:
        RunFolderError: a file cannot be read, or is a link.
    """
    copies = {path.relative_to(folder / FOLDER): path for path in sorted((folder / FOLDER).rglob("*.py"))}
    try:
        return [str(path) for path, copy in copies.items() if module_content(_name(path)) != read_bytes(copy, folder)]
    except OSError as error:
        raise RunFolderError(f"cannot read {folder / FOLDER}: {error.strerror or error}") from error


def import_from(files: Mapping[str, bytes], folder: Path) -> None:
    """Load modules that are imported from now on from `files`, if they are among them.

    `__file__` and `__path__` stay those of the original, next to which data files and further modules are found.

    Args:
        files: content by path relative to the folder on `sys.path`. It comes from the launching process, not from the
            run folder, where others may have written.
        folder: run folder with copies of the files, which tracebacks refer to.
    """
    if files:
        copies = {_name(Path(path)): (folder / FOLDER / path, content) for path, content in files.items()}
        sys.meta_path.insert(0, _CopyFinder(copies))


def _name(path: Path) -> str:
    """Return the dotted name of the module in a file."""
    return ".".join((path.parent if path.stem == "__init__" else path.with_suffix("")).parts)


class _CopyFinder:
    """A finder of modules by name, whose copies are given as path and content."""

    def __init__(self, copies: Mapping[str, tuple[Path, bytes]]) -> None:
        self._copies = copies

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._copies:
            return None
        copy, content = self._copies[name]
        finders = (finder for finder in sys.meta_path if not isinstance(finder, _CopyFinder))
        original = next((spec for finder in finders if (spec := finder.find_spec(name, path, target))), None)
        origin, locations = str(copy), [str(copy.parent)] if copy.name == "__init__.py" else None
        if original is not None and original.has_location and original.origin is not None:
            origin, locations = original.origin, original.submodule_search_locations
        loader = _CopyLoader(name, origin, copy, content)
        return spec_from_file_location(name, origin, loader=loader, submodule_search_locations=locations)


class _CopyLoader(SourceFileLoader):
    """A loader of a module from its copy."""

    def __init__(self, name: str, origin: str, copy: Path, content: bytes) -> None:
        super().__init__(name, origin)
        self._copy, self._content = copy, content

    def get_code(self, fullname: str) -> CodeType:
        # The bytecode cache belongs to the original, so the copy is compiled. Tracebacks show the lines of the copy.
        return compile(self._content, str(self._copy), "exec", dont_inherit=True)

    def get_data(self, path: str) -> bytes:
        return self._content if path == self.path else super().get_data(path)
