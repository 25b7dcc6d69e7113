"""Every call to a chat model, kept in one file per run: what was asked, what came back, what it took."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmrl.core.disk import why
from llmrl.core.errors import LLMError, RunFolderError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.budget import Budget, Spent

logger = logging.getLogger(__name__)

FILE_NAME = "llm_calls.jsonl"

_TAIL = 1 << 16
"""Bytes looked at first when searching the last whole line from the end."""


class Ledger:
    """Appends a line for each call to the file `path`.

    A line is written when its reply arrives, by a single append, so that threads never mix theirs; a process killed
    in the middle of one leaves at worst a last line cut short, which the next writer closes and `read_calls` skips.
    Each line carries what the run has spent so far, all attempts of the run together.

    Attributes:
        spent_before: what processes before this one have paid for in this run.

    Raises:
        RunFolderError: `path` cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            _close_last_line(path)
            self.spent_before = _last_spent(path)
        except OSError as error:
            raise RunFolderError(f"cannot write the call log {path}: {why(path, error)}") from error

    def record(
        self,
        key: str,
        label: str,
        identity: Mapping[str, Any],
        stream: int | None,
        request: ChatRequest,
        result: ChatReply | LLMError,
        budget: Budget,
    ) -> None:
        """Write one call: a reply, paid or from the cache (`attempts` 0), or the error it ended with."""
        line: dict[str, Any] = {
            "time": time.time(),
            "hash": key,
            "model": label,
            "identity": dict(identity),
            "stream": stream,
            "purpose": request.purpose,
            "prompt": request.prompt,
            "prompt_hash": request.prompt_hash,
            "repeat": request.repeat,
            "messages": list(request.messages),
            "schema": request.schema,
        }
        if isinstance(result, ChatReply):
            line |= {
                "reply": result.text,
                "valid": None if request.fault is None else not request.fault(result.text),
                "finish": result.finish,
                "prompt_tokens": result.prompt_tokens,
                "completion_tokens": result.completion_tokens,
                "cached_tokens": result.cached_tokens,
                "cost": result.cost,
                "latency": result.latency,
                "attempts": result.attempts,
                "cached": result.attempts == 0,
            }
        else:
            line["error"] = str(result)
        with self._lock:
            # Read under the lock, so that totals never fall from one line to the next.
            line["spent"] = asdict(budget.spent)
            try:
                _append(self.path, json.dumps(line, ensure_ascii=False) + "\n")
            except OSError as error:
                raise RunFolderError(f"cannot write the call log {self.path}: {why(self.path, error)}") from error


def read_calls(path: Path) -> Iterator[dict[str, Any]]:
    """The calls in a log, oldest first; lines cut short by a kill are skipped with a warning."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                call = json.loads(line)
            except json.JSONDecodeError:
                call = None
            if isinstance(call, dict):
                yield call
            else:
                logger.warning("%s, line %d: not a whole record, skipped", path, number)


def _append(path: Path, text: str) -> None:
    """Append in one write; the operating system keeps it even if this process is killed right after."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        data = memoryview(text.encode())
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _close_last_line(path: Path) -> None:
    """Create the file, or end a last line that a killed process left open, so that the next record starts afresh."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def _last_spent(path: Path) -> Spent:
    """The running total of the last whole line; none of the others has to be read."""
    size, window = path.stat().st_size, _TAIL
    while size:
        with path.open("rb") as file:
            start = max(size - window, 0)
            file.seek(start)
            lines = file.read().split(b"\n")
        # The first piece may be the end of a line that began earlier.
        for line in reversed(lines[1:] if start else lines):
            try:
                return Spent(**json.loads(line)["spent"])
            except (ValueError, KeyError, TypeError):
                continue
        if start == 0:
            break
        window *= 8
    return Spent()
