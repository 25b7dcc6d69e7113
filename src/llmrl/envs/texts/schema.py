"""Text files of environments (YAML files with goal, observation and actions) and their validation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from llmrl.core.arguments import validate_argument
from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.envs.texts.env_arguments import ArgumentSentences, format_value

_FILE_KEYS = ("decoder", "goal", "arguments", "success", "decimals", "observation", "actions")
_FIELD_KEYS = ("description", "unit", "range", "values", "size", "fields")
_RangeBound = int | float | str
_CRITERION_PATTERN = re.compile(r"terminated|(return|reward) >= (-?\d+\.?\d*)")
DECIMALS = 4
"""Default number of digits after the decimal point of real numbers."""


@dataclass(frozen=True)
class Field:
    """A named part of an observation.

    Attributes:
        name, description, unit: texts about the field; the unit may be empty.
        range: lowest and highest value, in `unit`; None: unspecified.
        values: names of the integers 0, 1, ..., which replace the number; empty: the number is not replaced.
        size: number of numbers in the field or, in a Discrete observation, number of its possible values. None: the
            sum over `fields` or the number of `values`, else 1.
        fields: subfields of a Dict, of a Tuple, or of several numbers with different names.
    """

    name: str
    description: str
    unit: str = ""
    range: tuple[float | str, float | str] | None = None
    values: tuple[str, ...] = ()
    size: int | None = None
    fields: tuple[Field, ...] = ()

    @property
    def n_states(self) -> int:
        """Number of possible values of the field, as a part of a Discrete observation."""
        return self.size or len(self.values) or 1

    @property
    def n_numbers(self) -> int:
        """Number of numbers in the field, as a part of a Box."""
        return self.size or sum(part.n_numbers for part in self.fields) or 1

    @property
    def full_description(self) -> str:
        """Description with unit, values and range, for language-model players."""
        details = []
        if self.unit:
            details.append(f"in {self.unit}")
        if self.values:
            details.append("one of " + ", ".join(f'"{value}"' for value in self.values))
        if self.range is not None:
            low, high = (bound if isinstance(bound, str) else f"{bound:g}" for bound in self.range)
            details.append(f"from {low} to {high}")
        return self.description + (f" ({', '.join(details)})" if details else "")


@dataclass(frozen=True)
class DescriptionFile:
    """The content of a text file of an environment.

    Attributes:
        source: name of the file, for messages.
        goal: text about the environment, rewards and the end of an episode; `{name}` is a placeholder for a fact of
            the decoder or an argument of the environment (`env_arguments.Placeholders`).
        arguments: sentences about values of arguments.
        success: meanings of success criteria (`describers.describe_success`).
        observation: the fields of an observation, in the order of its numbers, members or keys.
        actions: (answer, effect) of each action, in order.
        decoder: key of `decoders.DECODERS`; "": fields are assigned by the structure of the observation space.
        decimals: number of digits after the decimal point of real numbers.
    """

    source: str
    goal: str
    arguments: ArgumentSentences
    success: Mapping[str, str]
    observation: tuple[Field, ...]
    actions: tuple[tuple[str, str], ...]
    decoder: str = ""
    decimals: int = DECIMALS


def read_description(path: Path) -> DescriptionFile:
    """Return the content of a YAML text file.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the text {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the text {path} is not valid YAML: {error}") from error
    return parse_description(content, str(path))


def parse_description(content: Any, source: str) -> DescriptionFile:
    """Return the description in the mapping `content`; `source` is the name of its file, for messages.

    Raises:
        ConfigError: an entry is missing, empty, or of the wrong type.
    """
    content = _check_mapping(content, source, "a text", _FILE_KEYS)
    if missing := [key for key in ("observation", "actions") if content.get(key) is None]:
        raise ConfigError(f"{source} has no {missing[0]!r}; a text must have goal, observation and actions")
    decimals = validate_argument(
        content.get("decimals", DECIMALS), Annotated[int, Ge(0), Le(12)], f"{source}: decimals"
    )
    return DescriptionFile(
        source,
        goal=_parse_text(content, "goal", source),
        arguments=_parse_argument_sentences(content.get("arguments", {}), f"{source}: arguments"),
        success=_parse_success_meanings(content.get("success", {}), f"{source}: success"),
        observation=_parse_fields(content["observation"], f"{source}: observation"),
        actions=_parse_actions(content["actions"], f"{source}: actions"),
        decoder=_parse_text(content, "decoder", source) if "decoder" in content else "",
        decimals=decimals,
    )


def _parse_fields(content: Any, source: str) -> tuple[Field, ...]:
    content = _check_mapping(content, source)
    if not content:
        raise ConfigError(f"{source} is empty; it must name at least one observed quantity")
    return tuple(_parse_field(str(name), field, f"{source}.{name}") for name, field in content.items())


def _parse_field(name: str, content: Any, source: str) -> Field:
    content = {"description": content} if isinstance(content, str) else content
    content = _check_mapping(content, source, "a field", _FIELD_KEYS)
    values = validate_argument(content.get("values", []), list[Any], f"{source}.values")
    bounds = validate_argument(content.get("range"), tuple[_RangeBound, _RangeBound] | None, f"{source}.range")
    if bounds is not None and all(isinstance(bound, int | float) for bound in bounds) and not bounds[0] <= bounds[1]:
        raise ConfigError(f"{source}.range={list(bounds)} must have the lower bound first")
    return Field(
        name,
        _parse_text(content, "description", source),
        unit=str(content.get("unit", "")),
        range=bounds,
        values=tuple(_format_yaml_value(value) for value in values),
        size=validate_argument(content.get("size"), PositiveInt | None, f"{source}.size"),
        fields=_parse_fields(content["fields"], f"{source}.fields") if "fields" in content else (),
    )


def _parse_actions(content: Any, source: str) -> tuple[tuple[str, str], ...]:
    actions = tuple(
        (_format_yaml_value(name), " ".join(str(description or "").split()))
        for name, description in _check_mapping(content, source).items()
    )
    if actions_without_description := [name for name, description in actions if not description]:
        raise ConfigError(f"{source}.{actions_without_description[0]} has no description; say what the action does")
    if len(dict(actions)) < len(actions) or not actions:
        raise ConfigError(f"{source} must contain actions with distinct names")
    return actions


def _parse_argument_sentences(content: Any, source: str) -> ArgumentSentences:
    """Return the sentence about each value of each argument; a sentence may be empty."""
    sentences_by_name = {}
    for name, sentences_by_value in _check_mapping(content, source).items():
        sentences = _check_mapping(sentences_by_value, f"{source}.{name}")
        if invalid := [value for value, sentence in sentences.items() if not isinstance(sentence, str)]:
            raise ConfigError(f"{source}.{name}.{format_value(invalid[0])} must be a sentence, which may be empty")
        sentences_by_name[str(name)] = {
            format_value(value): " ".join(sentence.split()) for value, sentence in sentences.items()
        }
    return sentences_by_name


def _parse_success_meanings(content: Any, source: str) -> dict[str, str]:
    """Return success criterion, such as `return >= 475` -> its meaning."""
    meanings = {}
    for name in _check_mapping(content, source):
        criterion = _CRITERION_PATTERN.fullmatch(str(name))
        if criterion is None:
            raise ConfigError(
                f"{source}.{name} is not a criterion; use terminated, return >= <number> or reward >= <number>"
            )
        quantity, threshold = criterion.groups()
        meanings[f"{quantity} >= {float(threshold):g}" if threshold else str(name)] = _parse_text(content, name, source)
    return meanings


def _parse_text(content: Mapping[str, Any], key: str, source: str) -> str:
    text = content.get(key)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{source} has no {key!r}, or one that is empty or not a text")
    # Line breaks that remain after YAML's folding are kept; they separate paragraphs and the lines of drawings.
    return text.strip("\n").rstrip() if "\n" in text else " ".join(text.split())


def _check_mapping(content: Any, source: str, kind: str = "", allowed_keys: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return `content` if it is a mapping with only `allowed_keys` (empty: any keys); messages contain its `kind`."""
    if not isinstance(content, Mapping):
        raise ConfigError(f"{source} must be a mapping, got {type(content).__name__}")
    if allowed_keys and (unknown := [key for key in content if key not in allowed_keys]):
        raise ConfigError(f"{source} has the unknown key {unknown[0]!r}; keys of {kind} are {', '.join(allowed_keys)}")
    return content


def _format_yaml_value(value: object) -> str:
    """Return a YAML value as text; YAML parses `yes` and `no` as booleans, which are converted back."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def list_fields(fields: Sequence[Field], prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Return (name, description) of fields and their subfields; the name of a subfield is `field.subfield`."""
    descriptions: list[tuple[str, str]] = []
    for field in fields:
        descriptions.append((prefix + field.name, field.full_description))
        descriptions += list_fields(field.fields, f"{prefix}{field.name}.")
    return tuple(descriptions)
