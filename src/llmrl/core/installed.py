"""Entry points that installed packages declare for llmrl, in the groups `ENTRY_POINT_GROUPS`.

Only metadata files are read; no code of these packages is imported. `importlib.metadata.entry_points()` would parse
the entry points of every installed package, which takes as long as the rest of `--help`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PARTS_GROUP = "llmrl.parts"
"""Group of parts, with names `<config group>.<option>`, and of trusted modules, with any other names."""
BACKENDS_GROUP = "llmrl.backends"
"""Group of backends, which execute the runs of a sweep."""
SINKS_GROUP = "llmrl.sinks"
"""Group of sinks, which receive metrics."""
ENTRY_POINT_GROUPS = (PARTS_GROUP, BACKENDS_GROUP, SINKS_GROUP)

_METADATA_SUFFIXES = (".dist-info", ".egg-info")


@dataclass(frozen=True)
class EntryPoint:
    """An entry point, one line of a package's table such as `[project.entry-points."llmrl.parts"]`.

    Attributes:
        group: one of `ENTRY_POINT_GROUPS`.
        name: name before the equals sign.
        module: dotted name of the module that the entry point names.
        attribute: class or function in the module; empty if the entry point names the module.
        package: name and version of the distribution that declares it.
    """

    group: str
    name: str
    module: str
    attribute: str
    package: str

    @property
    def target(self) -> str:
        """Dotted name of the module, class or function."""
        return f"{self.module}.{self.attribute}" if self.attribute else self.module


@functools.cache
def entry_points() -> tuple[EntryPoint, ...]:
    """Return the entry points of all installed packages, sorted by group, name and package.

    Packages in the working directory are ignored. If there are several versions of a package, the first on `sys.path`
    is used, as in an import.
    """
    working_folder = os.path.realpath(Path.cwd())
    entry_points_by_package: dict[str, list[EntryPoint]] = {}
    for path in dict.fromkeys(sys.path):
        if path and os.path.realpath(path) != working_folder:
            for folder in _iterate_metadata_folders(path):
                name = os.path.splitext(os.path.basename(folder))[0].partition("-")[0].lower()  # noqa: PTH119, PTH122
                if name not in entry_points_by_package:
                    entry_points_by_package[name] = _read_entry_points(folder)
    all_entries = (entry for package_entries in entry_points_by_package.values() for entry in package_entries)
    return tuple(sorted(all_entries, key=lambda entry: (entry.group, entry.name, entry.package)))


def _iterate_metadata_folders(path: str) -> Iterator[str]:
    """Yield the metadata folders in `path`, sorted; nothing if it is a zip archive or does not exist."""
    with contextlib.suppress(OSError), os.scandir(path) as folder_entries:
        yield from sorted(entry.path for entry in folder_entries if entry.name.endswith(_METADATA_SUFFIXES))


def _read_entry_points(folder: str) -> list[EntryPoint]:
    """Return the entry points in a metadata folder that belong to a group of llmrl."""
    try:
        with open(f"{folder}/entry_points.txt", "rb") as file:  # noqa: PTH123 (hundreds of files at every start)
            if b"[llmrl." not in file.read():
                return []
    except OSError:
        return []
    from importlib.metadata import PathDistribution

    distribution = PathDistribution(Path(folder))
    package = f"{distribution.metadata['Name']} {distribution.metadata['Version']}"
    return [
        EntryPoint(entry.group, entry.name, entry.module, entry.attr, package)
        for entry in distribution.entry_points
        if entry.group in ENTRY_POINT_GROUPS
    ]
