"""What installed packages declare for this one, as entry points of the groups `GROUPS`.

Their files are read, no code of theirs is imported. `importlib.metadata.entry_points()` would parse those of
every package there is, which takes as long as the rest of `--help`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PARTS = "llmrl.parts"
"""Parts of an experiment, named `<config group>.<option>`; or modules that are trusted, under any name."""
BACKENDS = "llmrl.backends"
"""Where runs of a sweep are computed."""
SINKS = "llmrl.sinks"
"""Where metrics go."""
GROUPS = (PARTS, BACKENDS, SINKS)

_METADATA = (".dist-info", ".egg-info")


@dataclass(frozen=True)
class EntryPoint:
    """One line of a package's `[project.entry-points."llmrl.parts"]`.

    Attributes:
        group: one of `GROUPS`.
        name: what stands before the equals sign.
        module: dotted name of the module that it means.
        attribute: class or function in it; empty if the module itself is meant.
        package: the distribution that declares it, with its version.
    """

    group: str
    name: str
    module: str
    attribute: str
    package: str

    @property
    def target(self) -> str:
        """The dotted name of what it means."""
        return f"{self.module}.{self.attribute}" if self.attribute else self.module


@functools.cache
def entry_points() -> tuple[EntryPoint, ...]:
    """Return those of all installed packages, by group and name; what lies in the working directory is not installed.

    Of a package that is found twice the first counts, as where it is imported.
    """
    here = os.path.realpath(Path.cwd())
    found: dict[str, list[EntryPoint]] = {}
    for place in dict.fromkeys(sys.path):
        if place and os.path.realpath(place) != here:
            for folder in _declaring(place):
                name = Path(folder).name.partition("-")[0].lower()
                found.setdefault(name, list(_read(folder)))
    every = (entry for entries in found.values() for entry in entries)
    return tuple(sorted(every, key=lambda entry: (entry.group, entry.name, entry.package)))


def _declaring(place: str) -> Iterator[str]:
    """Folders of metadata in `place` whose entry points may be some of ours."""
    try:
        with os.scandir(place) as entries:
            folders = sorted(entry.path for entry in entries if entry.name.endswith(_METADATA))
    except OSError:
        return  # a zip archive, or nothing at all
    for folder in folders:
        try:
            with open(f"{folder}/entry_points.txt", "rb") as file:  # noqa: PTH123 (hundreds of files at every start)
                if b"[llmrl." in file.read():
                    yield folder
        except OSError:
            continue


def _read(folder: str) -> Iterator[EntryPoint]:
    from importlib.metadata import PathDistribution

    distribution = PathDistribution(Path(folder))
    package = f"{distribution.metadata['Name']} {distribution.metadata['Version']}"
    for entry in distribution.entry_points:
        if entry.group in GROUPS:
            yield EntryPoint(entry.group, entry.name, entry.module, entry.attr, package)
