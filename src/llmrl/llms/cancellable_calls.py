"""Requests under way: sent by threads of their own, waited for in slices, and abandoned once a run is to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from llmrl.core.errors import Interrupted
from llmrl.core.threads import daemon_thread
from llmrl.llms.budget import Reservation

WAIT_SLICE = 0.1
"""Seconds after which who waits looks whether the run is to stop."""
LAST_REPLIES_S = 3.0
"""Seconds that replies under way are still waited for when it is: they are paid, and most are about to arrive."""

Answer = TypeVar("Answer")


class PendingCall:
    """One call on its way: what a thread that asks and one that waits for it have to agree upon.

    Attributes:
        reservations: what its present attempt may take.
        abandoned: nobody waits for the reply any more.
        lost: that was so when an attempt was under way, whose fate is unknown.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = False
        self.reservations: Collection[Reservation] = ()
        self.abandoned = self.lost = False

    def start(self) -> None:
        """An attempt begins.

        Raises:
            Interrupted: nobody waits for it.
        """
        with self._lock:
            if self.abandoned:
                raise Interrupted("nobody waits for the reply any more")
            self._sent = True

    def finish(self) -> None:
        """The attempt is over, with a reply or without; another may follow."""
        with self._lock:
            self._sent = False

    def abandon(self) -> bool:
        """Wait for it no more; whether an attempt is lost by that."""
        with self._lock:
            self.abandoned, self.lost = True, self._sent
            return self.lost


class RequestBatch(Generic[Answer]):
    """Answers to several calls, asked for in threads that end with the process whatever they wait for.

    (Those of `concurrent.futures` do not: Python joins them before it ends.)

    Args:
        ask: gives the answer to call number i on a flight; raises nothing that is to be known.
        n: calls.
        at_once: threads, >= 1.
    """

    def __init__(self, ask: Callable[[int, PendingCall], Answer], n: int, at_once: int) -> None:
        self._ask = ask
        self.flights = [PendingCall() for _ in range(n)]
        self.answers: list[Answer | None] = [None] * n
        self._next = iter(range(n))
        self._left = n
        self._news = threading.Condition()
        self._error: BaseException | None = None
        for _ in range(min(at_once, n)):
            daemon_thread("llm", self._work).start()

    def wait(self, stopping: Callable[[], bool]) -> None:
        """Until all answers are there, or, once `stopping`, a little longer for those that are about to arrive.

        Raises:
            Exception: what `ask` raised.
        """
        until: float | None = None
        with self._news:
            while self._left and self._error is None:
                if until is None and stopping():
                    until = time.monotonic() + LAST_REPLIES_S
                if until is not None and time.monotonic() >= until:
                    return
                self._news.wait(WAIT_SLICE)
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            with self._news:
                i = next(self._next, None)
            if i is None:
                return
            try:
                answer = self._ask(i, self.flights[i])
            except BaseException as error:  # noqa: BLE001  (it is raised where somebody waits)
                with self._news:
                    self._error = error
                    self._news.notify_all()
                return
            with self._news:
                self.answers[i] = answer
                self._left -= 1
                self._news.notify_all()
