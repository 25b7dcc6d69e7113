"""Log of all calls to chat models, one file per run: requests, replies, tokens, costs and latencies.

Long messages and schemas, which many requests have in common, are stored once, in a line `{"stored": <key>, "value":
...}` before the first call that contains them. In calls, `{"stored": <key>}` replaces them.
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
from llmrl.core.records import CHOSEN_MODEL, TOKEN_COUNT_FIELDS, ChatReply, ChatRequest
from llmrl.core.secrets import redact_nested
from llmrl.llms.budget import Budget, Reservation, Usage
from llmrl.llms.images import with_image_files

STORED_VALUE_KEY = "stored"
"""JSON key of references to stored values, and of the lines that contain these values."""
STORED_VALUE_PREFIX = f'{{"{STORED_VALUE_KEY}"'.encode()
"""First bytes of the lines that contain stored values."""

_MIN_STORED_LENGTH = 200
"""Minimum number of characters of the JSON of a value that is stored in a separate line."""
_VALUE_CACHE_SIZE = 256
"""Maximum number of stored values that a reader keeps in memory."""


class StoredValueWriter:
    """Writer that replaces long values by references and collects the lines with those values."""

    def __init__(self) -> None:
        self._written_keys: set[str] = set()

    def store_value(self, value: Any, lines: list[dict[str, Any]]) -> Any:
        """Return a reference to `value` (plain data), or the value itself if it is short.

        If the value was not stored before, its line is appended to `lines`, which precede the reference in the log.
        """
        text = json.dumps(value, ensure_ascii=False)
        if len(text) < _MIN_STORED_LENGTH:
            return value
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        if key not in self._written_keys:
            self._written_keys.add(key)
            lines.append({STORED_VALUE_KEY: key, "value": value})
        return {STORED_VALUE_KEY: key}


class StoredValueReader:
    """Reader of the stored values of the log at `path`.

    Args:
        path: path of the log, to which a run may append lines while it is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_by_key: dict[str, int] = {}
        self._read_cached_value = functools.lru_cache(_VALUE_CACHE_SIZE)(self._read_value)

    def index_line(self, line: bytes, offset: int) -> bool:
        """Return whether `line` contains a stored value; if so, record its `offset` in the file, in bytes."""
        if not line.startswith(STORED_VALUE_PREFIX):
            return False
        # No call refers to a line that was truncated when the process was killed.
        with contextlib.suppress(ValueError, RecursionError):
            self._offset_by_key[str(json.loads(line)[STORED_VALUE_KEY])] = offset
        return True

    def resolve_references(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of `call` in which stored values replace references in messages and schema."""
        resolved_call = dict(call)
        if isinstance(messages := call.get("messages"), list):
            resolved_call["messages"] = [self._resolve_reference(message) for message in messages]
        if "schema" in call:
            resolved_call["schema"] = self._resolve_reference(call["schema"])
        return resolved_call

    def _resolve_reference(self, value: Any) -> Any:
        if not (isinstance(value, Mapping) and STORED_VALUE_KEY in value):
            return value
        offset = self._offset_by_key.get(str(value[STORED_VALUE_KEY]))
        return value if offset is None else self._read_cached_value(offset)

    def _read_value(self, offset: int) -> Any:
        with open_file(self._path) as file:
            file.seek(offset)
            return json.loads(file.readline())["value"]


logger = logging.getLogger(__name__)

CALL_LOG_NAME = "llm_calls.jsonl"
"""Name of the call log in a run folder."""

VERDICT_KEY = "parsed_call"
"""JSON key of lines with a verdict (result of parsing the reply to a call); its value is the hash of the call."""
_VERDICT_PREFIX = f'{{"{VERDICT_KEY}"'.encode()

_TAIL_BYTES = 1 << 16
"""Number of bytes at the end of the file in which the last complete line is searched first."""

FailedOutcome = Literal["refused", "lost"]
"""Outcome of an attempt without a reply: `refused`: nothing was generated; `lost`: a reply may have been generated."""


class Verdict(NamedTuple):
    """Result of parsing a reply.

    Attributes:
        hash, time: hash of the call, and time of its line in the log (Unix time, s), which together identify the call.
        error: reason why the reply is invalid; "" if it is valid.
        parsed_reply: parsed value as JSON-compatible data; None if the reply is invalid.
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
        key: hash of the request and the model, which identifies the reply in the cache.
        model_label: label of the model.
        sample_seed: seed to which the reply belongs; None: runs with all seeds share replies.
        verdict: verdict on the reply of the logged call; None: the call is not logged yet.
    """

    request: ChatRequest
    key: str
    model_label: str = ""
    sample_seed: int | None = None
    verdict: Verdict | None = None


class CallLog:
    """Append-only log at `path` of attempts, calls and verdicts.

    The line of an attempt (`record_attempt`) is on disk before the request is sent. When the reply arrives, and before
    it is parsed, the line of the call is written, whose field `settled_attempt` names the attempt. For a failed
    attempt, this is a line with its `outcome`. The verdict on a reply is a separate line (`record_verdicts`). Each is
    appended by one write, so lines of several threads are never mixed. A killed process leaves at most one truncated
    line at the end, which the next writer terminates and `read_calls` skips. Lines of calls and attempts contain the
    usage of all processes of the run so far, in which attempts in flight count as lost.

    Attributes:
        earlier_usage: usage of earlier processes of this run.

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
                        file.write(b"\n")  # terminates an incomplete line
            self.earlier_usage = _read_last_usage(path)
        except OSError as error:
            raise _make_write_error(path, error) from error

    def record_attempt(self, call: Call, attempt_number: int, reservation: Reservation, budget: Budget) -> None:
        """Write the line of an attempt of `call`, numbered from 1, before its request is sent.

        Raises:
            RunFolderError: the line cannot be written; the request must not be sent.
        """
        line = {
            "time": time.time(),
            "attempt_id": reservation.id,
            "hash": call.key,
            "model": call.model_label,
            "sample_seed": call.sample_seed,
            "purpose": call.request.purpose,
            "prompt": call.request.prompt,
            "repeat": call.request.repeat,
            "attempt": attempt_number,
            "reserved": {"tokens": reservation.tokens, "cost": reservation.cost},
        }
        self._write(line, budget, sync_to_disk=True)

    def record_attempt_outcome(
        self, reservation: Reservation, outcome: FailedOutcome, error: str, budget: Budget
    ) -> None:
        """Write the outcome of an attempt that has no reply; if this fails, only log a warning."""
        try:
            self._write(
                {"time": time.time(), "settled_attempt": reservation.id, "outcome": outcome, "error": error}, budget
            )
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
        """Write the line of a call with its reply or its error.

        Args:
            call: the call.
            identity: properties of the model that can change the reply (`Provider.identity`).
            result: reply, whose `attempts` are 0 if it is from the cache, or error.
            budget: budget, whose usage is written.
            reservation: reservation of the attempt that returned the reply, if `record_attempt` has logged it.

        Returns:
            Empty verdict, which the caller completes and passes to `record_verdicts`.
        """
        now, request = time.time(), call.request
        line: dict[str, Any] = {
            "time": now,
            **({} if reservation is None else {"settled_attempt": reservation.id}),
            "hash": call.key,
            "model": call.model_label,
            "identity": dict(identity),
            "sample_seed": call.sample_seed,
            "purpose": request.purpose,
            "prompt": request.prompt,
            "prompt_hash": request.prompt_hash,
            "repeat": request.repeat,
            **({"question_id": request.question_id} if request.question_id else {}),
            **({"requested_model": request.model} if request.model != CHOSEN_MODEL else {}),
        }
        if isinstance(result, ChatReply):
            line |= {
                "reply": result.text,
                "thoughts": result.thoughts,
                "finish": result.finish,
                **{name: getattr(result, name) for name in TOKEN_COUNT_FIELDS},
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
        """Write a line with the budget's usage, in which references replace a long schema and long messages."""
        with self._lock:
            lines: list[dict[str, Any]] = []
            if "messages" in line:
                line["messages"] = [self._stored_values.store_value(message, lines) for message in line["messages"]]
                line["schema"] = self._stored_values.store_value(line["schema"], lines)
            # The usage is read under the lock, so that it never decreases from one line to the next.
            line["spent"] = asdict(budget.compute_worst_case_usage())
            self._append_lines([*lines, line], sync_to_disk)

    def record_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Write the verdicts on replies.

        Raises:
            RunFolderError: the file cannot be written.
        """
        lines = [
            {
                VERDICT_KEY: key,
                "time": call_time,
                "valid": not error,
                "parse_error": error,
                "parsed_reply": parsed_reply,
            }
            for key, call_time, error, parsed_reply in verdicts
        ]
        with self._lock:
            self._append_lines(lines)

    def _append_lines(self, lines: Sequence[Mapping[str, Any]], sync_to_disk: bool = False) -> None:
        """Redact secrets in lines and append them, after a line break if the previous write was incomplete."""
        if not lines:
            return
        text = "".join(f"{json.dumps(redact_nested(line), ensure_ascii=False)}\n" for line in lines)
        line_break, self._is_last_write_complete = "" if self._is_last_write_complete else "\n", False
        try:
            # Unbuffered: the lines survive a kill of this process and, with `sync_to_disk`, a crash of the machine.
            with open_file(self.path, "ab") as file:
                remaining_bytes = memoryview((line_break + text).encode())
                while remaining_bytes:
                    remaining_bytes = remaining_bytes[os.write(file.fileno(), remaining_bytes) :]
                if sync_to_disk:
                    os.fsync(file.fileno())
        except OSError as error:
            self._stored_values = StoredValueWriter()  # the new stored values may be missing in the file
            raise _make_write_error(self.path, error) from error
        self._is_last_write_complete = True


def read_calls(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the calls in a log, oldest first; skip truncated lines with a warning.

    Calls with a reply have `valid`, `parse_error` and `parsed_reply`, each None if the reply was never parsed. Attempts
    with unknown outcome, which may have been charged, are also yielded, with `unsettled: true`, `hash`, `attempt`
    (from 1), `reserved` tokens and cost, and the reason `lost` (None if the process was killed), but without `reply`
    and `error`.
    """
    stored_values, verdicts, unsettled_reasons = _read_index(path)
    with open_file(path) as file:
        for line_number, line in enumerate(file, start=1):
            if line.startswith(STORED_VALUE_PREFIX) and line.endswith(b"\n"):
                continue
            call = parse_log_line(line.decode("utf-8", "replace"))
            if call is None:
                logger.warning("%s, line %d: incomplete record, skipped", path, line_number)
            elif "attempt_id" in call:
                if str(call["attempt_id"]) in unsettled_reasons:
                    yield {**call, "unsettled": True, "lost": unsettled_reasons[str(call["attempt_id"])]}
            elif VERDICT_KEY not in call and "outcome" not in call:
                call.pop("settled_attempt", None)
                yield with_verdict(stored_values.resolve_references(call), verdicts.get(get_call_id(call)))


def _read_index(
    path: Path,
) -> tuple[StoredValueReader, dict[tuple[str, str], dict[str, Any]], dict[str, str | None]]:
    """Return the stored values, the verdicts by `get_call_id`, and the reason of each attempt with unknown outcome."""
    verdicts: dict[tuple[str, str], dict[str, Any]] = {}
    unsettled_reasons: dict[str, str | None] = {}
    stored_values, next_offset = StoredValueReader(path), 0
    with open_file(path) as file:
        for line in file:
            line_offset, next_offset = next_offset, next_offset + len(line)
            # This search is faster than parsing. Quotation marks in texts are escaped, so only keys match.
            if stored_values.index_line(line, line_offset) or not any(
                key in line for key in (_VERDICT_PREFIX, b'"attempt_id"', b'"settled_attempt"')
            ):
                continue
            if (record := parse_log_line(line)) is None:
                continue
            if VERDICT_KEY in record:
                verdicts[get_call_id(record)] = record
            elif "attempt_id" in record:
                unsettled_reasons[str(record["attempt_id"])] = None
            elif record.get("outcome") == "lost":
                unsettled_reasons[str(record.get("settled_attempt"))] = str(record.get("error"))
            else:
                unsettled_reasons.pop(str(record.get("settled_attempt")), None)
    return stored_values, verdicts, unsettled_reasons


def parse_log_line(line: str | bytes) -> dict[str, Any] | None:
    """Parse a line of a log; return None if it is not a JSON object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def get_call_id(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key (hash, time) that identifies a call and the verdict on its reply."""
    return str(record.get(VERDICT_KEY, record.get("hash"))), str(record.get("time"))


def with_verdict(call: dict[str, Any], verdict: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a call with the fields of its verdict (None without a verdict); unchanged if it has no reply."""
    if "reply" not in call:
        return call
    return call | {
        name: None if verdict is None else verdict.get(name) for name in ("valid", "parse_error", "parsed_reply")
    }


def _make_write_error(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"cannot write the call log {path}: {describe_write_error(path, error)}")


def _read_last_usage(path: Path) -> Usage:
    """Return the usage in the last line that has one, read from the end of the file."""
    size, n_tail_bytes = path.stat().st_size, _TAIL_BYTES
    while size:
        with open_file(path) as file:
            start = max(size - n_tail_bytes, 0)
            file.seek(start)
            lines = file.read().split(b"\n")
        # The first line may be incomplete, unless it is at the start of the file.
        for line in reversed(lines[1:] if start else lines):
            try:
                return Usage(**json.loads(line)["spent"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
        if start == 0:
            break
        n_tail_bytes *= 8
    return Usage()
