"""One executor for the loops of several runs of a process, each in a thread of its own."""

from __future__ import annotations

import contextvars
import queue
import threading
from typing import Any

from llmrl.loops.executor import Executor
from llmrl.loops.requests import Request
from llmrl.run.signals import GivenUp


class Rows:
    """Answers requests of several loops in the thread that calls `run`, one after the other."""

    def __init__(self) -> None:
        self._news: queue.SimpleQueue[tuple[Seat, Request, contextvars.Context] | None] = queue.SimpleQueue()
        self._seated = 0
        self._lock = threading.Lock()
        self._seats: list[Seat] = []
        self.error: BaseException | None = None

    def seat(self) -> Seat:
        """A place for one more loop."""
        self._seated += 1
        self._seats.append(Seat(self, self._news))
        return self._seats[-1]

    def run(self) -> None:
        """Answer until every seat has left.

        Raises:
            KeyboardInterrupt, Stopped: as signals want.
        """
        while self._seated:
            match self._news.get():
                case None:
                    self._seated -= 1
                case (seat, request, context):
                    context.run(seat.take, request)

    def abandon(self, error: BaseException) -> None:
        """Let every request that waits or will come be answered by `error`."""
        self.error = error
        for seat in self._seats:
            seat.put(error)


class Seat:
    """The place of one loop."""

    def __init__(self, rows: Rows, news: queue.SimpleQueue[tuple[Seat, Request, contextvars.Context] | None]) -> None:
        self._rows, self._news = rows, news
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._executor = Executor(None)

    def answer(self, request: Request) -> Any:
        """Wait for the answer; raises what it raised."""
        if self._rows.error is not None:
            raise self._rows.error
        self._news.put((self, request, contextvars.copy_context()))
        answer, error = self._answers.get()
        if error is not None:
            raise error
        return answer

    def leave(self) -> None:
        """Ask no more."""
        self._executor.close()
        self._news.put(None)

    def take(self, request: Request) -> None:
        """Answer a request, in the executor's thread."""
        try:
            self._answers.put((self._executor.answer(request), None))
        except (KeyboardInterrupt, GivenUp):  # meant for all
            raise
        except BaseException as error:  # noqa: BLE001 (it is the loop's)
            self.put(error)

    def put(self, error: BaseException) -> None:
        """Answer by an error."""
        self._answers.put((None, error))
