"""Text files of environments: YAML files with goal, observation and actions, and their validation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from llmrl.core.arguments import checked
from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.envs.texts.env_arguments import Cases, format_value

_KEYS = ("decoder", "goal", "arguments", "success", "decimals", "observation", "actions")
_FIELD_KEYS = ("description", "unit", "range", "values", "size", "fields")
_Bound = int | float | str
_CRITERION = re.compile(r"terminated|(return|reward) >= (-?\d+\.?\d*)")
DECIMALS = 4
"""Default number of digits after the decimal point of real numbers."""


@dataclass(frozen=True)
class Field:
    """A named part of an observation.

    Attributes:
        name, description, unit: words for the field; the unit may be empty.
        range: lowest and highest value, in its unit; None if it is not stated.
        values: names of the integers 0, 1, ..., used in place of the number; empty if the field is a plain number.
        size: number of numbers of which it consists; for a part of a Discrete observation, the number of states that it
            distinguishes. None: 1, the total of its parts, or the number of its values.
        fields: its parts, if it is a Dict or Tuple, or several numbers with different names.
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
        """Number of states that the field distinguishes, as a part of a Discrete observation."""
        return self.size or len(self.values) or 1

    @property
    def numbers(self) -> int:
        """Number of numbers of which the field consists, as a part of a Box."""
        return self.size or sum(part.numbers for part in self.fields) or 1

    @property
    def full_description(self) -> str:
        """Description with unit, values and range, for language-model players."""
        notes = []
        if self.unit:
            notes.append(f"in {self.unit}")
        if self.values:
            notes.append("one of " + ", ".join(f'"{value}"' for value in self.values))
        if self.range is not None:
            notes.append(f"from {_number(self.range[0])} to {_number(self.range[1])}")
        return self.description + (f" ({', '.join(notes)})" if notes else "")


@dataclass(frozen=True)
class DescriptionFile:
    """The content of a text file of an environment.

    Attributes:
        source: the file, for messages.
        goal: the game, its rewards and its end in words; `{name}` stands for a fact of the decoder, or
            for an argument of the environment (`env_arguments.Placeholders`).
        arguments: meaning of the values of arguments.
        success: meaning of criteria of success in this game (`describers.success_text`).
        observation: the fields of an observation, in the order of its numbers, members or keys.
        actions: (answer, effect) of each action, in order.
        decoder: name of the decoder of observations, see `decoders.DECODERS`; "" for the structure of the space.
        decimals: digits after the point of real numbers.
    """

    source: str
    goal: str
    arguments: Cases
    success: Mapping[str, str]
    observation: tuple[Field, ...]
    actions: tuple[tuple[str, str], ...]
    decoder: str = ""
    decimals: int = DECIMALS


