"""Patches of Hydra: options of installed packages, error messages, redaction of values from the environment."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import hydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from llmrl.config.installed_options import list_installed_options, register_installed_options
from llmrl.core import option_files
from llmrl.core.errors import ConfigError
from llmrl.core.hydra_composition import patch_option_listing, patch_step_caching
from llmrl.core.secrets import register_resolved_variable

HYDRA_VERSION = tuple(int(part) for part in hydra.__version__.split(".")[:2])
VERSION_BASE_ARGUMENTS: dict[str, Any] = {"version_base": "1.3"} if HYDRA_VERSION < (1, 4) else {}
"""Arguments of `hydra.main` and `initialize` that select the behavior of version 1.3; empty for Hydra 1.4."""
_REQUIRED_FOLDER_OPTIONS = {
    "output_subdir": None,
    "run": {"dir": "."},
    "sweep": {"dir": "${output_root}/.sweeps/${now:%Y-%m-%d_%H-%M-%S-%f}", "subdir": "."},
}
"""Required values of Hydra's options for folders, those of `conf/_run.yaml`, before interpolation."""


def patch_hydra() -> list[str]:
    """Patch Hydra's composition of configs in this process; further calls change nothing.

    Hydra then has the options of installed packages, does not list base files, raises errors with llmrl's messages, and
    registers values from the environment for redaction.

    Returns:
        A sentence about each invalid entry point of an installed package.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    from llmrl.conf import register_resolver

    problems = register_installed_options()
    patch_option_listing()
    patch_step_caching()
    # Every composition calls this method, which has another name in Hydra 1.4.
    name = "_load_configuration" if hasattr(ConfigLoaderImpl, "_load_configuration") else "load_configuration"
    load = getattr(ConfigLoaderImpl, name)
    if hasattr(load, "__wrapped__"):
        return problems
    register_resolver("oc.env", _resolve_environment_variable, replace=True)

    @functools.wraps(load)
    def load_or_describe_error(self: ConfigLoaderImpl, *args: Any, **kwargs: Any) -> DictConfig:
        from yaml import YAMLError

        call = inspect.signature(load).bind(self, *args, **kwargs)
        call.apply_defaults()
        overrides = call.arguments["overrides"]
        try:
            check_no_removals(overrides)
            config: DictConfig = load(self, *args, **kwargs)
            _check_folders(config)
        except (HydraException, OmegaConfBaseException, ConfigError, ValueError, YAMLError) as error:
            # Hydra raises ValueError if the option of a group is a number or null, or a file is not UTF-8.
            message = " ".join(str(error).split()) if isinstance(error, YAMLError) else str(error)
            if isinstance(error, HydraException | OmegaConfBaseException):
                message = describe_composition_error(error, overrides)
            # On the command line, Hydra prints the message without the name of the command.
            command = "llmrl-finetune" if call.arguments["config_name"] == "finetune" else "llmrl-train"
            prefix = f"{command}: " if call.arguments["from_shell"] else ""
            # Hydra would print a cause from OmegaConf in addition.
            cause = None if isinstance(error, OmegaConfBaseException) else error
            raise ConfigCompositionException(f"{prefix}{message}") from cause
        return config

    setattr(ConfigLoaderImpl, name, load_or_describe_error)
    return problems


def _check_folders(config: DictConfig) -> None:
    """Raise ConfigError if one of Hydra's options for folders differs from `_REQUIRED_FOLDER_OPTIONS`."""
    hydra_options: Any = OmegaConf.to_container(config.hydra, resolve=False)
    for name, expected in _REQUIRED_FOLDER_OPTIONS.items():
        if (value := hydra_options[name]) != expected:
            raise ConfigError(
                f"hydra.{name}={value} must be {expected}, because folders of runs are named after their options; "
                "choose them by output_root and name"
            )


def _resolve_environment_variable(variable: str, *default: Any) -> str | None:
    """Return the value of OmegaConf's resolver `oc.env`, and register it for redaction."""
    from omegaconf.resolvers import oc

    if variable in os.environ:
        register_resolved_variable(variable)
    return oc.env(variable, *default)


_GROUPS_WITH_FAMILIES = ("experiment", "treatment")
"""Groups with options in subfolders, `experiment=<family>/<study>`."""
_LOGGER_HINT = "For a logger of your own, use +loggers.{name}._target_=my_package.MySink"
_FREE_FORM_KEY_PATTERN = re.compile(rf"\.({'|'.join(option_files.FREE_FORM_KEYS)})(\.|$)")


