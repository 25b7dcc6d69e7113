"""Optional declarations of a world beyond PettingZoo's interface: its mechanism, metrics and limit of steps.

They are attributes of the world, or of the world inside PettingZoo's wrappers (docs/worlds.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import Aggregate, Parameter, ParameterSpace

_MECHANISM, _SETTER, _METRICS, _LIMIT = "mechanism", "set_mechanism", "episode_metrics", "max_cycles"


def mechanism_layer(world: Any) -> Any:
    """Return the layer of a world that has `set_mechanism`; the world itself if none has."""
    return next((layer for layer in (world, world.unwrapped) if callable(getattr(layer, _SETTER, None))), world)


def declared_mechanism(name: str, world: Any) -> ParameterSpace | None:
    """Return the space of the values that a world lets a principal set; None if it declares no mechanism.

    `world.mechanism` is a `ParameterSpace`, or a list of numbers, each a mapping with `name`, `low`, `high` and, if
    there is more to say, `unit`, `description`, `decimals`, `choice`, `effect` (`llmrl.core.spaces.Parameter`).
    `world.set_mechanism(values)` gets them in this order, float64 [d].

    Args:
        name: the world's name in messages.
        world: the environment.

    Raises:
        ConfigError: no such list, bounds that are none, or a world without `set_mechanism`.
    """
    declaration = _attribute(world, _MECHANISM)
    if declaration is None:
        return None
    if not callable(getattr(mechanism_layer(world), _SETTER, None)):
        raise ConfigError(f"{name} declares a mechanism, but has no method {_SETTER}(values); add it")
    if isinstance(declaration, ParameterSpace):
        space = declaration
    elif isinstance(declaration, Sequence) and not isinstance(declaration, str) and declaration:
        space = ParameterSpace("mechanism", tuple(_parameter(name, parameter) for parameter in declaration))
    else:
        raise ConfigError(f"{name}: mechanism={declaration!r} must be a ParameterSpace or a list of mappings")
    for parameter in space.parameters:
        if not (np.isfinite(parameter.low) and np.isfinite(parameter.high) and parameter.low < parameter.high):
            raise ConfigError(f"{name}: mechanism: {parameter.name} needs finite bounds low < high, got {parameter}")
    return space


def declared_metrics(name: str, world: Any) -> dict[str, Aggregate]:
    """Return the numbers in infos that are metrics of an episode, with their aggregation (`world.episode_metrics`).

    Raises:
        ConfigError: an aggregation that does not exist.
    """
    declaration = _attribute(world, _METRICS)
    if declaration is None:
        return {}
    aggregates = get_args(Aggregate)
    if not isinstance(declaration, Mapping) or any(aggregate not in aggregates for aggregate in declaration.values()):
        raise ConfigError(
            f"{name}: {_METRICS}={declaration!r} must map each name to its aggregation, one of {', '.join(aggregates)}"
        )
    return {str(metric): aggregate for metric, aggregate in declaration.items()}


def declared_max_cycles(world: Any) -> int | None:
    """Return the number of cycles after which a world ends its episodes, if it has one (`world.max_cycles`).

    A cycle is a step of all agents.
    """
    limit = _attribute(world, _LIMIT)
    return int(limit) if isinstance(limit, int | np.integer) and limit > 0 else None


def _attribute(world: Any, name: str) -> Any:
    return getattr(world, name, getattr(world.unwrapped, name, None))


def _parameter(name: str, declaration: Any) -> Parameter:
    if isinstance(declaration, Parameter):
        return declaration
    try:
        arguments = {"unit": "", "description": "", **declaration}
        return Parameter(**{**arguments, "low": float(arguments["low"]), "high": float(arguments["high"])})
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(
            f"{name}: mechanism: {declaration!r} must be a mapping with name, low and high; the other fields of "
            "llmrl.core.spaces.Parameter are optional"
        ) from error
