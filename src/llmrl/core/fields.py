"""Records read from files that somebody else may have written, or half of them: dataclasses of plain data."""

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

Record = TypeVar("Record")

LARGEST = 64 << 20
"""Bytes of a file that is read as one record; what is larger is none."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that is all of a file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is none, or cannot be read; says why.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ValueError("it is no file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"it has more than {LARGEST >> 20} MiB")
        content = json.loads(data.decode("utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError(f"it holds {_named(content)}, not an object")
    return content


def record_of(kind: type[Record], content: Mapping[str, Any]) -> Record:
    """A dataclass made of plain data, held to its type hints; keys that it has not are left out.

    Raises:
        ValueError: a field is missing, or not of its type; says which.
    """
    hints = _hints(kind)  # type: ignore[arg-type]  # a class can be hashed
    found: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name not in content:
            raise ValueError(f"it has no {each.name}")
        found[each.name] = fitting(content[each.name], hints[each.name], each.name)
    return kind(**found)


def fitting(value: Any, hint: Any, name: str) -> Any:
    """`value` if it is what `hint` says: plain types, unions, lists, dicts with texts as keys, literals, dataclasses.

    A whole number is a `float`, too, and nothing that is not finite is one; truth values are no numbers.

    Raises:
        ValueError: it is not.
    """
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        if value in inside and isinstance(value, str):
            return value
        raise ValueError(f"its {name} is {_named(value)}; known: {', '.join(map(str, inside))}")
    if origin in (typing.Union, UnionType):
        if value is None and NoneType in inside:
            return None
        (hint,) = [each for each in inside if each is not NoneType]
        return fitting(value, hint, name)
    if is_dataclass(hint) and isinstance(value, Mapping):
        return record_of(hint, value)  # type: ignore[arg-type]
    if origin is list and isinstance(value, list):
        return [fitting(each, inside[0], name) for each in value]
    if origin is dict and isinstance(value, dict):
        return {key: fitting(each, inside[1], name) for key, each in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and hint in (int, float) and abs(value) < 1 << 63:
        return value
    if isinstance(value, float) and hint is float and math.isfinite(value):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    raise ValueError(f"its {name} is {_named(value)}, not {_NAMES.get(hint, 'of its type')}")


_NAMES = {int: "a whole number", float: "a finite number", str: "a text", bool: "a truth value"}


def _named(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
