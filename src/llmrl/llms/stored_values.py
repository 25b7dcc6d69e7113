"""Long values of the call log that many requests share (messages and schemas), each stored once.

A line `{"stored": <key>, "value": ...}` precedes the first call that refers to the value as `{"stored": <key>}`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.core.folder_files import open_file

STORED = "stored"
"""Key of a reference, and of the line that holds the value."""
LINE = f'{{"{STORED}"'.encode()
"""Start of the lines that contain values."""

_MIN_LENGTH = 200
"""Minimum number of characters of a value that is stored in its own line."""
_CACHE_SIZE = 256
"""Number of values that a reader keeps in memory."""


class ValueWriter:
    """Writer that replaces long values by references and collects the lines with those values."""

    def __init__(self) -> None:
        self._stored_keys: set[str] = set()

    def reference(self, value: Any, lines: list[dict[str, Any]]) -> Any:
        """Return a reference to `value`, or the value itself if it is short.

        Args:
            value: plain data.
            lines: lines to write before the reference; a line is added if the value was not written yet.
        """
        text = json.dumps(value, ensure_ascii=False)
        if len(text) < _MIN_LENGTH:
            return value
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        if key not in self._stored_keys:
            self._stored_keys.add(key)
            lines.append({STORED: key, "value": value})
        return {STORED: key}


class ValueReader:
    """Reader of the stored values of the log at `path`.

    Args:
        path: the log. It may grow while it is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._positions: dict[str, int] = {}
        self._load = functools.lru_cache(_CACHE_SIZE)(self._read)

    def add(self, line: bytes, position: int) -> bool:
        """Record the position of a line that contains a value; return whether `line` is such a line."""
        if not line.startswith(LINE):
            return False
        # A line that a kill truncated has no references.
        with contextlib.suppress(ValueError, RecursionError):
            self._positions[str(json.loads(line)[STORED])] = position
        return True

    def resolve(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return a call whose messages and schema are values instead of references."""
        changed = dict(call)
        if isinstance(messages := call.get("messages"), list):
            changed["messages"] = [self._value(message) for message in messages]
        if "schema" in call:
            changed["schema"] = self._value(call["schema"])
        return changed

    def _value(self, value: Any) -> Any:
        if not (isinstance(value, Mapping) and STORED in value):
            return value
        position = self._positions.get(str(value[STORED]))
        return value if position is None else self._load(position)

    def _read(self, position: int) -> Any:
        with open_file(self._path) as file:
            file.seek(position)
            return json.loads(file.readline())["value"]
