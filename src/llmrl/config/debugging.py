"""The options of `debug=`, which reduce the sizes of an experiment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmrl.config.builder import Builder

DEBUG_KEY = "debug"
"""Key of the debugging options in a config."""


@dataclass(frozen=True)
class Debugging:
    """Changes of a config for debugging (`conf/debug/`).

    Args:
        upper_limits: maximum numbers by nested key of the config; larger numbers and null are replaced by them.
        replacements: values by nested key of the config, which replace the values of the config.
    """

    upper_limits: Mapping[str, Any] = field(default_factory=dict)
    replacements: Mapping[str, Any] = field(default_factory=dict)


def apply_debug_sizes(config: dict[str, Any], override_keys: Collection[str] = ()) -> dict[str, Any]:
    """Return a config with the changes of its debugging options.

    Keys that the config does not have are not added, because a preset is for all experiments. Keys in `override_keys`
    are not changed.

    Args:
        config: plain data; it is not changed.
        override_keys: dotted keys of overrides on the command line.

    Raises:
        ConfigError: a debugging option is unknown or has the wrong type.
    """
    if not config.get(DEBUG_KEY):
        return config
    debug: Debugging = Builder().build(config[DEBUG_KEY], DEBUG_KEY, "llmrl.config.debugging.Debugging")
    config = _apply_changes(config, debug.upper_limits, override_keys, is_upper_limit=True)
    return _apply_changes(config, debug.replacements, override_keys, is_upper_limit=False)


def _apply_changes(
    node: Mapping[str, Any],
    changes: Mapping[str, Any],
    override_keys: Collection[str],
    is_upper_limit: bool,
    path_prefix: str = "",
) -> dict[str, Any]:
    new_node = dict(node)
    for key, new_value in changes.items():
        path, old_value = f"{path_prefix}{key}", new_node.get(key)
        if isinstance(new_value, Mapping) and isinstance(old_value, Mapping):
            new_node[key] = _apply_changes(old_value, new_value, override_keys, is_upper_limit, f"{path}.")
        elif isinstance(new_value, Mapping) or key not in new_node or path in override_keys:
            continue
        elif not is_upper_limit or old_value is None:  # null means no limit, so it exceeds every upper limit
            new_node[key] = new_value
        elif isinstance(old_value, int | float) and not isinstance(old_value, bool):
            new_node[key] = min(old_value, new_value)
    return new_node
