"""What is typed, before Hydra sees it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_OPEN = re.compile(r"\w+(\.\w+)*\.(kwargs|arguments|replace)(\.\w+)*=")
"""Overrides of fields whose keys are not in the option's file: arguments of other people's classes, and texts to put in
place of others."""


def opened(argument: str) -> str:
    """Return a command-line argument such that Hydra takes new keys where any key may be meant.

    >>> opened("env.kwargs.g=9.81"), opened("env.horizon=9")
    ('++env.kwargs.g=9.81', 'env.horizon=9')
    """
    return f"++{argument}" if _OPEN.match(argument) else argument


def spelt(value: Any) -> str:
    """Return plain data as the value of an override, in Hydra's grammar.

    >>> spelt({"a": [1, 2.5, None], "b": "it's, so"})
    "{a:[1,2.5,null],b:'it\\\\'s, so'}"
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{spelt(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(spelt, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    # A backslash counts only where it stands before a quote.
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", str(value))
    ended = re.sub(r"(\\+)$", lambda found: found[1] * 2, escaped)
    return f"'{ended}'"
