"""Conversion of observations of any Gymnasium space into named values for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.envs.texts.schema import Field

if TYPE_CHECKING:
    from gymnasium import Space

Formatter = Callable[[Any], dict[str, Any]]
"""Function from an observation to name -> value."""


def build_formatter(space: Space[Any], fields: Sequence[Field], decimals: int, source: str) -> Formatter:
    """Return a function that converts observations of `space` into values named by `fields`.

    Fields are assigned to the numbers of a Box in flat order, to the members of a Tuple in order, and to the entries of
    a Dict by key. A Discrete observation is an index into the combinations of the fields' values, in which the last
    field varies fastest (e.g. row and column of a map).

    Args:
        space: observation space.
        fields: fields of an observation.
        decimals: number of digits after the decimal point of real numbers.
        source: origin of the fields (e.g. name of a file), for messages.

    Raises:
        ConfigError: the fields do not match the space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return _build_dict_formatter(space.spaces, fields, decimals, source)
    if isinstance(space, spaces.Tuple):
        if len(fields) != len(space.spaces):
            raise ConfigError(f"{source} has {len(fields)} fields, and the observation has {len(space.spaces)} members")
        member_formatters = [
            _build_member_formatter(subspace, field, decimals, source)
            for subspace, field in zip(space.spaces, fields, strict=True)
        ]
        names = [field.name for field in fields]
        return lambda members: {key: f(x) for key, f, x in zip(names, member_formatters, members, strict=True)}
    if isinstance(space, spaces.Discrete):
        return _build_discrete_formatter(space, fields, source)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return _build_array_formatter(space, fields, decimals, source)
    if len(fields) != 1:
        raise ConfigError(f"{source} has {len(fields)} fields, and the observation is one {type(space).__name__}")
    [field] = fields
    return lambda observation: {field.name: to_json_value(observation, decimals)}


def to_json_value(value: Any, decimals: int) -> Any:
    """Return `value` as a JSON type: lists for arrays, rounded floats, and strings for infinity and NaN."""
    if isinstance(value, float):
        # JSON has neither infinity nor NaN; adding 0.0 converts -0.0 to 0.0.
        return round(value, decimals) + 0.0 if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json_value(x, decimals) for key, x in value.items()}
    if isinstance(value, np.ndarray):
        return to_json_value(value.tolist(), decimals)
    if isinstance(value, np.generic):
        return to_json_value(value.item(), decimals)
    if isinstance(value, list | tuple):
        return [to_json_value(x, decimals) for x in value]
    return value if isinstance(value, bool | int | str) or value is None else str(value)


def _build_dict_formatter(
    member_spaces: Mapping[str, Space[Any]], fields: Sequence[Field], decimals: int, source: str
) -> Formatter:
    fields_by_name = {field.name: field for field in fields}
    if missing := [key for key in member_spaces if key not in fields_by_name]:
        raise ConfigError(f"{source} lacks {missing[0]!r}, which is part of the observation")
    if unknown := [key for key in fields_by_name if key not in member_spaces]:
        raise ConfigError(f"{source} has the unknown field {unknown[0]!r}; fields are {', '.join(member_spaces)}")
    formatters = {
        field.name: _build_member_formatter(member_spaces[field.name], field, decimals, source) for field in fields
    }
    return lambda observation: {key: format_member(observation[key]) for key, format_member in formatters.items()}


def _build_member_formatter(space: Space[Any], field: Field, decimals: int, source: str) -> Callable[[Any], Any]:
    """Return a function that converts one member of an observation into a value, or a mapping if `field` has fields."""
    from gymnasium import spaces

    if field.fields:
        return build_formatter(space, field.fields, decimals, f"{source}.{field.name}")
    if isinstance(space, spaces.Discrete) and not field.values:
        return int
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return lambda observation: to_json_value(observation, decimals)
    format_observation = build_formatter(space, [field], decimals, source)
    return lambda observation: format_observation(observation)[field.name]


def _build_discrete_formatter(space: Any, fields: Sequence[Field], source: str) -> Formatter:
    n, start = int(space.n), int(space.start)
    if len(fields) == 1 and not fields[0].values and fields[0].size in (None, n):
        name = fields[0].name
        return lambda observation: {name: int(observation)}
    sizes = [field.n_states for field in fields]
    if (n_combinations := int(np.prod(sizes))) != n:
        factors = " x ".join(f"{field.name} {size}" for field, size in zip(fields, sizes, strict=True))
        raise ConfigError(f"{source} distinguishes {factors} = {n_combinations} states, and the observation has {n}")

    def format_observation(observation: Any) -> dict[str, Any]:
        indices = np.unravel_index(int(observation) - start, sizes)
        return {f.name: f.values[int(i)] if f.values else int(i) for f, i in zip(fields, indices, strict=True)}

    return format_observation


