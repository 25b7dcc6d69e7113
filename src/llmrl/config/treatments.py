"""Check that a treatment is valid for a study: `experiment=<family>/<study> treatment=<name>`.

The comment above a treatment, or at the top of its file, lists its studies: `# @studies search/*,regimes/escape_room`,
where `*` matches any name. A treatment without such a line is valid for all studies, and a study of the user accepts
all treatments.
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
    get_root,
    is_choosable,
    list_nested_options,
    list_option_names,
    read_comment,
    read_file,
)

_STUDIES_PATTERN = re.compile(r"# @studies (\S+)$")


def check_treatment(choices: Mapping[str, str | None], folders: Iterable[Path] = ()) -> None:
    """Check that the chosen treatment is valid for the chosen study and principal.

    Args:
        choices: chosen options by config group; None or "none" without one.
        folders: folders with options of the user, which may contain treatments.

    Raises:
        ConfigError: the treatment needs a study, or is for other studies or another principal. The message lists valid
            choices.
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
    paths = [folder / "treatment" / f"{treatment}.yaml" for folder in (get_root(), *folders)]
    path = next((path for path in paths if find_file(path) is not None), None)
    if path is None:
        return
    study_names = _read_valid_studies(path)
    if study_names is not None and study in (None, "none"):
        raise ConfigError(f"treatment={treatment} needs a study: add {_format_choices('experiment', study_names)}")
    if study_names is not None and study in list_studies() and study not in study_names:
        compatible_treatments = [name for name, studies in list_studies_by_treatment().items() if study in studies]
        accepted_text = _format_choices("treatment", compatible_treatments) if compatible_treatments else "no treatment"
        raise ConfigError(
            f"treatment={treatment} is for {_format_choices('experiment', study_names)}; experiment={study} takes "
            f"{accepted_text}"
        )
    treatment_principal, principal = _read_principal(path), choices.get("principal")
    if treatment_principal is not None and treatment_principal != principal:
        raise ConfigError(
            f"treatment={treatment} sets numbers of principal={treatment_principal}, which principal={principal} does "
            "not have; leave one of the two out"
        )


def list_studies_by_treatment() -> dict[str, list[str]]:
    """Return the sorted studies of each shipped treatment, by treatment; an empty list if all studies are valid."""
    names = [name for name in list_option_names("treatment") if name != "none"]
    return {name: _read_valid_studies(get_root() / "treatment" / f"{name}.yaml") or [] for name in names}


@functools.cache
def list_studies() -> tuple[str, ...]:
    """Return the shipped studies, `<family>/<name>`, sorted."""
    return tuple(list_nested_options("experiment"))


def _read_valid_studies(path: Path) -> list[str] | None:
    """Return the studies for which a treatment is valid; None for all."""
    lines = [*read_comment(path), *read_comment(get_file(path))]
    match = next((match for line in lines if (match := _STUDIES_PATTERN.match(line))), None)
    patterns = [] if match is None else match[1].split(",")
    studies = [study for study in list_studies() if any(fnmatchcase(study, pattern) for pattern in patterns)]
    return None if match is None else studies


def _read_principal(path: Path) -> str | None:
    """Return the principal, chosen by a treatment or its bases, whose options the treatment sets; None without any."""
    values = read_file(path)
    principal = None
    for default in values.get("defaults", []):
        if isinstance(default, str) and find_file(base_path := path.parent / f"{default}.yaml") is not None:
            principal = _read_principal(base_path)
        elif isinstance(default, dict):
            principal = default.get("override /principal", principal)
    return principal if "principal" in values else None


def _format_choices(group: str, options: Sequence[str]) -> str:
    """Return choices of a group as text.

    >>> _format_choices("env", ["a", "b", "c"])
    'env=a, b or c'
    """
    return f"{group}={' or '.join([*([', '.join(options[:-1])] if options[1:] else []), options[-1]])}"
