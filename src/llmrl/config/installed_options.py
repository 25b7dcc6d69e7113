"""Options of installed packages, in addition to the shipped ones, e.g. `principal=mine`.

An entry point names a class. Its option consists of `_target_` and the arguments of the class with their defaults, so
that values can be overridden and `--cfg job` shows them. A package is imported only when its option is chosen.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore

from llmrl.core.arguments import get_signature
from llmrl.core.errors import ConfigError, summarize_error
from llmrl.core.installed import BACKENDS_GROUP, PARTS_GROUP, SINKS_GROUP, EntryPoint, entry_points
from llmrl.core.option_files import list_option_names
from llmrl.core.services import SERVICE_NAMES
from llmrl.core.trust import NO_FURTHER_TRUST

CONFIG_GROUPS = ("env", "agent", "principal", "teacher", "llm", "dataset", "method")
"""Config groups to which entry points of `llmrl.parts` may add options."""


def _group_declared_options() -> tuple[dict[tuple[str, str], list[EntryPoint]], list[str]]:
    """Return entry points by (group, name) of their options, and a sentence about each invalid entry point."""
    entry_points_by_option: dict[tuple[str, str], list[EntryPoint]] = defaultdict(list)
    problems = []
    for entry_point in entry_points():
        try:
            if (group_and_name := _parse_group_and_name(entry_point)) is not None:
                entry_points_by_option[group_and_name].append(entry_point)
        except ConfigError as error:
            problems.append(str(error))
    return entry_points_by_option, problems


def register_installed_options() -> list[str]:
    """Add the options of installed packages to Hydra's config store; further calls change nothing.

    Returns:
        A sentence about each entry point that cannot be an option.
    """
    entry_points_by_option, problems = _group_declared_options()
    if not entry_points_by_option:
        return problems
    repo = ConfigStore.instance().repo
    for (group, name), entries in entry_points_by_option.items():
        if name in list_option_names(group):
            packages = " and ".join(entry.package for entry in entries)
            problems.append(f"{group}={name} is an option of llmrl, so that of {packages} is ignored")
            continue
        folder = repo
        for folder_name in group.split("/"):
            folder = folder.setdefault(folder_name, {})
        folder[f"{name}.yaml"] = _InstalledOption(group, name, entries)
    return problems


def list_installed_options(group: str) -> list[str]:
    """Return the names of the options that installed packages add to a config group."""
    return sorted(name for option_group, name in _group_declared_options()[0] if option_group == group)


def _parse_group_and_name(entry: EntryPoint) -> tuple[str, str] | None:
    """Return the config group and name of an entry point's option; None if it only makes a module trusted.

    Raises:
        ConfigError: the entry point is invalid.
    """
    declaration = f"{entry.package} declares {entry.name} = {entry.target} as one of {entry.group}"
    if entry.group == PARTS_GROUP:
        group, separator, name = entry.name.partition(".")
        if not entry.attribute or not separator:
            return None
        if group not in CONFIG_GROUPS:
            raise ConfigError(f"{declaration}, but '{group}' must be one of {', '.join(CONFIG_GROUPS)}")
    else:
        group, name = {BACKENDS_GROUP: "hardware/backend", SINKS_GROUP: "loggers"}[entry.group], entry.name
        if not entry.attribute:
            raise ConfigError(f"{declaration}, which is a module but must be a class; write my_package.module:Class")
    if not name.isidentifier():
        raise ConfigError(f"{declaration}, but the name '{name}' must have letters, digits and underscores only")
    return group, name


class _InstalledOption(ConfigNode):
    """An option whose content is created when Hydra loads it, because this imports the class."""

    def __init__(self, group: str, name: str, entries: Sequence[EntryPoint]) -> None:
        self.name, self.group, self.provider = f"{name}.yaml", group, entries[0].package
        # Several loggers may be chosen at once, so each has a node with its name.
        self.package = f"{group}.{name}" if entries[0].group == SINKS_GROUP else group.replace("/", ".")
        self._choice, self._entries = f"{group}={name}", list(entries)

    def __getattr__(self, name: str) -> Any:
        if name != "node":
            raise AttributeError(name)
        from hydra.errors import ConfigCompositionException
        from omegaconf import OmegaConf

        entry = self._entries[0]
        if len(self._entries) > 1:
            packages = " and ".join(entry.package for entry in self._entries)
            raise ConfigCompositionException(f"{self._choice} is declared by {packages}: uninstall all but one")
        try:
            content = build_option_content(entry.target, self._choice)
        except Exception as error:
            raise ConfigCompositionException(
                f"{self._choice} comes from the installed package {entry.package}, and {entry.target} cannot be used: "
                f"{summarize_error(error)}"
            ) from error
        return OmegaConf.create(content)


def build_option_content(target: str, choice: str) -> dict[str, Any]:
    """Return the content of an option: `_target_`, and the arguments with their defaults, `???` without a default.

    Services (`llmrl.core.services`) and defaults that are not plain data are left out.

    Args:
        target: dotted name of a class or function.
        choice: option that names the target, for messages.

    Raises:
        ConfigError: the target is not trusted, or cannot be imported.
    """
    content: dict[str, Any] = {"_target_": target}
    for name, parameter in get_signature(NO_FURTHER_TRUST.locate(target, choice)).parameters.items():
        if name in SERVICE_NAMES or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            content[name] = "???"
            continue
        try:
            text = json.dumps(parameter.default)
        except TypeError:  # not plain data
            continue
        if "${" not in text and "???" not in text:  # OmegaConf would interpret these texts
            content[name] = json.loads(text)
    return content