def read_text(path: Path) -> DescriptionFile:
    """Return the content of a YAML text file.

    Raises:
        ConfigError: it cannot be read, or lacks something, which is named.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the text {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the text {path} is not valid YAML: {error}") from error
    return parse_text(content, str(path))


def parse_text(content: Any, source: str) -> DescriptionFile:
    """Return the text described by a mapping; `source` is its name in messages.

    Raises:
        ConfigError: something is missing, empty, or of the wrong kind.
    """
    content = _mapping(content, source)
    if unknown := [key for key in content if key not in _KEYS]:
        raise ConfigError(f"{source} has {unknown[0]!r}, and a text has: {', '.join(_KEYS)}")
    decimals = checked(content.get("decimals", DECIMALS), Annotated[int, Ge(0), Le(12)], f"{source}: decimals")
    return DescriptionFile(
        source,
        goal=_words(content, "goal", source),
        arguments=_cases(content.get("arguments", {}), f"{source}: arguments"),
        success=_success(content.get("success", {}), f"{source}: success"),
        observation=_fields(_require(content, "observation", source), f"{source}: observation"),
        actions=_actions(_require(content, "actions", source), f"{source}: actions"),
        decoder=_words(content, "decoder", source) if "decoder" in content else "",
        decimals=decimals,
    )


def _fields(content: Any, path: str) -> tuple[Field, ...]:
    content = _mapping(content, path)
    if not content:
        raise ConfigError(f"{path} is empty; it must name at least one observed quantity")
    return tuple(_field(str(name), entry, f"{path}.{name}") for name, entry in content.items())


def _field(name: str, entry: Any, path: str) -> Field:
    if isinstance(entry, str):
        entry = {"description": entry}
    entry = _mapping(entry, path)
    if unknown := [key for key in entry if key not in _FIELD_KEYS]:
        raise ConfigError(f"{path} has {unknown[0]!r}, and a field has: {', '.join(_FIELD_KEYS)}")
    values = checked(entry.get("values", []), list[Any], f"{path}.values")
    bounds = checked(entry.get("range"), tuple[_Bound, _Bound] | None, f"{path}.range")
    if bounds is not None and all(isinstance(bound, int | float) for bound in bounds) and not bounds[0] <= bounds[1]:
        raise ConfigError(f"{path}.range={list(bounds)} must have the lower bound first")
    parts = _fields(entry["fields"], f"{path}.fields") if "fields" in entry else ()
    size = checked(entry.get("size"), PositiveInt | None, f"{path}.size")
    return Field(
        name,
        _words(entry, "description", path),
        unit=str(entry.get("unit", "")),
        range=bounds,
        values=tuple(_word(value) for value in values),
        size=size,
        fields=parts,
    )


def _actions(content: Any, path: str) -> tuple[tuple[str, str], ...]:
    content = _mapping(content, path)
    actions = tuple((_word(name), " ".join(str(description or "").split())) for name, description in content.items())
    for name, description in actions:
        if not description:
            raise ConfigError(f"{path}.{name} has no description")
    if len({name for name, _ in actions}) < len(actions) or not actions:
        raise ConfigError(f"{path} must contain actions with distinct names")
    return actions


def _cases(content: Any, path: str) -> Cases:
    """Return the sentence about each value of each argument; a sentence may be empty."""
    sentences_by_name = {}
    for name, cases in _mapping(content, path).items():
        sentences = _mapping(cases, f"{path}.{name}")
        if wrong := [value for value, sentence in sentences.items() if not isinstance(sentence, str)]:
            raise ConfigError(f"{path}.{name}.{format_value(wrong[0])} must be a sentence, which may be empty")
        sentences_by_name[str(name)] = {
            format_value(value): " ".join(sentence.split()) for value, sentence in sentences.items()
        }
    return sentences_by_name


def _success(content: Any, path: str) -> dict[str, str]:
    """Return the meaning of each criterion of success by its name, such as `return >= 475`."""
    content, criteria = _mapping(content, path), {}
    for name in content:
        criterion = _CRITERION.fullmatch(str(name))
        if criterion is None:
            raise ConfigError(f"{path}.{name}: there are: terminated, return >= <number>, reward >= <number>")
        at = criterion[2]
        criteria[f"{criterion[1]} >= {float(at):g}" if at else str(name)] = _words(content, name, path)
    return criteria


def _require(content: Mapping[str, Any], key: str, path: str) -> Any:
    if content.get(key) is None:
        raise ConfigError(f"{path} has no {key!r}; a text has goal, observation and actions")
    return content[key]


def _words(content: Mapping[str, Any], key: str, path: str) -> str:
    text = content.get(key)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{path} has no {key!r}, or not in words")
    # Paragraphs are kept and line breaks inside them removed; lines that begin with blanks or a bar are a drawing.
    return text.strip("\n").rstrip() if "\n" in text else " ".join(text.split())


def _mapping(content: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: a mapping of names to entries is needed, got {type(content).__name__}")
    return content


def _word(value: object) -> str:
    """Return a word; YAML reads `yes` and `no` as booleans."""
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _number(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def field_descriptions(fields: Sequence[Field], prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Return (name, description) of fields and of their parts; a part is named `field.part`."""
    descriptions: list[tuple[str, str]] = []
    for field in fields:
        descriptions.append((prefix + field.name, field.full_description))
        descriptions += field_descriptions(field.fields, f"{prefix}{field.name}.")
    return tuple(descriptions)