def describe_state_rule(space: Space[Any], fields: Sequence[Field]) -> str:
    """Return the rule to compute the fields from a state index s (see `EnvDescription.states`); "" if there is none.

    >>> from gymnasium.spaces import Discrete
    >>> describe_state_rule(Discrete(48), [Field("row", "", size=4), Field("column", "", size=12)])
    'row = s // 12, column = s % 12'
    """
    from gymnasium import spaces

    if not isinstance(space, spaces.Discrete) or int(space.start) != 0:
        return ""
    if len(fields) == 1 and not fields[0].values:
        return "" if fields[0].name == "state" else f"{fields[0].name} = s"
    rules, divisor = [], int(space.n)
    for i, field in enumerate(fields):
        divisor //= field.n_states
        rule = "s" + (f" // {divisor}" if divisor > 1 else "") + (f" % {field.n_states}" if i > 0 else "")
        values_text = ", ".join(f'{k} "{value}"' for k, value in enumerate(field.values))
        rules.append(f"{field.name} = {rule}" + (f" ({values_text})" if values_text else ""))
    return ", ".join(rules)


def _build_array_formatter(space: Any, fields: Sequence[Field], decimals: int, source: str) -> Formatter:
    n_numbers = int(np.prod(space.shape))
    if len(fields) == 1 and not fields[0].fields and not fields[0].values and fields[0].size is None:
        name, shape = fields[0].name, () if n_numbers == 1 else space.shape  # a single number is not a list
        return lambda observation: {name: to_json_value(np.asarray(observation).reshape(shape), decimals)}
    sizes = [field.n_numbers for field in fields]
    if sum(sizes) != n_numbers:
        raise ConfigError(
            f"{source} names {sum(sizes)} numbers ({', '.join(field.name for field in fields)}), and the observation "
            f"has {n_numbers}"
        )
    if invalid_fields := [field for field in fields if field.values and field.n_numbers > 1]:
        raise ConfigError(
            f"{source}.{invalid_fields[0].name} has {invalid_fields[0].n_numbers} numbers and `values`, which can name "
            "only one number; remove `values`"
        )
    if space.dtype.kind == "f":
        _check_value_names(space, fields, source)
    return lambda observation: _format_numbers(fields, np.asarray(observation).reshape(-1).tolist(), decimals)


def _check_value_names(space: Any, fields: Sequence[Field], source: str) -> None:
    """Raise ConfigError unless a field with `values` (names of 0, 1, ...) has the bounds 0 and the last integer."""
    bounds, position = list(zip(np.ravel(space.low).tolist(), np.ravel(space.high).tolist(), strict=True)), 0
    for field in _iterate_leaf_fields(fields):
        low, high = bounds[position]
        if field.values and (low, high) != (0, len(field.values) - 1):
            raise ConfigError(
                f"{source}: {field.name} has `values`, names of the integers 0 to {len(field.values) - 1}, but is a "
                f"real number from {low:g} to {high:g}; remove `values` and explain the number in its description"
            )
        position += field.n_numbers


def _iterate_leaf_fields(fields: Sequence[Field]) -> Iterator[Field]:
    """Yield the fields without subfields, in the order of their numbers."""
    for field in fields:
        yield from _iterate_leaf_fields(field.fields) if field.fields else (field,)


def _format_numbers(fields: Sequence[Field], numbers: Sequence[float], decimals: int) -> dict[str, Any]:
    """Return the numbers of several fields as named values."""
    named_values: dict[str, Any] = {}
    stop = 0
    for field in fields:
        start, stop = stop, stop + field.n_numbers
        if field.fields:
            named_values[field.name] = _format_numbers(field.fields, numbers[start:stop], decimals)
        elif field.values:
            named_values[field.name] = _find_value_name(field, numbers[start])
        else:
            value = numbers[start] if field.n_numbers == 1 else numbers[start:stop]
            named_values[field.name] = to_json_value(value, decimals)
    return named_values


def _find_value_name(field: Field, number: float) -> str:
    if not (float(number).is_integer() and 0 <= number < len(field.values)):
        raise ConfigError(
            f"{field.name} has `values`, names of the integers 0 to {len(field.values) - 1}, but is {number:g}; remove "
            "`values` from the text and explain the number in its description"
        )
    return field.values[int(number)]


def check_action_count(actions: tuple[tuple[str, str], ...], space: Any, source: str) -> None:
    """Raise ConfigError unless the number of `actions` equals the number of choices, or of numbers in an action."""
    from gymnasium import spaces

    is_discrete = isinstance(space, spaces.Discrete)
    n_actions = int(space.n) if is_discrete else int(spaces.flatdim(space)) if isinstance(space, spaces.Box) else -1
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        n_actions = int(space.shape[0]) if len(space.shape) == 1 else -1
    if n_actions >= 0 and len(actions) != n_actions:
        unit = "choices" if is_discrete else "numbers of an action"
        raise ConfigError(f"{source} describes {len(actions)} actions, but the environment has {n_actions} {unit}")
