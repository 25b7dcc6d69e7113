"""Messages about overrides and option files from which Hydra cannot compose a config.

Hydra only reports that a name does not exist; these messages list the valid names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from llmrl.core import option_files
from llmrl.core.errors import ConfigError

_NESTED_GROUPS = ("experiment", "treatment")
"""Groups whose options are in subfolders, `experiment=<family>/<study>`."""
_FREE_FORM_KEY = re.compile(rf"\.({'|'.join(option_files.FREE_FORM)})(\.|$)")


def check_removals(overrides: Iterable[str]) -> None:
    """Check that no override deletes part of the config (e.g. `~principal`).

    Keyword arguments of third-party classes (`env.kwargs.<key>`) and Hydra's own keys may be removed.

    Raises:
        ConfigError: an override deletes an option.
    """
    for override in overrides:
        key = override.partition("=")[0].removeprefix("~").partition("@")[0]
        if not override.startswith("~") or key.startswith("hydra") or _FREE_FORM_KEY.search(key):
            continue
        if "none" in option_files.names(key):
            raise ConfigError(f"~{key}: options cannot be removed; use {key}=none for an experiment without {key}")
        raise ConfigError(f"~{key}: options cannot be removed; set {key}=<value>, or leave ~{key} out")


def describe(error: HydraException | OmegaConfBaseException, overrides: Sequence[str]) -> str:
    """Return the message of an error of Hydra or OmegaConf, with the valid names if a name does not exist.

    Args:
        error: error of a composition, or of the resolution of a config.
        overrides: overrides as typed.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        return _describe_missing_option(error)
    if isinstance(error, OmegaConfBaseException):
        return _describe_value(error, overrides)
    if isinstance(error.__cause__, OmegaConfBaseException):
        return _describe_value(error.__cause__, overrides)
    misplaced = _misplaced_subgroup(overrides) if "No match in the defaults list" in str(error) else None
    return misplaced or str(error)


def _describe_missing_option(error: MissingConfigException) -> str:
    path = str(error.missing_cfg_file)
    group = path.split("/")[0] if path.startswith(_NESTED_GROUPS) else path.rpartition("/")[0]
    names = set(error.options or ())
    if group in _NESTED_GROUPS:
        names |= {*option_files.names(group), *option_files.nested_names(group)}
    option = path.removeprefix(f"{group}/")
    matches = difflib.get_close_matches(option, sorted(names))
    known = f"{group} has: {', '.join(sorted(names))}. Options of your own need --config-dir <folder>"
    hint = f"Did you mean {' or '.join(matches)}?" if matches else known
    return f"{str(error).splitlines()[0]}. {hint}"


def _describe_value(error: OmegaConfBaseException, overrides: Sequence[str]) -> str:
    """Return one line about a key that does not exist, or about an interpolation that cannot be resolved."""
    reason = next(iter((error.msg or str(error)).splitlines()), type(error).__name__)
    if not (key := str(error.full_key or "")):
        return reason
    if isinstance(error, ConfigAttributeError | ConfigKeyError) and isinstance(error.parent_node, DictConfig):
        names = [str(name) for name in error.parent_node if name not in ("_target_", "hydra")]
        close = difflib.get_close_matches(str(error.key), names, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        owner = key.rpartition(".")[0] or "the config"
        return f"{owner} has no option '{error.key}'; it has: {', '.join(names)}.{hint}"
    task = [word for word in overrides if not word.lstrip("+~").startswith("hydra")]
    for i, override in enumerate(task):  # Hydra also resolves its own copy of the overrides
        override_key, _, value = override.lstrip("+").partition("=")
        places = (f"{override_key}.", f"{override_key}[", f"hydra.overrides.task[{i}]")
        if "${" in value and (override_key == key or key.startswith(places)):
            return f"{override}: {reason}"
    return f"{key}: {reason}"


def _misplaced_subgroup(overrides: Sequence[str]) -> str | None:
    """Return a message about the first `group/subgroup=option` whose subgroup the selected option of `group` lacks."""
    chosen = dict(override.partition("=")[::2] for override in overrides if "=" in override)
    for key in chosen:
        group, slash, subgroup = key.partition("/")
        if slash and group != "hydra" and key in option_files.subgroups(group):
            compatible_options = [name for name, node in option_files.options(group).items() if subgroup in node]
            if chosen.get(group) not in compatible_options:
                return f"{key}={chosen[key]} requires {group} to be one of: {', '.join(compatible_options)}"
    return None
