"""What `+debug=` asks for: an experiment in small, watched closely, or with one episode only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmrl.core.arguments import checked, type_hints_of
from llmrl.core.errors import ConfigError

KEY = "debug"
"""Its place in a config."""


@dataclass(frozen=True)
class Debugging:
    """How an experiment is looked at; meanings are in `conf/debug/`.

    Args:
        at_most: sections of the config, with numbers that are larger there, or null, made these.
        instead: sections of the config, with values that take the place of others.
        same_episode: all episodes begin with one seed.
        anomaly: the run ends at the first number that is not finite.
        profile: time is measured function by function.
        trace: what torch does is written down, too.
    """

    at_most: Mapping[str, Any] = field(default_factory=dict)
    instead: Mapping[str, Any] = field(default_factory=dict)
    same_episode: bool = False
    anomaly: bool = False
    profile: bool = False
    trace: bool = False


def debugging(config: Mapping[str, Any]) -> Debugging:
    """Return what a config asks for; nothing where it has no `debug`.

    Raises:
        ConfigError: an option is unknown or has the wrong type.
    """
    asked = {key: value for key, value in (config.get(KEY) or {}).items() if key != "_target_"}
    hints = type_hints_of(Debugging)
    for name, value in asked.items():
        if name not in hints:
            raise ConfigError(f"{KEY} has no option '{name}'; it has: {', '.join(hints)}")
        checked(value, hints[name], f"{KEY}.{name}")
    return Debugging(**asked)


def debugged(config: dict[str, Any], typed: Collection[str] = ()) -> dict[str, Any]:
    """Return a config with the sizes and values that its `debug` asks for.

    A key that the config does not have stays away, so one preset serves all experiments; one that was `typed` stays as
    it was.

    Args:
        config: plain containers; it is not changed.
        typed: keys with dots that were typed on the command line.
    """
    asked = debugging(config)
    config = _changed(config, asked.at_most, typed, _smaller)
    return _changed(config, asked.instead, typed, lambda old, new: new)


def _smaller(old: Any, new: Any) -> Any:
    if old is None:  # as much as there is
        return new
    numeric = isinstance(old, int | float) and not isinstance(old, bool)
    return min(old, new) if numeric else old


def _changed(
    node: Mapping[str, Any], wanted: Mapping[str, Any], typed: Collection[str], how: Any, at: str = ""
) -> dict[str, Any]:
    found = dict(node)
    for key, new in wanted.items():
        place, old = f"{at}{key}", found.get(key)
        if isinstance(new, Mapping):
            if isinstance(old, Mapping):
                found[key] = _changed(old, new, typed, how, f"{place}.")
        elif key in found and place not in typed:
            found[key] = how(old, new)
    return found