def check_no_removals(overrides: Iterable[str]) -> None:
    """Check that no override deletes a part of the config (e.g. `~principal`).

    Keyword arguments of third-party classes (`env.kwargs.<key>`) and Hydra's own keys may be removed.

    Raises:
        ConfigError: an override deletes an option.
    """
    for override in overrides:
        key = override.partition("=")[0].removeprefix("~").partition("@")[0]
        if not override.startswith("~") or key.startswith("hydra") or _FREE_FORM_KEY_PATTERN.search(key):
            continue
        if "none" in option_files.list_option_names(key):
            raise ConfigError(f"~{key}: options cannot be removed; use {key}=none for an experiment without {key}")
        raise ConfigError(f"~{key}: options cannot be removed; set {key}=<value>, or leave ~{key} out")


def describe_composition_error(error: HydraException | OmegaConfBaseException, overrides: Sequence[str]) -> str:
    """Return a message for an error of Hydra or OmegaConf, with the valid names if a name does not exist.

    Args:
        error: error of the composition or resolution of a config.
        overrides: overrides of the composition.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        if str(error.missing_cfg_file).startswith("loggers/"):
            return _describe_missing_logger(str(error.missing_cfg_file).removeprefix("loggers/"))
        if error.options is not None:
            return _describe_missing_option(error)
    if isinstance(error, OmegaConfBaseException):
        return _describe_omegaconf_error(error, overrides)
    if isinstance(error.__cause__, OmegaConfBaseException):
        return _describe_omegaconf_error(error.__cause__, overrides)
    subgroup_message = _describe_missing_subgroup(overrides) if "No match in the defaults list" in str(error) else None
    return subgroup_message or str(error)


def _describe_missing_option(error: MissingConfigException) -> str:
    path = str(error.missing_cfg_file)
    group = path.split("/")[0] if path.startswith(_GROUPS_WITH_FAMILIES) else path.rpartition("/")[0]
    names = set(error.options or ())
    if group in _GROUPS_WITH_FAMILIES:
        names |= {*option_files.list_option_names(group), *option_files.list_nested_options(group)}
    close_matches = difflib.get_close_matches(path.removeprefix(f"{group}/"), sorted(names))
    names_hint = f"{group} has: {', '.join(sorted(names))}. Options of your own need --config-dir <folder>"
    hint = f"Did you mean {' or '.join(close_matches)}?" if close_matches else names_hint
    return f"{str(error).splitlines()[0]}. {hint}"


def _describe_missing_logger(name: str) -> str:
    names = ", ".join(sorted({*option_files.list_option_names("loggers"), *list_installed_options("loggers")}))
    return f"there is no logger {name!r}; loggers are: {names}. {_LOGGER_HINT.format(name=name)}"


def _describe_omegaconf_error(error: OmegaConfBaseException, overrides: Sequence[str]) -> str:
    """Return one line about a key that does not exist, or about an interpolation that cannot be resolved."""
    reason = next(iter((error.msg or str(error)).splitlines()), type(error).__name__)
    if not (key := str(error.full_key or "")):
        return reason
    if isinstance(error, ConfigAttributeError | ConfigKeyError) and isinstance(error.parent_node, DictConfig):
        names = [str(name) for name in error.parent_node if name not in ("_target_", "hydra")]
        close_matches = difflib.get_close_matches(str(error.key), names, n=1)
        hint = f" Did you mean {close_matches[0]}?" if close_matches else ""
        if not hint and key.startswith("loggers."):
            hint = f" {_LOGGER_HINT.format(name=error.key)}"
        parent_key = key.rpartition(".")[0] or "the config"
        return f"{parent_key} has no option '{error.key}'; it has: {', '.join(names)}.{hint}"
    task_overrides = [override for override in overrides if not override.lstrip("+~").startswith("hydra")]
    for i, override in enumerate(task_overrides):  # Hydra also resolves `hydra.overrides.task`
        changed_key, _, value = override.lstrip("+").partition("=")
        key_prefixes = (f"{changed_key}.", f"{changed_key}[", f"hydra.overrides.task[{i}]")
        if "${" in value and (changed_key == key or key.startswith(key_prefixes)):
            return f"{override}: {reason}"
    return f"{key}: {reason}"


def _describe_missing_subgroup(overrides: Sequence[str]) -> str | None:
    """Return a message if the chosen option of a group does not have the subgroup in `group/subgroup=option`."""
    value_by_key = dict(override.partition("=")[::2] for override in overrides if "=" in override)
    for key in value_by_key:
        group, separator, subgroup = key.partition("/")
        if separator and group != "hydra" and key in option_files.list_subgroups(group):
            compatible_options = [name for name, node in option_files.load_options(group).items() if subgroup in node]
            if value_by_key.get(group) not in compatible_options:
                return f"{key}={value_by_key[key]} requires {group} to be one of: {', '.join(compatible_options)}"
    return None
