"""Python values as Hydra overrides, in the form in which they are typed on a command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(/[A-Za-z_][A-Za-z0-9_.-]*)*")
"""Texts that Hydra reads as texts without quotes, except `_WORDS`."""
_WORDS = ("null", "true", "false", "inf", "nan")


def typed(key: str, value: Any) -> str:
    r"""Return the override that sets `key` to a Python value.

    >>> typed("seed", 1), typed("env.mechanism", None), typed("env.observe", ["grid"]), typed("env.text", "it's")
    ('seed=1', 'env.mechanism=null', 'env.observe=[grid]', "env.text='it\\'s'")

    Raises:
        ConfigError: the value is not plain data.
    """
    return f"{key}={override_value(value, key)}"


def typed_choices(key: str, values: Sequence[Any]) -> str:
    """Return the override that sweeps `key` over Python values.

    >>> typed_choices("principal", ["ucb", "llm"])
    'principal=ucb,llm'

    Raises:
        ConfigError: a value is not plain data.
    """
    return f"{key}={','.join(override_value(value, key) for value in values)}"


def override_value(value: Any, key: str = "value") -> str:
    r"""Return a Python value as the value of an override; `key` names it in errors.

    >>> override_value({"a": [1, 2.5, None], "b": "it's, so"})
    "{a:[1,2.5,null],b:'it\\'s, so'}"

    Raises:
        ConfigError: the value is not plain data.
    """
    if value is None:
        return "null"
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else quoted(value)
    if isinstance(value, Mapping):
        return (
            "{"
            + ",".join(f"{override_value(str(k), key)}:{override_value(item, key)}" for k, item in value.items())
            + "}"
        )
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return "[" + ",".join(override_value(element, key) for element in value) + "]"
    raise ConfigError(f"{key}: a {type(value).__name__} cannot be an override; use text, numbers, lists or dicts")


def quoted(text: str) -> str:
    """Return a text in quotes, escaped for Hydra."""
    # A backslash counts only where it stands before a quote.
    content = re.sub(r"(\\*)'", lambda match: f"{match[1] * 2}\\'", text)
    return "'" + re.sub(r"(\\+)$", lambda match: match[1] * 2, content) + "'"
