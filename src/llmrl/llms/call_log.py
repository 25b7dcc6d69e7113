"""Every call to a chat model, kept in one file per run: what was asked, what came back, what it took."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.core.errors import LLMError, RunFolderError
from llmrl.core.protocols import ChatModel
from llmrl.core.records import ChatReply, ChatRequest, State
from llmrl.llms.hosted import BatchError
from llmrl.llms.request_key import identity_of, request_key

logger = logging.getLogger(__name__)


class LoggedChat:
    """`inner`, with each call appended to the JSON-lines file `path` and added to running totals.

    A line is written by a single append, so threads never mix theirs; a process killed in the middle of one leaves
    at worst a last line cut short, which the next writer closes and `read_calls` skips.

    The file is the record of what was paid; the totals are part of the run's state and go back with a checkpoint,
    so after a resume the file may hold calls that the totals count once.

    Raises:
        RunFolderError: `path` cannot be written.
    """

    def __init__(self, inner: ChatModel, path: Path) -> None:
        self.inner, self.path = inner, path
        self.label = inner.label
        self.identity = identity_of(inner)
        self._lock = threading.Lock()
        self._totals = {
            "calls": 0,
            "failed_calls": 0,
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "latency": 0.0,
            "cost": 0.0,
        }
        # Totals that miss a number are not zero but unknown, and stay so.
        self._unknown = {"prompt_tokens": False, "completion_tokens": False, "cost": False}
        try:
            _close_last_line(path)
        except OSError as error:
            raise RunFolderError(f"cannot write the call log {path}: {error.strerror}") from error

    def check(self) -> None:
        self.inner.check()

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """The replies of `inner`, logged; also those that came back beside a failure."""
        results: Sequence[ChatReply | LLMError]
        try:
            results = self.inner.chat(requests)
        except LLMError as error:
            results = error.results if isinstance(error, BatchError) else [error] * len(requests)
            self._record(requests, results)
            raise
        self._record(requests, results)
        return list(results)

    def metrics(self) -> dict[str, float]:
        """Totals: calls, failed_calls and, where known, prompt_tokens, completion_tokens, cost (USD).

        Seconds waited are `time/llm_latency`: what the clock says is kept apart from what a run's seed decides.
        """
        with self._lock:
            return {
                f"{'time/llm_' if name == 'latency' else 'llm/'}{name}": float(value)
                for name, value in self._totals.items()
                if not self._unknown.get(name, False)
            }

    def state_dict(self) -> State:
        with self._lock:
            return {"totals": dict(self._totals), "unknown": dict(self._unknown)}

    def load_state_dict(self, state: State) -> None:
        with self._lock:
            self._totals = dict(state["totals"])
            self._unknown = dict(state["unknown"])

    def _record(self, requests: Sequence[ChatRequest], results: Sequence[ChatReply | LLMError]) -> None:
        entries = [self._entry(request, result) for request, result in zip(requests, results, strict=True)]
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        with self._lock:
            for result in results:
                self._count(result)
            _append(self.path, text)

    def _entry(self, request: ChatRequest, result: ChatReply | LLMError) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "time": time.time(),
            "hash": request_key(self.identity, request),
            "model": self.label,
            "purpose": request.purpose,
            "messages": list(request.messages),
            "schema": request.schema,
        }
        if isinstance(result, LLMError):
            return {**entry, "error": str(result)}
        return {
            **entry,
            "reply": result.text,
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": result.completion_tokens,
            "cost": result.cost,
            "latency": result.latency,
        }

    def _count(self, result: ChatReply | LLMError) -> None:
        self._totals["calls"] += 1
        if isinstance(result, LLMError):
            self._totals["failed_calls"] += 1
            return
        self._totals["latency"] += result.latency
        for name in self._unknown:
            value = getattr(result, name)
            if value is None:
                self._unknown[name] = True
            else:
                self._totals[name] += value


def read_calls(path: Path) -> list[dict[str, Any]]:
    """The calls in a log, oldest first; lines cut short by a kill are skipped with a warning."""
    calls = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                calls.append(json.loads(line))
            except json.JSONDecodeError:
                logger.warning("%s, line %d: not a whole record, skipped", path, number)
    return calls


def _append(path: Path, text: str) -> None:
    """Append in one write; the operating system keeps it even if this process is killed right after."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        data = memoryview(text.encode("utf-8", errors="replace"))
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
