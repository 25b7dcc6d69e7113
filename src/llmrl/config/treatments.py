"""Treatments and the studies they fit: `experiment=<family>/<study> treatment=<name>`.

The head of a treatment's file lists its studies: `# @studies search/*,regimes/escape_room`, `*` for any name. A
treatment without such a line fits any study, and a study of the user's own takes any treatment.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path

from llmrl.core.errors import ConfigError
from llmrl.core.option_files import PIECES

_STUDIES = re.compile(r"^# @studies (\S+)$", re.MULTILINE)


def check_treatment(choices: Mapping[str, str | None], folders: Iterable[Path] = ()) -> None:
    """Raise ConfigError for a treatment without a study, for one of another study, or for one of another principal.

    Args:
        choices: chosen option of each config group; None or "none" without one.
        folders: folders with the user's own options, which may have treatments, too.

    Raises:
        ConfigError: the choices do not fit; the message lists the treatments or studies that would.
    """
    treatment, study = choices.get("treatment"), choices.get("experiment")
    for group, option in (("experiment", study), ("treatment", treatment)):
        if option is not None and not set(PIECES).isdisjoint(option.split("/")):
            raise ConfigError(f"{group}={option} is a piece of what can be chosen, not an option; llmrl-train --help")
    if treatment in (None, "none"):
        return
    files = [root / "treatment" / f"{treatment}.yaml" for root in (_shipped(), *folders)]
    file = next((each for each in files if each.is_file()), None)
    if file is None:
        return
    made_for = _studies_of(file)
    if made_for is not None and study in (None, "none"):
        raise ConfigError(f"treatment={treatment} is a way to do a study: add {_one_of('experiment', made_for)}")
    if made_for is not None and study in studies() and study not in made_for:
        others = [name for name, each in treatments().items() if study in each]
        takes = _one_of("treatment", others) if others else "no treatment: choose its parts, such as principal="
        raise ConfigError(
            f"treatment={treatment} is for {_one_of('experiment', made_for)}; experiment={study} takes {takes}"
        )
    meant, chosen = _principal_of(file), choices.get("principal")
    if meant is not None and meant != chosen:
        raise ConfigError(
            f"treatment={treatment} sets numbers of principal={meant}, which principal={chosen} has not: leave one of "
            "the two out"
        )


def treatments() -> dict[str, list[str]]:
    """Return the treatments of the package, each with the studies that it was made for; both are sorted."""
    files = sorted((_shipped() / "treatment").glob("*.yaml"))
    return {file.stem: _studies_of(file) or [] for file in files if file.stem != "none"}


@functools.cache
def studies() -> tuple[str, ...]:
    """Return the studies of the package, `<family>/<name>`, sorted."""
    root = _shipped() / "experiment"
    names = [file.relative_to(root).with_suffix("").as_posix() for file in root.glob("*/*.yaml")]
    return tuple(sorted(name for name in names if name.split("/")[0] not in PIECES))


def _shipped() -> Path:
    return Path(str(resources.files("llmrl.conf")))


def _studies_of(file: Path) -> list[str] | None:
    """Return the studies that a treatment was made for; None if its file does not list them."""
    found = _STUDIES.search(file.read_text())
    return None if found is None else [s for s in studies() if any(fnmatchcase(s, p) for p in found[1].split(","))]


def _principal_of(file: Path) -> str | None:
    """Return the principal whose options a treatment sets, chosen in its file or in a treatment that it includes; None
    if it sets none."""
    import yaml

    content = yaml.safe_load(file.read_text())
    chosen = None
    for entry in content.get("defaults", []):
        if isinstance(entry, str) and (sibling := file.parent / f"{entry}.yaml").is_file():
            chosen = _principal_of(sibling)
        elif isinstance(entry, dict):
            chosen = entry.get("override /principal", chosen)
    return chosen if "principal" in content else None


def _one_of(group: str, options: Sequence[str]) -> str:
    """
    >>> _one_of("env", ["a", "b", "c"])
    'env=a, b or c'
    """
    return f"{group}={' or '.join([*([', '.join(options[:-1])] if options[1:] else []), options[-1]])}"
