"""Limit on the requests in flight to a provider, and pauses that its server asks for."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llmrl.core.ranges import PositiveInt

POLL_SECONDS = 0.05
"""Seconds between two checks for a free slot."""


class _AccountState:
    """Requests of one account in flight, and the time until which its server asked to wait."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_in_flight = 0
        self.paused_until = float("-inf")


_accounts: dict[str, _AccountState] = {}
_accounts_lock = threading.Lock()


class RateLimit:
    """Rate limiter that delays requests until a slot is free and no pause is due. Threads may share it.

    Args:
        concurrency: maximum number of requests in flight.
        clock: monotonic time in seconds.
    """

    def __init__(self, concurrency: PositiveInt = 8, clock: Callable[[], float] = time.monotonic) -> None:
        self.concurrency, self._clock = concurrency, clock
        self._account = _AccountState()

    def shared(self, account: str | None) -> RateLimit:
        """Return a limiter with these limits that counts all requests of `account` in this process.

        Return this limiter if `account` is None.
        """
        if account is None:
            return self
        limiter = copy.copy(self)
        with _accounts_lock:
            limiter._account = _accounts.setdefault(account, _AccountState())
        return limiter

    @contextmanager
    def slot(self, wait: Callable[[float], None] = time.sleep) -> Iterator[None]:
        """Occupy one of the `concurrency` slots for the duration of a `with` block; wait until one is free."""
        while not self._acquire():
            wait(POLL_SECONDS)
        try:
            yield
        finally:
            with self._account.lock:
                self._account.n_in_flight -= 1

    def wait_for_pause(self, wait: Callable[[float], None] = time.sleep) -> None:
        """Wait as long as the server asked to (`start_pause`)."""
        while (remaining := self._account.paused_until - self._clock()) > 0:
            wait(remaining)

    def start_pause(self, seconds: float) -> None:
        """Start no request for the next `seconds`, because the server asked to wait."""
        with self._account.lock:
            self._account.paused_until = max(self._account.paused_until, self._clock() + seconds)

    def _acquire(self) -> bool:
        """Occupy a slot; return whether one was free."""
        with self._account.lock:
            is_free = self._account.n_in_flight < self.concurrency
            self._account.n_in_flight += is_free
        return is_free
