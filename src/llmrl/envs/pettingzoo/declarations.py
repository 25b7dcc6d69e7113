"""What a world says of itself, beyond PettingZoo's interface: its mechanism, its metrics, its limit of steps.

These are attributes of the world, or of what PettingZoo's wrappers are put around (docs/worlds.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import Aggregate, Parameter, ParameterSpace

_MECHANISM, _SETTER, _METRICS, _LIMIT = "mechanism", "set_mechanism", "episode_metrics", "max_cycles"


def governed(world: Any) -> Any:
    """Return the layer of a world that has `set_mechanism`; the world itself if none has."""
    return next((layer for layer in _layers(world) if callable(getattr(layer, _SETTER, None))), world)


def mechanism_of(name: str, world: Any) -> ParameterSpace | None:
    """Return the space of the values that a world lets a principal set; None if it declares no mechanism.

    `world.mechanism` is a `ParameterSpace`, or a list of numbers, each a mapping with `name`, `low`, `high` and, if
    there is more to say, `unit`, `description`, `decimals`, `choice`, `effect` (`llmrl.core.spaces.Parameter`).
    `world.set_mechanism(values)` is given them in this order, float64 [d].

    Args:
        name: the world's name in messages.
        world: the environment.

    Raises:
        ConfigError: no such list, bounds that are none, or a world without `set_mechanism`.
    """
    found = _attribute(world, _MECHANISM)
    if found is None:
        return None
    if not callable(getattr(governed(world), _SETTER, None)):
        raise ConfigError(f"{name} declares a mechanism, and has no method {_SETTER}(values) that it is set with")
    if isinstance(found, ParameterSpace):
        space = found
    elif isinstance(found, Sequence) and not isinstance(found, str) and found:
        space = ParameterSpace("mechanism", tuple(_parameter(name, each) for each in found))
    else:
        raise ConfigError(
            f"{name}: mechanism={found!r} is neither a ParameterSpace nor a list of numbers like "
            "{'name': 'rate', 'low': 0, 'high': 1}"
        )
    for each in space.parameters:
        if not (np.isfinite(each.low) and np.isfinite(each.high) and each.low < each.high):
            raise ConfigError(f"{name}: mechanism: {each.name} needs finite bounds low < high, got {each}")
    return space


def metrics_of(name: str, world: Any) -> dict[str, Aggregate]:
    """Return the numbers in infos that are metrics of an episode, with their aggregation (`world.episode_metrics`).

    Raises:
        ConfigError: an aggregation that does not exist.
    """
    found = _attribute(world, _METRICS)
    if found is None:
        return {}
    how = get_args(Aggregate)
    if not isinstance(found, Mapping) or any(each not in how for each in found.values()):
        raise ConfigError(f"{name}: {_METRICS}={found!r} must say of each name how it is added up: {', '.join(how)}")
    return {str(metric): each for metric, each in found.items()}


def cycles_of(world: Any) -> int | None:
    """Return the number of cycles after which a world ends its episodes, if it has one (`world.max_cycles`).

    A cycle is a step of all agents."""
    found = _attribute(world, _LIMIT)
    return int(found) if isinstance(found, int | np.integer) and found > 0 else None


def _attribute(world: Any, name: str) -> Any:
    return next((getattr(layer, name) for layer in _layers(world) if hasattr(layer, name)), None)


def _layers(world: Any) -> tuple[Any, ...]:
    return world, world.unwrapped


def _parameter(name: str, given: Any) -> Parameter:
    if isinstance(given, Parameter):
        return given
    known = [each.name for each in fields(Parameter)]
    if not isinstance(given, Mapping) or not {"name", "low", "high"} <= set(given) or not set(given) <= set(known):
        raise ConfigError(
            f"{name}: mechanism: {given!r} must be a mapping with name, low and high, and may have "
            f"{', '.join(known[3:])}"
        )
    more = {"unit": "", "description": "", **given}
    return Parameter(**{**more, "low": float(given["low"]), "high": float(given["high"])})
