"""Values of overrides, in Hydra's grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


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
