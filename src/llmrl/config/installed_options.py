"""Options of installed packages, beside those that are shipped: `principal=mine` of whoever declares it.

An entry point names a class; its option holds `_target_` and what the class has defaults for, so that values can be
overridden and `--cfg job` shows them. Its package is imported when the option is chosen, not before.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore

from llmrl.core.errors import ConfigError, short_error
from llmrl.core.installed import BACKENDS, PARTS, SINKS, EntryPoint, entry_points
from llmrl.core.trust import NOBODY

CONFIG_GROUPS = ("env", "agent", "principal", "teacher", "llm", "dataset", "method")
"""Config groups that an entry point of `llmrl.parts` may add to."""
_PLAIN = (bool, int, float, str, type(None))


def offer_installed() -> list[str]:
    """Add the options of installed packages to those that Hydra composes from; done again, it changes nothing.

    Returns:
        A sentence about each entry point that cannot be an option.
    """
    offered: dict[tuple[str, str], list[EntryPoint]] = defaultdict(list)
    problems = []
    for entry in entry_points():
        try:
            place = _place(entry)
        except ConfigError as error:
            problems.append(str(error))
            continue
        if place is not None:
            offered[place].append(entry)
    if not offered:
        return problems
    from importlib import resources

    repo = ConfigStore.instance().repo
    for (group, name), entries in offered.items():
        if (resources.files("llmrl.conf") / group / f"{name}.yaml").is_file():
            owners = " and ".join(entry.package for entry in entries)
            problems.append(f"{group}={name} is the option of llmrl, and the one of {owners} is not to be had")
            continue
        folder = repo
        for part in group.split("/"):
            folder = folder.setdefault(part, {})
        folder[f"{name}.yaml"] = _InstalledOption(group, name, entries)
    return problems


def installed_options(group: str) -> list[str]:
    """Return the names of the options that installed packages add to a config group."""
    places = []
    for entry in entry_points():
        try:
            places.append(_place(entry))
        except ConfigError:
            continue  # told by `offer_installed`
    return sorted({place[1] for place in places if place is not None and place[0] == group})


def _place(entry: EntryPoint) -> tuple[str, str] | None:
    """Config group and name of the option that an entry point stands for; None if it only makes a module trusted.

    Raises:
        ConfigError: it stands for nothing.
    """
    told = f"{entry.package} declares {entry.name} = {entry.target} as one of {entry.group}"
    if entry.group == PARTS:
        group, dot, name = entry.name.partition(".")
        if not entry.attribute or not dot:
            return None
        if group not in CONFIG_GROUPS:
            raise ConfigError(f"{told}, and there are no parts '{group}': {', '.join(CONFIG_GROUPS)}")
    else:
        group, name = {BACKENDS: "hardware/backend", SINKS: "loggers"}[entry.group], entry.name
        if not entry.attribute:
            raise ConfigError(f"{told}, and that is a module: write my_package.module:Class")
    if not name.isidentifier():
        raise ConfigError(f"{told}, and '{name}' is no name of an option: letters, digits and underscores")
    return group, name


class _InstalledOption(ConfigNode):
    """An option whose content is made when Hydra loads it: the class is imported for its signature."""

    def __init__(self, group: str, name: str, entries: Sequence[EntryPoint]) -> None:
        self.name, self.group, self.provider = f"{name}.yaml", group, entries[0].package
        # A group of which several options are chosen has each under its own name.
        self.package = f"{group}.{name}" if entries[0].group == SINKS else group.replace("/", ".")
        self._chosen, self._entries = f"{group}={name}", list(entries)

    def __getattr__(self, name: str) -> Any:
        if name != "node":
            raise AttributeError(name)
        from hydra.errors import ConfigCompositionException
        from omegaconf import OmegaConf

        first = self._entries[0]
        if len(self._entries) > 1:
            owners = " and ".join(entry.package for entry in self._entries)
            raise ConfigCompositionException(f"{self._chosen} is declared by {owners}: uninstall all but one")
        try:
            content = content_of(first.target, self._chosen)
        except Exception as error:
            raise ConfigCompositionException(
                f"{self._chosen} comes from the installed package {first.package}, and {first.target} cannot be used: "
                f"{short_error(error)}"
            ) from error
        return OmegaConf.create(content)


def content_of(target: str, where: str) -> dict[str, Any]:
    """Return an option's content from what its class says: `_target_`, its defaults, and `???` for what has none.

    What a part is passed by name (`llmrl.config.builder.INJECTED`) and defaults that are no plain data are left out.

    Args:
        target: dotted name of a class or function.
        where: who names it, for messages.

    Raises:
        ConfigError: it is not trusted, or cannot be imported.
    """
    from llmrl.config.builder import INJECTED

    content: dict[str, Any] = {"_target_": target}
    for name, parameter in inspect.signature(NOBODY.locate(target, where)).parameters.items():
        if name in INJECTED or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            content[name] = "???"
        elif _is_plain(parameter.default):
            content[name] = _plain(parameter.default)
    return content


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    # An interpolation would be worked out, and a text of its kind is left to the class.
    return type(value) in _PLAIN and "${" not in str(value) and value != "???"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
