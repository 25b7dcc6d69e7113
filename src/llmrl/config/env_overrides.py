"""Changes of the environment in which a run is evaluated: `llmrl-evaluate --env KEY=VALUE`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.run.folder import safe


def parsed(changes: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the environment with changes like `engine=meltingpot`, whose values are read as YAML.

    Raises:
        ConfigError: a change is not of the form KEY=VALUE, or the environment has no such option.
    """
    import yaml

    new_options = dict(options)
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign:
            raise ConfigError(f"--env {change} must be KEY=VALUE, e.g. --env engine=meltingpot")
        if key not in options or key == "_target_":
            option_names = ", ".join(name for name in options if name != "_target_")
            raise ConfigError(
                f"--env {change}: the environment of this run has no option {key!r}; it has: {option_names}"
            )
        try:
            new_options[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--env {change}: {value!r} is not a YAML value") from error
    return new_options


def folder_name(changes: Sequence[str]) -> str:
    """Return the name of the folder for results in the changed environment.

    It is shortened and gets a digest if the changes are long or have characters that a folder's name may not have.

    >>> folder_name(["engine=meltingpot", "mechanism=none,best"])
    'evaluation_engine_meltingpot_mechanism_none-best'
    """
    plain = "_".join(["evaluation", *changes])
    name = plain.replace("=", "_").replace(",", "-")
    if name == safe(name) and "-" not in plain and len(name) <= 80:
        return name
    return f"{safe(name)[:72]}-{zlib.crc32(' '.join(changes).encode()):08x}"


def check_same_players(changes: Sequence[str], saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ConfigError if `saved` weights do not have the shapes of agents in the changed environment."""
    for name in sorted(set(saved) | set(own)):
        old, new = (getattr(weights.get(name), "shape", None) for weights in (saved, own))
        if old != new:
            raise ConfigError(
                f"--env {' '.join(changes)}: the agents of this run do not fit the changed environment ({name} has the "
                f"shape {None if old is None else list(old)} instead of {None if new is None else list(new)}). Change "
                "only options that keep the shapes of observations and actions"
            )
