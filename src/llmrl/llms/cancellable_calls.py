"""Requests in threads, which the waiting thread can abandon when the run is to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from llmrl.core.errors import CallInterrupted
from llmrl.core.threads import make_daemon_thread
from llmrl.llms.budget import Reservation

STOP_CHECK_SECONDS = 0.1
"""Interval, in seconds, at which a waiting thread checks whether the run is to stop."""
MAX_STOP_WAIT_SECONDS = 3.0
"""Maximum number of seconds for which a stopping run waits for replies in flight, because they are paid."""

Answer = TypeVar("Answer")


class PendingCall:
    """State of one call that the sending thread and the waiting thread share.

    Attributes:
        reservation: reservation of the last attempt; None: there was no attempt yet.
        is_abandoned: whether the waiting thread has stopped waiting for the reply.
        is_lost: whether the call was abandoned during an attempt, so that the outcome of the attempt is unknown.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_in_flight = False
        self.reservation: Reservation | None = None
        self.is_abandoned = self.is_lost = False

    def start_attempt(self) -> None:
        """Mark the start of an attempt.

        Raises:
            CallInterrupted: the call was abandoned.
        """
        with self._lock:
            if self.is_abandoned:
                raise CallInterrupted("the call was abandoned")
            self._is_in_flight = True

    def finish_attempt(self) -> None:
        """Mark the end of an attempt, with or without a reply; another may follow."""
        with self._lock:
            self._is_in_flight = False

    def abandon(self) -> bool:
        """Abandon the call; return whether an attempt is in flight, whose reply is then lost."""
        with self._lock:
            self.is_abandoned, self.is_lost = True, self._is_in_flight
            return self.is_lost


class RequestBatch(Generic[Answer]):
    """Batch of calls that daemon threads make. `answers` are the answers, None for calls without an answer yet.

    `concurrent.futures` is unsuitable, because Python waits for its threads at exit.

    Args:
        make_call: function from the index of a call and its state to its answer; an exception ends the batch.
        n_calls: number of calls.
        max_threads: maximum number of threads, >= 1.
    """

    def __init__(self, make_call: Callable[[int, PendingCall], Answer], n_calls: int, max_threads: int) -> None:
        self._make_call = make_call
        self.pending_calls = [PendingCall() for _ in range(n_calls)]
        self.answers: list[Answer | None] = [None] * n_calls
        self._remaining_indices = iter(range(n_calls))
        self._n_unanswered = n_calls
        self._condition = threading.Condition()
        self._error: BaseException | None = None
        for _ in range(min(max_threads, n_calls)):
            make_daemon_thread("llm", self._run_worker).start()

    def wait(self, should_stop: Callable[[], bool]) -> None:
        """Wait for all answers, but at most `MAX_STOP_WAIT_SECONDS` after `should_stop` returned true.

        Raises:
            Exception: `make_call` raised it.
        """
        deadline: float | None = None
        with self._condition:
            while self._n_unanswered and self._error is None:
                if deadline is None and should_stop():
                    deadline = time.monotonic() + MAX_STOP_WAIT_SECONDS
                if deadline is not None and time.monotonic() >= deadline:
                    return
                self._condition.wait(STOP_CHECK_SECONDS)
        if self._error is not None:
            raise self._error

    def _run_worker(self) -> None:
        """Make one call after another until none remains. Each thread runs this."""
        while True:
            with self._condition:
                i = next(self._remaining_indices, None)
            if i is None:
                return
            try:
                answer = self._make_call(i, self.pending_calls[i])
            except BaseException as error:  # noqa: BLE001  (raised in the waiting thread)
                with self._condition:
                    self._error = error
                    self._condition.notify_all()
                return
            with self._condition:
                self.answers[i] = answer
                self._n_unanswered -= 1
                self._condition.notify_all()
