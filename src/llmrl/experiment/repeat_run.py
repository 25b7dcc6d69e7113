"""`--again <run> <override> ...`: arguments of a command that repeats a run with changes.

The overrides of the run are used again. If options have changed since, or another run determined its config, the values
of the run are set explicitly. Everything else is therefore as in the run.
"""

from __future__ import annotations

import copy
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.destinations import with_approvals
from llmrl.config.overrides import config_dirs, override_key
from llmrl.core.errors import ConfigError
from llmrl.core.typed_values import override_value

FLAG = "--again"
_FREE_KEYS = (
    "output_root",
    "hardware",
    "trusted_modules",
    "dry_run",
    "resume",
    "rerun",
    "private",
    "checkpoint_seconds",
)
"""Keys that determine where and how a run is computed. Unless they were typed, they are not copied from the run."""
_ABSENT = object()


def repeat_arguments(command: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command without `--again <run>`, with those of that run before the others.

    Without `--again`, the arguments are returned unchanged.

    Args:
        command: `llmrl-train` or `llmrl-finetune`.
        arguments: arguments as typed.

    Raises:
        ConfigError: there is no run to repeat, another command made it, its overrides compose no config, or it sends a
            key to a host that the user has not approved.
        RunFolderError: there is no such run, or there are several, which are listed.
    """
    positions = [i for i, argument in enumerate(arguments) if argument == FLAG or argument.startswith(f"{FLAG}=")]
    if not positions:
        return list(arguments)
    if len(positions) > 1:
        raise ConfigError(f"{FLAG} may be given once, but is given {len(positions)} times")
    [at] = positions
    inline = "=" in arguments[at]
    run = arguments[at].partition("=")[2] if inline else "".join(arguments[at + 1 : at + 2])
    rest = [*arguments[:at], *arguments[at + (1 if inline else 2) :]]
    if not run or (not inline and re.match(r"[\w.+~]+=|-", run)):
        raise ConfigError(
            f"{FLAG} needs a run: its folder, run:<hash> or latest:<name>; e.g. {command} {FLAG} <run> seed=3"
        )
    run_overrides = _merge_overrides(command, run, rest)
    sys.stderr.write(f"{command}: the same as\n{shlex.join([command, *run_overrides, *rest])}\n")
    return [*run_overrides, *rest]


def _merge_overrides(command: str, run: str, rest: Sequence[str]) -> list[str]:
    """Return the overrides that repeat a run if they are placed before `rest`."""
    from llmrl.config.trust_options import typed_modules
    from llmrl.core.option_files import merge
    from llmrl.experiment.composition import plain
    from llmrl.experiment.run_lookup import run_folder_of
    from llmrl.experiment.run_references import restore_references
    from llmrl.run.artifacts import read_config
    from llmrl.run.queued import typed_overrides
    from llmrl.run.source_copies import changed_sources

    override_texts = {
        override_key(override): override for override in rest if "=" in override and not override.startswith("--")
    }
    root = override_texts.get("output_root", "output_root=outputs").partition("=")[2].strip("'\"")
    folder = run_folder_of(run, Path(root))
    run_config = read_config(folder, ())
    run_command = "llmrl-finetune" if "method" in run_config else "llmrl-train"
    if run_command != command:
        raise ConfigError(f"{folder} is a run of {run_command}; repeat it with {run_command} {FLAG} {run}")
    run_overrides = typed_overrides(folder)
    config_dir = next((str(folder) for folder in config_dirs(rest)), None)
    grants = [override for override in run_overrides if _must_be_typed(override_key(override))]
    run_overrides = [override for override in run_overrides if override not in grants]
    if grants:
        sys.stderr.write(
            f"{command}: left out, because only typed options are trusted: {shlex.join(grants)}; add those you trust\n"
        )
    primary = "finetune" if "method" in run_config else "train"
    try:
        now = plain(primary, *run_overrides, config_dir=config_dir)
    except ConfigError as error:
        raise ConfigError(
            f"the overrides of {folder} compose no config any more ({error}); correct them: {shlex.join(run_overrides)}"
        ) from error
    if changed := changed_sources(folder):
        sys.stderr.write(f"{command}: files that have changed since that run: {', '.join(changed)}\n")
    groups = {key for key in override_texts if "." not in key}
    old = {key: value for key, value in restore_references(run_config).items() if not key.endswith("_digest")}
    pins = [
        f"++{path}={override_value(value)}"
        for path, value in _changed_values(old, now)
        if path.partition(".")[0] not in (*_FREE_KEYS, *groups) and path not in override_texts
    ]
    remaining = [override for override in run_overrides if override_key(override) not in override_texts]
    dropped = [
        override
        for override in remaining
        if override_key(override).partition(".")[0] in groups and "." in override_key(override)
    ]
    if dropped:
        sys.stderr.write(f"{command}: left out, because another part is chosen: {shlex.join(dropped)}\n")
    # Later steps treat all overrides as typed by the user, so hosts and keys of the run are checked here.
    full_config = copy.deepcopy(now)
    merge(full_config, old)
    modules = typed_modules(list(override_texts.values()))
    with_approvals(
        {key: value for key, value in full_config.items() if key not in groups} | {"trusted_modules": modules},
        set(override_texts),
    )
    return [*(override for override in remaining if override not in dropped), *pins]


def _must_be_typed(key: str) -> bool:
    """Return whether an override allows code to run or is one of Hydra's own, so that it must be typed again."""
    return (
        key in ("trusted_modules", "hardware.backend")
        or re.split(r"[./@]", key)[0] == "hydra"
        or key.startswith("hardware.backend.")
    )


def _changed_values(old: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of `old` that differs from `now` or is missing there, with its key."""
    for key, value in old.items():
        other = now.get(key, _ABSENT)
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _changed_values(value, other, f"{path}.")
        elif value != other:
            yield path, value
