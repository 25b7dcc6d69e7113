"""Validated reading of dataclass records from JSON files that another program or user may have written."""

from __future__ import annotations

import functools
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar

from llmrl.core.folder_files import open_file

Record = TypeVar("Record")

_get_type_hints = functools.cache(typing.get_type_hints)
MAX_RECORD_BYTES = 64 << 20
"""Maximum size of a file that is read as one record, bytes."""


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read, is a symbolic link, has more than `MAX_RECORD_BYTES`, or is not a JSON
            object. The message gives the reason.
    """
    try:
        with open_file(path) as file:
            content_bytes = file.read(MAX_RECORD_BYTES + 1)
        if len(content_bytes) > MAX_RECORD_BYTES:
            raise ValueError(f"it has more than {MAX_RECORD_BYTES >> 20} MiB")
        content = json.loads(content_bytes.decode("utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError(f"it holds {_shorten_repr(content)}, not an object")
    return content


def parse_record(record_type: type[Record], content: Mapping[str, Any]) -> Record:
    """Return an instance of the dataclass `record_type` with the fields in `content`, checked against type hints.

    Keys that are not fields are ignored. Fields with defaults are also required.

    Raises:
        ValueError: a field is missing or has the wrong type; the message names it.
    """
    hints = _get_type_hints(record_type)  # type: ignore[arg-type]  # a class can be hashed
    field_names = [field.name for field in fields(record_type)]  # type: ignore[arg-type]
    if missing_fields := [name for name in field_names if name not in content]:
        raise ValueError(f"it has no {missing_fields[0]}")
    return record_type(**{name: parse_value(content[name], hints[name], name) for name in field_names})


def parse_value(value: Any, hint: Any, name: str) -> Any:
    """Return `value` if it fits the type `hint`, with mappings converted to the dataclasses in the hint.

    Hints are plain types, optional types, lists, dicts with str keys, literals of str and dataclasses. An int fits
    `float`. NaN, infinities, integers outside +-2**63 and booleans fit neither int nor float.

    Raises:
        ValueError: the value does not fit; the message names it `name`.
    """
    if hint is Any or (hint is str and isinstance(value, str)):
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in arguments and isinstance(value, str):
            return value
        raise ValueError(f"its {name} is {_shorten_repr(value)}; known: {', '.join(map(str, arguments))}")
    if origin in (typing.Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        (hint,) = [element for element in arguments if element is not NoneType]
        return parse_value(value, hint, name)
    if is_dataclass(hint) and isinstance(value, Mapping):
        return parse_record(hint, value)  # type: ignore[arg-type]
    if origin is list and isinstance(value, list):
        return [parse_value(element, arguments[0], name) for element in value]
    if origin is dict and isinstance(value, dict):
        return {key: parse_value(element, arguments[1], name) for key, element in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and hint in (int, float) and abs(value) < 1 << 63:
        return value
    if isinstance(value, float) and hint is float and math.isfinite(value):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    raise ValueError(f"its {name} is {_shorten_repr(value)}, not {_TYPE_NAMES.get(hint, 'of the required type')}")


_TYPE_NAMES = {int: "a whole number", float: "a finite number", str: "a text", bool: "a truth value"}


def _shorten_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
