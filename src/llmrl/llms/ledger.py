"""Every call to a chat model, kept in one file per run: what was asked, what came back, what it took."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from llmrl.core.errors import LLMError, RunFolderError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.budget import Budget, Spent

logger = logging.getLogger(__name__)

FILE_NAME = "llm_calls.jsonl"

JUDGED = "judged"
"""Key that marks a line that is no call but the verdict on the reply of one; its value is the call's hash."""
_VERDICT = f'{{"{JUDGED}"'

_TAIL = 1 << 16
"""Bytes looked at first when searching the last whole line from the end."""


class Verdict(NamedTuple):
    """What came of reading the reply of the call with this `hash` and `time`: `fault` is what is wrong, "" nothing."""

    hash: str
    time: float
    fault: str = ""


class Ledger:
    """Appends a line for each call to the file `path`.

    A line is written when its reply arrives, before anybody reads the reply; what came of reading it is a line of its
    own (`judge`). Each is a single append, so that threads never mix theirs; a process killed
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
            raise RunFolderError(f"cannot write the call log {path}: {error.strerror or error}") from error

    def record(
        self,
        key: str,
        label: str,
        identity: Mapping[str, Any],
        stream: int | None,
        request: ChatRequest,
        result: ChatReply | LLMError,
        budget: Budget,
    ) -> Verdict:
        """Write one call: a reply, paid or from the cache (`attempts` 0), or the error it ended with. What is returned
        becomes the verdict on this reply (`judge`), once it has been read."""
        now = time.time()
        line: dict[str, Any] = {
            "time": now,
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
            _append(self.path, _line(line))
        return Verdict(key, now)

    def judge(self, verdicts: Sequence[Verdict]) -> None:
        """Write down what came of reading replies."""
        lines = [{JUDGED: v.hash, "time": v.time, "valid": not v.fault, "fault": v.fault} for v in verdicts]
        if lines:
            _append(self.path, "".join(map(_line, lines)))


def read_calls(path: Path) -> Iterator[dict[str, Any]]:
    """The calls in a log, oldest first; lines cut short by a kill are skipped with a warning.

    Calls with a reply have `valid`, and `fault`: None where nobody read the reply, or the run was killed before.
    """
    verdicts = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            verdict = as_record(line) if line.startswith(_VERDICT) else None
            if verdict is not None:
                verdicts[address_of(verdict)] = verdict
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            call = as_record(line)
            if call is None:
                logger.warning("%s, line %d: not a whole record, skipped", path, number)
            elif JUDGED not in call:
                yield with_verdict(call, verdicts.get(address_of(call)))


def as_record(line: str | bytes) -> dict[str, Any] | None:
    """A line of a log; None if it is no record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def address_of(record: Mapping[str, Any]) -> tuple[str, str]:
    """What a call and the verdict on its reply have in common."""
    return str(record.get(JUDGED, record.get("hash"))), str(record.get("time"))


def with_verdict(call: dict[str, Any], verdict: Mapping[str, Any] | None) -> dict[str, Any]:
    """A call with what came of reading its reply, if it has one."""
    if "reply" not in call:
        return call
    return call | {name: None if verdict is None else verdict.get(name) for name in ("valid", "fault")}


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


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
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        if start == 0:
            break
        window *= 8
    return Spent()
