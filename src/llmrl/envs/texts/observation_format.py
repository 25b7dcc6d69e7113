"""From an observation of any Gymnasium space to named values that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.envs.texts.schema import Field

if TYPE_CHECKING:
    from gymnasium import Space

Tell = Callable[[Any], dict[str, Any]]
"""From one game's observation to what is told of it, by name."""


def observation_formatter(space: Space[Any], fields: Sequence[Field], decimals: int, where: str) -> Tell:
    """What tells observations of `space` under the names of `fields`.

    Numbers are told in the order of a flat Box, members in that of a Tuple, entries of a Dict by their keys. A Discrete
    observation is one number made of the fields' own, the last varying fastest (row and column of a map).

    Args:
        space: of observations.
        fields: what they hold.
        decimals: digits after the point of real numbers.
        where: what the fields belong to, for messages.

    Raises:
        ConfigError: the fields are not those of the space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return _by_key(space.spaces, fields, decimals, where)
    if isinstance(space, spaces.Tuple):
        if len(fields) != len(space.spaces):
            raise ConfigError(f"{where} has {len(fields)} fields, and the observation has {len(space.spaces)} members")
        parts = [_part(sub, field, decimals, where) for sub, field in zip(space.spaces, fields, strict=True)]
        return lambda seen: {f.name: part(x) for f, part, x in zip(fields, parts, seen, strict=True)}
    if isinstance(space, spaces.Discrete):
        return _digits(space, fields, where)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return _numbers(space, fields, decimals, where)
    if len(fields) != 1:
        raise ConfigError(f"{where} has {len(fields)} fields, and the observation is one {type(space).__name__}")
    [field] = fields
    return lambda seen: {field.name: plain(seen, decimals)}


def plain(value: Any, decimals: int) -> Any:
    """`value` as JSON knows it: arrays become lists, real numbers are rounded, numbers that are none become words."""
    if isinstance(value, float):
        # JSON has neither infinity nor NaN; -0.0 reads like a mistake.
        return round(value, decimals) + 0.0 if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(x, decimals) for key, x in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), decimals)
    if isinstance(value, np.generic):
        return plain(value.item(), decimals)
    if isinstance(value, list | tuple):
        return [plain(x, decimals) for x in value]
    return value if isinstance(value, bool | int | str) or value is None else str(value)


def _by_key(parts: Mapping[str, Space[Any]], fields: Sequence[Field], decimals: int, where: str) -> Tell:
    named = {field.name: field for field in fields}
    if missing := [key for key in parts if key not in named]:
        raise ConfigError(f"{where} lacks {missing[0]!r}, which is part of the observation")
    if unknown := [key for key in named if key not in parts]:
        raise ConfigError(f"{where} has {unknown[0]!r}, and the observation has: {', '.join(parts)}")
    tell = {field.name: _part(parts[field.name], field, decimals, where) for field in fields}
    return lambda seen: {key: part(seen[key]) for key, part in tell.items()}


def _part(space: Space[Any], field: Field, decimals: int, where: str) -> Callable[[Any], Any]:
    """A member of a larger observation: a value, or more names inside it."""
    from gymnasium import spaces

    if field.fields:
        return observation_formatter(space, field.fields, decimals, f"{where}.{field.name}")
    if isinstance(space, spaces.Discrete):
        start, values = int(space.start), field.values
        if values and len(values) != int(space.n):
            raise ConfigError(f"{where}.{field.name}: {len(values)} values, and it can be one of {int(space.n)}")
        return (lambda seen: values[int(seen) - start]) if values else (lambda seen: int(seen))
    if (field.values or field.size is not None) and isinstance(
        space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        tell = _numbers(space, [field], decimals, where)
        return lambda seen: tell(seen)[field.name]
    return lambda seen: plain(_single(seen), decimals)


def _single(value: Any) -> Any:
    """An array of one number is told as the number."""
    return value.reshape(-1)[0] if isinstance(value, np.ndarray) and value.size == 1 else value


def _digits(space: Any, fields: Sequence[Field], where: str) -> Tell:
    n, start = int(space.n), int(space.start)
    if len(fields) == 1 and not fields[0].values and fields[0].size in (None, n):
        [name] = [field.name for field in fields]
        return lambda seen: {name: int(seen)}
    sizes = [field.states for field in fields]
    if int(np.prod(sizes)) != n:
        shown = " x ".join(f"{field.name} {size}" for field, size in zip(fields, sizes, strict=True))
        raise ConfigError(f"{where} tells {shown} = {int(np.prod(sizes))} states apart, and there are {n}")

    def tell(seen: Any) -> dict[str, Any]:
        digits = np.unravel_index(int(seen) - start, sizes)
        return {
            f.name: f.values[int(digit)] if f.values else int(digit) for f, digit in zip(fields, digits, strict=True)
        }

    return tell


def states_rule(space: Space[Any], fields: Sequence[Field]) -> str:
    """How the fields of a state number s follow from it, see `EnvDescription.states`; empty for other observations.

    >>> from gymnasium.spaces import Discrete
    >>> states_rule(Discrete(48), [Field("row", "", size=4), Field("column", "", size=12)])
    'row = s // 12, column = s % 12'
    """
    from gymnasium import spaces

    if not isinstance(space, spaces.Discrete) or int(space.start) != 0:
        return ""
    if len(fields) == 1 and not fields[0].values:
        return "" if fields[0].name == "state" else f"{fields[0].name} = s"
    rules, below = [], int(space.n)
    for i, field in enumerate(fields):
        below //= field.states
        rule = "s" + (f" // {below}" if below > 1 else "") + (f" % {field.states}" if i > 0 else "")
        words = ", ".join(f'{k} "{value}"' for k, value in enumerate(field.values))
        rules.append(f"{field.name} = {rule}" + (f" ({words})" if words else ""))
    return ", ".join(rules)


def _numbers(space: Any, fields: Sequence[Field], decimals: int, where: str) -> Tell:
    total = int(np.prod(space.shape))
    if len(fields) == 1 and not fields[0].fields and not fields[0].values and fields[0].size is None:
        [name] = [field.name for field in fields]
        return lambda seen: {name: plain(_single(np.asarray(seen)), decimals)}
    sizes = [field.numbers for field in fields]
    if sum(sizes) != total:
        raise ConfigError(
            f"{where} names {sum(sizes)} numbers ({', '.join(field.name for field in fields)}), and the observation "
            f"has {total}"
        )
    if several := [field for field in fields if field.values and field.numbers > 1]:
        raise ConfigError(
            f"{where}.{several[0].name} has values, which name one number, and {several[0].numbers} numbers"
        )
    starts = np.cumsum([0, *sizes]).tolist()
    _check_values(space, fields, starts, where)
    # A named part of a Box is told like a Box of its own.
    inner = [(field.name, first, first + size, _named(field, decimals)) for field, first, size in _zip(fields, starts)]

    def tell(seen: Any) -> dict[str, Any]:
        numbers = np.asarray(seen).reshape(-1).tolist()
        return {name: part(numbers[first:last]) for name, first, last, part in inner}

    return tell


def _check_values(space: Any, fields: Sequence[Field], starts: Sequence[int], where: str) -> None:
    """Raise ConfigError where values name a number that need not be one of 0, 1, ...: names would hide what it is."""
    if space.dtype.kind != "f":
        return
    low, high = np.ravel(space.low).tolist(), np.ravel(space.high).tolist()
    for field, first in zip(fields, starts, strict=False):
        if field.fields:
            inner = np.cumsum([first, *(part.numbers for part in field.fields)]).tolist()
            _check_values(space, field.fields, inner, f"{where}.{field.name}")
        elif field.values and (low[first], high[first]) != (0, len(field.values) - 1):
            raise ConfigError(
                f"{where}.{field.name} has values, which name the whole numbers from 0 to {len(field.values) - 1}, and "
                f"it is a real number from {low[first]:g} to {high[first]:g}: leave values out, and say what it means "
                "in its description"
            )


def _zip(fields: Sequence[Field], starts: Sequence[int]) -> list[tuple[Field, int, int]]:
    return [(field, first, field.numbers) for field, first in zip(fields, starts, strict=False)]


def _named(field: Field, decimals: int) -> Callable[[list[float]], Any]:
    """From the numbers of a field to what is told of them."""
    if field.fields:
        starts = np.cumsum([0, *(part.numbers for part in field.fields)]).tolist()
        inner = [(f.name, first, first + n, _named(f, decimals)) for f, first, n in _zip(field.fields, starts)]
        return lambda x: {name: part(x[first:last]) for name, first, last, part in inner}
    if field.values:
        return lambda x: _value_of(field, x[0])
    return (lambda x: plain(x[0], decimals)) if field.numbers == 1 else (lambda x: plain(x, decimals))


def _value_of(field: Field, number: float) -> str:
    if not (float(number).is_integer() and 0 <= number < len(field.values)):
        raise ConfigError(
            f"{field.name} has values, which name the whole numbers from 0 to {len(field.values) - 1}, and it is "
            f"{number:g}: leave values out of the text, and say what it means in its description"
        )
    return field.values[int(number)]


def check_actions(actions: tuple[tuple[str, str], ...], space: Any, where: str) -> None:
    """Raise ConfigError unless there is a text for each choice, or for each number of an action."""
    from gymnasium import spaces

    discrete = isinstance(space, spaces.Discrete)
    n = int(space.n) if discrete else int(spaces.flatdim(space)) if isinstance(space, spaces.Box) else -1
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        n = int(space.shape[0]) if len(space.shape) == 1 else -1
    if n >= 0 and len(actions) != n:
        what = "choices" if discrete else "numbers of an action"
        raise ConfigError(f"{where} describes {len(actions)} actions, and there are {n} {what}")
