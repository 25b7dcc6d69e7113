"""Evaluating a run in an environment with other options than it was trained in: `llmrl-evaluate --env KEY=VALUE`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.run.folder_names import safe


def parsed(changes: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the environment with changes like `engine=meltingpot`, their values read as YAML.

    Raises:
        ConfigError: a change is no KEY=VALUE, or the environment has no such option.
    """
    import yaml

    changed = dict(options)
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign:
            raise ConfigError(f"--env {change}: give KEY=VALUE, e.g. --env engine=meltingpot")
        if key not in options or key == "_target_":
            known = ", ".join(name for name in options if name != "_target_")
            raise ConfigError(f"--env {change}: the environment of this run has no option {key!r}, but {known}")
        try:
            changed[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--env {change}: {value!r} is no YAML value") from error
    return changed


def folder_name(changes: Sequence[str]) -> str:
    """Where results go, beside those of the run's own environment; of changes that are long, or have signs that a
    folder's name has not, the beginning and a digest.

    >>> folder_name(["engine=meltingpot", "mechanism=none,best"])
    'evaluation_engine_meltingpot_mechanism_none-best'
    """
    plain = "_".join(["evaluation", *changes])
    name = plain.replace("=", "_").replace(",", "-")
    if name == safe(name) and "-" not in plain and len(name) <= 80:
        return name
    return f"{safe(name)[:72]}-{zlib.crc32(' '.join(changes).encode()):08x}"


def check_same_players(changes: Sequence[str], saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ConfigError where the weights of the agents as they were `saved` are not of the shapes that agents have in
    the changed environment."""
    for name in sorted(set(saved) | set(own)):
        a, b = (getattr(weights.get(name), "shape", None) for weights in (saved, own))
        if a != b:
            raise ConfigError(
                f"--env {' '.join(changes)}: the agents of this run do not fit the changed environment ({name} is "
                f"{None if a is None else list(a)}, and would have to be {None if b is None else list(b)}): what they "
                "see and do must have the same shapes"
            )
