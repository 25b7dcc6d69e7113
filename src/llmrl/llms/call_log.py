"""Log of every call to a chat model, one file per run: requests, replies, tokens, costs and latencies.

Long values that many requests share (messages and schemas) are stored once: a line `{"stored": <key>, "value": ...}`
precedes the first call that refers to the value as `{"stored": <key>}`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from llmrl.core.atomic_files import describe_write_error
from llmrl.core.errors import LLMError, RunFolderError
from llmrl.core.folder_files import open_file
from llmrl.core.records import CHOSEN_MODEL, REPLY_COUNTS, ChatReply, ChatRequest
from llmrl.core.secrets import redact_nested
from llmrl.llms.budget import Budget, Reservation, Usage
from llmrl.llms.images import with_image_files

REFERENCE_KEY = "stored"
"""JSON key of a reference to a stored value, and of the line that contains this value."""
STORED_VALUE_PREFIX = f'{{"{REFERENCE_KEY}"'.encode()
"""First bytes of the lines that contain stored values."""

_MIN_STORED_LENGTH = 200
"""Minimum number of characters of a value that is stored in its own line."""
_VALUE_CACHE_SIZE = 256
"""Maximum number of stored values that a reader keeps in memory."""


class StoredValueWriter:
    """Writer that replaces long values by references and collects the lines with those values."""

    def __init__(self) -> None:
        self._written_keys: set[str] = set()

    def store_value(self, value: Any, lines: list[dict[str, Any]]) -> Any:
        """Return a reference to `value`, or the value itself if it is short.

        Args:
            value: plain data.
            lines: lines to write before the reference; a line is added if the value was not written yet.
        """
        text = json.dumps(value, ensure_ascii=False)
        if len(text) < _MIN_STORED_LENGTH:
            return value
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        if key not in self._written_keys:
            self._written_keys.add(key)
            lines.append({REFERENCE_KEY: key, "value": value})
        return {REFERENCE_KEY: key}


class StoredValueReader:
    """Reader of the stored values of the log at `path`.

    Args:
        path: the log. It may grow while it is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_by_key: dict[str, int] = {}
        self._read_cached_value = functools.lru_cache(_VALUE_CACHE_SIZE)(self._read_value)

    def index_line(self, line: bytes, offset: int) -> bool:
        """Record the position of a line that contains a value; return whether `line` is such a line."""
        if not line.startswith(STORED_VALUE_PREFIX):
            return False
        # No call refers to a line that was truncated when the process was killed.
        with contextlib.suppress(ValueError, RecursionError):
            self._offset_by_key[str(json.loads(line)[REFERENCE_KEY])] = offset
        return True

    def resolve_references(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return a call whose messages and schema are values instead of references."""
        resolved = dict(call)
        if isinstance(messages := call.get("messages"), list):
            resolved["messages"] = [self._resolve_reference(message) for message in messages]
        if "schema" in call:
            resolved["schema"] = self._resolve_reference(call["schema"])
        return resolved

    def _resolve_reference(self, value: Any) -> Any:
        if not (isinstance(value, Mapping) and REFERENCE_KEY in value):
            return value
        offset = self._offset_by_key.get(str(value[REFERENCE_KEY]))
        return value if offset is None else self._read_cached_value(offset)

    def _read_value(self, offset: int) -> Any:
        with open_file(self._path) as file:
            file.seek(offset)
            return json.loads(file.readline())["value"]


logger = logging.getLogger(__name__)

FILE_NAME = "llm_calls.jsonl"

VERDICT_KEY = "judged"
"""JSON key of lines with the verdict on a call's reply; its value is the hash of the call."""
_VERDICT_PREFIX = f'{{"{VERDICT_KEY}"'.encode()

_TAIL_BYTES = 1 << 16
"""Number of bytes that are read first in the search for the last complete line."""

FailedOutcome = Literal["refused", "lost"]
"""Outcome of an attempt without a reply: `refused`, nothing was generated; `lost`, unknown."""


class Verdict(NamedTuple):
    """Result of parsing the reply of the call with this `hash` and `time`.

    `error` is the reason why the reply is invalid, "" if it is valid.
    """

    hash: str
    time: float
    error: str = ""
    parsed_reply: Any = None


@dataclass
class Call:
    """Call of a model.

    Attributes:
        request: the request.
        key: hash of the request and the model, the address of its reply in caches.
        label: label of the model.
        stream: seed that selects the sample of the model's answers; None: all seeds share one sample.
        verdict: verdict on the reply of the logged call; None: the call is not logged yet.
    """

    request: ChatRequest
    key: str
    label: str = ""
    sample_seed: int | None = None
    verdict: Verdict | None = None


class CallLog:
    """Append-only log at `path`: a line before each attempt, and lines for each call and each verdict.

    Long messages and schemas are stored once, in lines of their own (`llmrl.llms.call_log`).

    The line of an attempt (`record_attempt`) is on disk before the request is sent. The line of the call, which
    `settles` it, is written when the reply arrives, before the reply is parsed; a failed attempt is settled by a line
    with its `fate`. The verdict on a reply is a separate line (`record_verdicts`). Each line is a single append,
    so threads never mix lines. A killed process leaves at worst a truncated last line, which the next writer ends and
    `read_calls` skips. Lines of calls and attempts contain the run's spending so far, over all its processes, with
    attempts in flight counted as lost.

    Attributes:
        spent_before: spending of earlier processes in this run.

    Raises:
        RunFolderError: `path` cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._is_last_write_complete = True
        self._stored_values = StoredValueWriter()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_file(path, "ab+") as file:
                if file.tell() > 0:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        file.write(b"\n")  # ends an incomplete line
            self.spent_before = _read_last_usage(path)
        except OSError as error:
            raise _write_error(path, error) from error

    def record_attempt(self, call: Call, attempt: int, reservation: Reservation, budget: Budget) -> None:
        """Write that a request is about to be sent, as attempt number `attempt` (from 1) of its call.

        Raises:
            RunFolderError: the line cannot be written; the request must not be sent.
        """
        line = {
            "time": time.time(),
            "asked": reservation.id,
            "hash": call.key,
            "model": call.label,
            "stream": call.sample_seed,
            "purpose": call.request.purpose,
            "prompt": call.request.prompt,
            "repeat": call.request.repeat,
            "attempt": attempt,
            "reserved": {"tokens": reservation.tokens, "cost": reservation.cost},
        }
        self._write(line, budget, sync_to_disk=True)

    def record_attempt_outcome(self, reservation: Reservation, fate: FailedOutcome, error: str, budget: Budget) -> None:
        """Write the outcome of a logged attempt that has no reply; if the disk is full, only log a warning."""
        try:
            self._write({"time": time.time(), "settles": reservation.id, "fate": fate, "error": error}, budget)
        except RunFolderError as disk_error:
            logger.warning("%s; the attempt counts as lost", disk_error)

    def record_call(
        self,
        call: Call,
        identity: Mapping[str, Any],
        result: ChatReply | LLMError,
        budget: Budget,
        reservation: Reservation | None = None,
    ) -> Verdict:
        """Write one call with its reply, paid or from the cache (`attempts` 0), or with its error.

        `reservation` belongs to the attempt that returned the reply, if `record_attempt` has logged it. The returned
        verdict on the reply is empty; the caller fills it in and passes it to `record_verdicts`.
        """
        now, request = time.time(), call.request
        line: dict[str, Any] = {
            "time": now,
            **({} if reservation is None else {"settles": reservation.id}),
            "hash": call.key,
            "model": call.label,
            "identity": dict(identity),
            "stream": call.sample_seed,
            "purpose": request.purpose,
            "prompt": request.prompt,
            "prompt_hash": request.prompt_hash,
            "repeat": request.repeat,
            **({"place": request.question_id} if request.question_id else {}),
            **({"named": request.model} if request.model != CHOSEN_MODEL else {}),
        }
        if isinstance(result, ChatReply):
            line |= {
                "reply": result.text,
                "thoughts": result.thoughts,
                "finish": result.finish,
                **{name: getattr(result, name) for name in REPLY_COUNTS},
                "cost": result.cost,
                "latency": result.latency,
                "attempts": result.attempts,
                "cached": result.attempts == 0,
            }
        else:
            line["error"] = str(result)
        line |= {"messages": with_image_files(request.messages, self.path.parent), "schema": request.schema}
        self._write(line, budget)
        return Verdict(call.key, now)

    def _write(self, line: dict[str, Any], budget: Budget, sync_to_disk: bool = False) -> None:
        """Write a line with the budget's usage; its messages and schema are replaced by references if they are long."""
        with self._lock:
            lines: list[dict[str, Any]] = []
            if "messages" in line:
                line["messages"] = [self._stored_values.store_value(message, lines) for message in line["messages"]]
                line["schema"] = self._stored_values.store_value(line["schema"], lines)
            # Read under the lock, so that totals never fall from one line to the next.
            line["spent"] = asdict(budget.worst_case_usage())
            self._append_lines([*lines, line], sync_to_disk)

    def record_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Write the verdicts on replies.

        Raises:
            RunFolderError: the file cannot be written.
        """
        lines = [
            {VERDICT_KEY: key, "time": call_time, "valid": not error, "fault": error, "understood": parsed_reply}
            for key, call_time, error, parsed_reply in verdicts
        ]
        with self._lock:
            self._append_lines(lines)

    def _append_lines(self, lines: Sequence[Mapping[str, Any]], sync_to_disk: bool = False) -> None:
        """Append lines with redacted secrets, after a line break if the previous write was incomplete."""
        if not lines:
            return
        text = "".join(f"{json.dumps(redact_nested(line), ensure_ascii=False)}\n" for line in lines)
        # A line that a full disk has truncated is ended first.
        start, self._is_last_write_complete = "" if self._is_last_write_complete else "\n", False
        try:
            # One write survives a kill of this process and, with `sync_to_disk`, a crash of the machine.
            with open_file(self.path, "ab") as file:
                remaining_bytes = memoryview((start + text).encode())
                while remaining_bytes:
                    remaining_bytes = remaining_bytes[os.write(file.fileno(), remaining_bytes) :]
                if sync_to_disk:
                    os.fsync(file.fileno())
        except OSError as error:
            self._stored_values = StoredValueWriter()  # the stored values may not have been written
            raise _write_error(self.path, error) from error
        self._is_last_write_complete = True


def read_calls(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the calls in a log, oldest first; truncated lines are skipped with a warning.

    Calls with a reply have `valid`, `fault` and `understood`, each None if the reply was never parsed. Attempts whose
    reply was lost and may have been charged are yielded too, marked `unsettled: true`. They have `hash`, `attempt`
    (from 1), `reserved` tokens and cost, and the reason as `lost` (None if the process was killed), but
    neither `reply` nor `error`.
    """
    stored_values, verdicts, unsettled = _read_index(path)
    with open_file(path) as file:
        for line_number, line in enumerate(file, start=1):
            if line.startswith(STORED_VALUE_PREFIX) and line.endswith(b"\n"):
                continue
            call = parse_log_line(line.decode("utf-8", "replace"))
            if call is None:
                logger.warning("%s, line %d: incomplete record, skipped", path, line_number)
            elif "asked" in call:
                if str(call["asked"]) in unsettled:
                    yield {**call, "unsettled": True, "lost": unsettled[str(call["asked"])]}
            elif VERDICT_KEY not in call and "fate" not in call:
                call.pop("settles", None)
                yield with_verdict(stored_values.resolve_references(call), verdicts.get(call_key(call)))


def _read_index(
    path: Path,
) -> tuple[StoredValueReader, dict[tuple[str, str], dict[str, Any]], dict[str, str | None]]:
    """Return stored values, verdicts, and the attempts whose outcome is unknown, each with the logged reason."""
    verdicts: dict[tuple[str, str], dict[str, Any]] = {}
    unsettled: dict[str, str | None] = {}
    stored_values, offset = StoredValueReader(path), 0
    with open_file(path) as file:
        for line in file:
            start, offset = offset, offset + len(line)
            # Quotation marks inside texts are escaped, so only keys match.
            if stored_values.index_line(line, start) or not any(
                key in line for key in (_VERDICT_PREFIX, b'"asked"', b'"settles"')
            ):
                continue
            if (record := parse_log_line(line)) is None:
                continue  # a truncated line settles nothing
            if VERDICT_KEY in record:
                verdicts[call_key(record)] = record
            elif "asked" in record:
                unsettled[str(record["asked"])] = None
            elif record.get("fate") == "lost":
                unsettled[str(record.get("settles"))] = str(record.get("error"))
            else:
                unsettled.pop(str(record.get("settles")), None)
    return stored_values, verdicts, unsettled


def parse_log_line(line: str | bytes) -> dict[str, Any] | None:
    """Parse a line of a log; return None if it is not a JSON object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def call_key(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key (hash, time) that identifies a call and the verdict on its reply."""
    return str(record.get(VERDICT_KEY, record.get("hash"))), str(record.get("time"))


def with_verdict(call: dict[str, Any], verdict: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a call with the fields of its verdict, or None for each; unchanged if the call has no reply."""
    if "reply" not in call:
        return call
    return call | {name: None if verdict is None else verdict.get(name) for name in ("valid", "fault", "understood")}


def _write_error(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"cannot write the call log {path}: {describe_write_error(path, error)}")


def _read_last_usage(path: Path) -> Usage:
    """Return the spending in the last complete line, read from the end of the file."""
    size, window = path.stat().st_size, _TAIL_BYTES
    while size:
        with open_file(path) as file:
            start = max(size - window, 0)
            file.seek(start)
            lines = file.read().split(b"\n")
        # The first piece may be the end of a line that began earlier.
        for line in reversed(lines[1:] if start else lines):
            try:
                return Usage(**json.loads(line)["spent"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        if start == 0:
            break
        window *= 8
    return Usage()
