"""Texts of Hydra overrides, as on a command line, for Python values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.errors import ConfigError

_UNQUOTED_TEXT_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(/[A-Za-z_][A-Za-z0-9_.-]*)*")
"""Texts that need no quotes in an override, except `_RESERVED_WORDS`."""
_RESERVED_WORDS = ("null", "true", "false", "inf", "nan")


def format_override(key: str, *values: Any) -> str:
    r"""Return the override that sets `key` to a Python value, or sweeps it over several.

    >>> format_override("seed", 1), format_override("env.mechanism", None), format_override("principal", "ucb", "llm")
    ('seed=1', 'env.mechanism=null', 'principal=ucb,llm')
    >>> format_override("env.observe", ["grid"]), format_override("env.text", "it's")
    ('env.observe=[grid]', "env.text='it\\'s'")

    Raises:
        ConfigError: a value has no text as an override.
    """
    return f"{key}={','.join(format_value(value, key) for value in values)}"


def format_value(value: Any, key: str = "value") -> str:
    r"""Return a Python value as the text of an override's value; `key` is the option's name, for messages.

    >>> format_value({"a": [1, 2.5, None], "b": "it's, so"})
    "{a:[1,2.5,null],b:'it\\'s, so'}"

    Raises:
        ConfigError: the value is not plain data, or a key of a mapping needs quotes, which Hydra does not accept there.
    """
    if value is None:
        return "null"
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return repr(int(value))  # without the name of a member of an enumeration
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        if _needs_no_quotes(value):
            return value
        # Hydra reads backslashes in quoted text as escapes only directly before a quote, so only these are doubled.
        escaped = re.sub(r"(\\*)'", lambda match: f"{match[1] * 2}\\'", value)
        return "'" + re.sub(r"(\\+)\Z", lambda match: match[1] * 2, escaped) + "'"
    if isinstance(value, Mapping):
        pairs = (f"{_format_mapping_key(name, key)}:{format_value(element, key)}" for name, element in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return "[" + ",".join(format_value(element, key) for element in value) + "]"
    raise ConfigError(f"{key}: a {type(value).__name__} cannot be an override; use text, numbers, lists or dicts")


def _needs_no_quotes(text: str) -> bool:
    return _UNQUOTED_TEXT_PATTERN.fullmatch(text) is not None and text.lower() not in _RESERVED_WORDS


def _format_mapping_key(name: Any, key: str) -> str:
    if (isinstance(name, str) and _needs_no_quotes(name)) or type(name) is int:
        return str(name)
    raise ConfigError(
        f"{key}: {name!r} cannot be a key of a mapping in an override; use an integer, or letters, digits, _, ., - "
        "and /, with a letter or _ first"
    )
