"""Treatments and the studies they fit: `experiment=<family>/<study> treatment=<name>`.

The header of a treatment, or that of its file, lists its studies: `# @studies search/*,regimes/escape_room`, with `*`
for any name. A treatment without such a line fits any study, and a study of the user's own accepts any treatment.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from llmrl.core.errors import ConfigError
from llmrl.core.option_files import (
    find_file,
    get_file,
    is_choosable,
    list_nested_options,
    list_option_names,
    read_comment,
    read_file,
    root,
)

_STUDIES_PATTERN = re.compile(r"# @studies (\S+)$")


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
        if option is not None and not is_choosable(option):
            raise ConfigError(
                f"{group}={option} is included by options but cannot be chosen; llmrl-train --list {group} shows the "
                "options"
            )
    if treatment in (None, "none"):
        return
    paths = [folder / "treatment" / f"{treatment}.yaml" for folder in (root(), *folders)]
    path = next((path for path in paths if find_file(path) is not None), None)
    if path is None:
        return
    study_names = _read_studies(path)
    if study_names is not None and study in (None, "none"):
        raise ConfigError(f"treatment={treatment} needs a study: add {_format_choices('experiment', study_names)}")
    if study_names is not None and study in list_studies() and study not in study_names:
        compatible_treatments = [name for name, fitting in studies_by_treatment().items() if study in fitting]
        accepted = _format_choices("treatment", compatible_treatments) if compatible_treatments else "no treatment"
        raise ConfigError(
            f"treatment={treatment} is for {_format_choices('experiment', study_names)}; experiment={study} takes "
            f"{accepted}"
        )
    treatment_principal, principal = _read_principal(path), choices.get("principal")
    if treatment_principal is not None and treatment_principal != principal:
        raise ConfigError(
            f"treatment={treatment} sets numbers of principal={treatment_principal}, which principal={principal} does "
            "not have; leave one of the two out"
        )


def studies_by_treatment() -> dict[str, list[str]]:
    """Return the treatments of the package, each with the studies that it was made for; both are sorted."""
    folder = root() / "treatment"
    return {
        name: _read_studies(folder / f"{name}.yaml") or [] for name in list_option_names("treatment") if name != "none"
    }


@functools.cache
def list_studies() -> tuple[str, ...]:
    """Return the studies of the package, `<family>/<name>`, sorted."""
    return tuple(list_nested_options("experiment"))


def _read_studies(path: Path) -> list[str] | None:
    """Return the studies that a treatment was made for; None if neither it nor its file lists them."""
    lines = [*read_comment(path), *read_comment(get_file(path))]
    match = next((match for line in lines if (match := _STUDIES_PATTERN.match(line))), None)
    return None if match is None else [s for s in list_studies() if any(fnmatchcase(s, p) for p in match[1].split(","))]


def _read_principal(path: Path) -> str | None:
    """Return the principal whose options a treatment sets; None if it sets none.

    It is chosen in the treatment or in one that it includes.
    """
    values = read_file(path)
    principal = None
    for entry in values.get("defaults", []):
        if isinstance(entry, str) and find_file(included_path := path.parent / f"{entry}.yaml") is not None:
            principal = _read_principal(included_path)
        elif isinstance(entry, dict):
            principal = entry.get("override /principal", principal)
    return principal if "principal" in values else None


def _format_choices(group: str, options: Sequence[str]) -> str:
    """Return a text that lists choices of a group.

    >>> _format_choices("env", ["a", "b", "c"])
    'env=a, b or c'
    """
    return f"{group}={' or '.join([*([', '.join(options[:-1])] if options[1:] else []), options[-1]])}"
