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
from typing import Any, Literal, NamedTuple

from llmrl.core.disk import why
from llmrl.core.errors import LLMError, RunFolderError
from llmrl.core.records import REPLY_COUNTS, ChatReply, ChatRequest
from llmrl.core.secrets import redact_all
from llmrl.llms.budget import Budget, Reservation, Spent
from llmrl.llms.images import kept

logger = logging.getLogger(__name__)

FILE_NAME = "llm_calls.jsonl"

JUDGED = "judged"
"""Key that marks a line that is no call but the verdict on the reply of one; its value is the call's hash."""
_VERDICT = f'{{"{JUDGED}"'

_TAIL = 1 << 16
"""Bytes looked at first when searching the last whole line from the end."""

Fate = Literal["refused", "lost"]
"""Of an attempt without a reply: `refused`, nothing was generated for it; `lost`, nobody knows."""


class Verdict(NamedTuple):
    """What came of reading the reply of the call with this `hash` and `time`: `fault` is what is wrong, "" nothing, and
    `understood` what it was taken to say."""

    hash: str
    time: float
    fault: str = ""
    understood: Any = None


class Ledger:
    """Appends to the file `path` a line for each call, and before each attempt at one a short line that says so.

    The line of an attempt (`asked`) is on disk before the request is sent, and that of the call, which `settles` it, is
    written when its reply arrives, before anybody reads the reply; what came of reading it is a line of its own
    (`judge`). An attempt that failed is settled by a short line with its `fate`. Each is a single append, so that
    threads never mix theirs; a process killed in the middle of one leaves at worst a last line cut short, which the
    next writer closes and `read_calls` skips. Lines of calls and attempts carry what the run has spent so far, all its
    processes together, attempts in flight counted as lost: that is what holds if the process ends there.

    Attributes:
        spent_before: what processes before this one have paid for in this run.

    Raises:
        RunFolderError: `path` cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._whole = True
        try:
            _close_last_line(path)
            self.spent_before = _last_spent(path)
        except OSError as error:
            raise _unwritable(path, error) from error

    def asked(
        self,
        key: str,
        label: str,
        stream: int | None,
        request: ChatRequest,
        attempt: int,
        reservation: Reservation,
        budget: Budget,
    ) -> None:
        """Write, before it is sent, that `request` is asked for the `attempt`-th time (from 1) within its call.

        Raises:
            RunFolderError: the line cannot be written; nothing may be sent.
        """
        line: dict[str, Any] = {
            "time": time.time(),
            "asked": reservation.id,
            "hash": key,
            "model": label,
            "stream": stream,
            "purpose": request.purpose,
            "prompt": request.prompt,
            "repeat": request.repeat,
            "attempt": attempt,
            "reserved": {"tokens": reservation.tokens, "cost": reservation.cost},
        }
        self._write(line, budget, durably=True)

    def unanswered(self, reservations: Sequence[Reservation], fate: Fate, error: str, budget: Budget) -> None:
        """Write what became of attempts that were sent and brought no reply."""
        for reservation in reservations:
            try:
                self._write({"time": time.time(), "settles": reservation.id, "fate": fate, "error": error}, budget)
            except RunFolderError as full:
                logger.warning("%s; the attempt counts as lost", full)

    def record(
        self,
        key: str,
        label: str,
        identity: Mapping[str, Any],
        stream: int | None,
        request: ChatRequest,
        result: ChatReply | LLMError,
        budget: Budget,
        reservation: Reservation | None = None,
    ) -> Verdict:
        """Write one call: a reply, paid or from the cache (`attempts` 0), or the error it ended with. `reservation` is
        that of the attempt that brought the reply, if it was announced by `asked`. What is returned becomes the verdict
        on this reply (`judge`), once it has been read."""
        now = time.time()
        line: dict[str, Any] = {
            "time": now,
            **({} if reservation is None else {"settles": reservation.id}),
            "hash": key,
            "model": label,
            "identity": dict(identity),
            "stream": stream,
            "purpose": request.purpose,
            "prompt": request.prompt,
            "prompt_hash": request.prompt_hash,
            "repeat": request.repeat,
            **({"place": request.place} if request.place else {}),
            "messages": kept(request.messages, self.path.parent),
            "schema": request.schema,
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
        self._write(line, budget)
        return Verdict(key, now)

    def _write(self, line: dict[str, Any], budget: Budget, durably: bool = False) -> None:
        with self._lock:
            # Read under the lock, so that totals never fall from one line to the next.
            line["spent"] = asdict(budget.account())
            self._append([line], durably)

    def judge(self, verdicts: Sequence[Verdict]) -> None:
        """Write down what came of reading replies.

        Raises:
            RunFolderError: it cannot be written.
        """
        with self._lock:
            self._append(
                [
                    {
                        JUDGED: v.hash,
                        "time": v.time,
                        "valid": not v.fault,
                        "fault": v.fault,
                        "understood": v.understood,
                    }
                    for v in verdicts
                ]
            )

    def _append(self, lines: Sequence[Mapping[str, Any]], durably: bool = False) -> None:
        if not lines:
            return
        text = "".join(f"{json.dumps(redact_all(line), ensure_ascii=False)}\n" for line in lines)
        # What a full disk has cut short is closed first.
        start, self._whole = "" if self._whole else "\n", False
        try:
            _append(self.path, start + text, durably)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self._whole = True


def read_calls(path: Path) -> Iterator[dict[str, Any]]:
    """The calls in a log, oldest first; lines cut short by a kill are skipped with a warning.

    Calls with a reply have `valid`, `fault` and `understood`: None where nobody read the reply, or the run was killed
    before. Among them is, marked `unsettled: true`, every attempt whose reply was lost and may have been charged all
    the same: its `hash`, `attempt` (from 1), `reserved` tokens and cost, and as `lost` why, or null if its process was
    killed. It has neither `reply` nor `error`.
    """
    lost, verdicts = _unanswered(path), {}
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
            elif "asked" in call:
                if str(call["asked"]) in lost:
                    yield {**call, "unsettled": True, "lost": lost[str(call["asked"])]}
            elif JUDGED not in call and "fate" not in call:
                call.pop("settles", None)
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
    return call | {name: None if verdict is None else verdict.get(name) for name in ("valid", "fault", "understood")}


def _unanswered(path: Path) -> dict[str, str | None]:
    """Why nobody knows what became of an attempt, by its name in the log; None if that is not even said."""
    asked: list[str] = []
    settled: set[str] = set()
    lost: dict[str, str] = {}
    with path.open("rb") as file:
        for line in file:
            # Quotes inside of texts are escaped.
            if b'"asked"' not in line and b'"settles"' not in line:
                continue
            said = as_record(line)
            if said is None:
                continue  # cut short: it settles nothing
            if "asked" in said:
                asked.append(str(said["asked"]))
            settled.add(str(said.get("settles")))
            if said.get("fate") == "lost":
                lost[str(said["settles"])] = str(said.get("error"))
    return {name: lost.get(name) for name in asked if name in lost or name not in settled}


def _unwritable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"cannot write the call log {path}: {why(path, error)}")


def _append(path: Path, text: str, durably: bool = False) -> None:
    """Append in one write; the operating system keeps it even if this process is killed right after, and `durably`
    even if the machine is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        data = memoryview(text.encode())
        while data:
            data = data[os.write(descriptor, data) :]
        if durably:
            os.fsync(descriptor)
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
