"""The three texts of an environment, observation, actions and goal, as a small YAML file, and its checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.envs.texts.env_arguments import shown
from llmrl.envs.texts.placeholders import Cases

_KEYS = ("decoder", "goal", "arguments", "success", "decimals", "observation", "actions")
_FIELD_KEYS = ("description", "unit", "range", "values", "size", "fields")
_CRITERION = re.compile(r"terminated|(return|reward) >= (-?\d+\.?\d*)")
DECIMALS = 4
"""Digits after the point of the real numbers that are told."""


@dataclass(frozen=True)
class Field:
    """One named thing of an observation.

    Attributes:
        name, description, unit: of it; the unit may be empty.
        range: lowest and highest value, in its unit; None where that goes without saying.
        values: names of the whole numbers 0, 1, ... it can be, told in place of the number; empty where it is a
            number.
        size: numbers it consists of; of one state among several (a Discrete observation), how many it tells apart.
            None: one number, as many as its parts have, or as many states as it has values.
        fields: its parts, where it is a Dict or Tuple or several numbers with names of their own.
    """

    name: str
    description: str
    unit: str = ""
    range: tuple[float | str, float | str] | None = None
    values: tuple[str, ...] = ()
    size: int | None = None
    fields: tuple[Field, ...] = ()

    @property
    def states(self) -> int:
        """How many states it tells apart, as a part of a Discrete observation."""
        return self.size or len(self.values) or 1

    @property
    def numbers(self) -> int:
        """How many numbers it consists of, as a part of a Box."""
        return self.size or sum(part.numbers for part in self.fields) or 1

    @property
    def told(self) -> str:
        """Description with unit, values and range, for the reader."""
        more = []
        if self.unit:
            more.append(f"in {self.unit}")
        if self.values:
            more.append("one of " + ", ".join(f'"{value}"' for value in self.values))
        if self.range is not None:
            more.append(f"from {_number(self.range[0])} to {_number(self.range[1])}")
        return self.description + (f" ({', '.join(more)})" if more else "")


@dataclass(frozen=True)
class DescriptionFile:
    """What a file says of an environment.

    Attributes:
        where: the file, for messages.
        goal: what the game is, what is rewarded, when it ends; `{name}` stands for a fact that the decoder knows, or
            for an argument of the environment (`placeholders.Placeholders`).
        arguments: what values of arguments mean.
        success: what criteria of success mean in this game (`instance_facts.success`).
        observation: the fields of an observation, in the order of its numbers, members or keys.
        actions: (what to answer, what it does), in the order of the actions.
        decoder: what takes observations apart, see `decoders.DECODERS`; empty for the spaces' own structure.
        decimals: digits after the point of real numbers.
    """

    where: str
    goal: str
    arguments: Cases
    success: Mapping[str, str]
    observation: tuple[Field, ...]
    actions: tuple[tuple[str, str], ...]
    decoder: str = ""
    decimals: int = DECIMALS


def read_text(path: Path) -> DescriptionFile:
    """The text in a YAML file.

    Raises:
        ConfigError: it cannot be read, or lacks something, which is named.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the text {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the text {path} is no YAML: {error}") from error
    return parse_text(content, str(path))


def parse_text(content: Any, where: str) -> DescriptionFile:
    """The text that a mapping holds; `where` is its name in messages.

    Raises:
        ConfigError: something is missing, empty, or of the wrong kind.
    """
    content = _mapping(content, where)
    if unknown := [key for key in content if key not in _KEYS]:
        raise ConfigError(f"{where} has {unknown[0]!r}, and a text has: {', '.join(_KEYS)}")
    decimals = content.get("decimals", DECIMALS)
    if not isinstance(decimals, int) or isinstance(decimals, bool) or not 0 <= decimals <= 12:
        raise ConfigError(f"{where}: decimals={decimals!r}: a whole number from 0 to 12 is needed")
    return DescriptionFile(
        where,
        goal=_words(content, "goal", where),
        arguments=_cases(content.get("arguments", {}), f"{where}: arguments"),
        success=_success(content.get("success", {}), f"{where}: success"),
        observation=_fields(_needed(content, "observation", where), f"{where}: observation"),
        actions=_actions(_needed(content, "actions", where), f"{where}: actions"),
        decoder=_words(content, "decoder", where) if "decoder" in content else "",
        decimals=decimals,
    )


def _fields(content: Any, where: str) -> tuple[Field, ...]:
    content = _mapping(content, where)
    if not content:
        raise ConfigError(f"{where} is empty: name at least one thing that is observed")
    return tuple(_field(str(name), entry, f"{where}.{name}") for name, entry in content.items())


def _field(name: str, entry: Any, where: str) -> Field:
    if isinstance(entry, str):
        entry = {"description": entry}
    entry = _mapping(entry, where)
    if unknown := [key for key in entry if key not in _FIELD_KEYS]:
        raise ConfigError(f"{where} has {unknown[0]!r}, and a field has: {', '.join(_FIELD_KEYS)}")
    values = entry.get("values", [])
    if not isinstance(values, list):
        raise ConfigError(f"{where}.values: a list of names is needed, got {values!r}")
    bounds = entry.get("range")
    if bounds is not None and not (isinstance(bounds, list) and len(bounds) == 2):
        raise ConfigError(f"{where}.range: a list of two numbers is needed, got {bounds!r}")
    if bounds is not None and all(isinstance(bound, int | float) for bound in bounds) and not bounds[0] <= bounds[1]:
        raise ConfigError(f"{where}.range={bounds}: the lowest value comes first")
    parts = _fields(entry["fields"], f"{where}.fields") if "fields" in entry else ()
    size = entry.get("size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ConfigError(f"{where}.size={size!r}: a whole number >= 1 is needed")
    return Field(
        name,
        _words(entry, "description", where),
        unit=str(entry.get("unit", "")),
        range=None if bounds is None else (bounds[0], bounds[1]),
        values=tuple(_word(value) for value in values),
        size=size,
        fields=parts,
    )


def _actions(content: Any, where: str) -> tuple[tuple[str, str], ...]:
    content = _mapping(content, where)
    pairs = tuple((_word(name), " ".join(str(said or "").split())) for name, said in content.items())
    for name, said in pairs:
        if not said:
            raise ConfigError(f"{where}.{name} has no description")
    if len({name for name, _ in pairs}) < len(pairs) or not pairs:
        raise ConfigError(f"{where}: every action needs a name of its own")
    return pairs


def _cases(content: Any, where: str) -> Cases:
    """Of each argument, the sentence about each of its values; a sentence may be empty."""
    found = {}
    for name, cases in _mapping(content, where).items():
        told = _mapping(cases, f"{where}.{name}")
        if wrong := [value for value, said in told.items() if not isinstance(said, str)]:
            raise ConfigError(f"{where}.{name}.{shown(wrong[0])}: a sentence is needed, which may be empty")
        found[str(name)] = {shown(value): " ".join(said.split()) for value, said in told.items()}
    return found


def _success(content: Any, where: str) -> dict[str, str]:
    """What criteria mean, by their own words, such as `return >= 475`."""
    content, found = _mapping(content, where), {}
    for name in content:
        criterion = _CRITERION.fullmatch(str(name))
        if criterion is None:
            raise ConfigError(f"{where}.{name}: there are: terminated, return >= <number>, reward >= <number>")
        at = criterion[2]
        found[f"{criterion[1]} >= {float(at):g}" if at else str(name)] = _words(content, name, where)
    return found


def _needed(content: Mapping[str, Any], key: str, where: str) -> Any:
    if content.get(key) is None:
        raise ConfigError(f"{where} has no {key!r}; a text has goal, observation and actions")
    return content[key]


def _words(content: Mapping[str, Any], key: str, where: str) -> str:
    said = content.get(key)
    if not isinstance(said, str) or not said.strip():
        raise ConfigError(f"{where} has no {key!r}, or not in words")
    # Paragraphs stay, line breaks inside them go; lines that begin with blanks or a bar are a drawing.
    return said.strip("\n").rstrip() if "\n" in said else " ".join(said.split())


def _mapping(content: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where}: a mapping of names to entries is needed, got {type(content).__name__}")
    return content


def _word(value: object) -> str:
    """YAML reads some words as truth values."""
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _number(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def pairs(fields: Sequence[Field], prefix: str = "") -> tuple[tuple[str, str], ...]:
    """(name, what is told of it) of fields and of their parts, a part as `field.part`."""
    found: list[tuple[str, str]] = []
    for field in fields:
        found.append((prefix + field.name, field.told))
        found += pairs(field.fields, f"{prefix}{field.name}.")
    return tuple(found)
